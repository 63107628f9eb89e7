"""What earlier processes of a rank have recorded, for one that goes on where they ended."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from undaunted.digests.record import FORWARD, PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from undaunted.digests.record import Record


class Past:
    """Finds the iteration that a process begins with where its script does not tell.

    Attributes:
        counted: nobody but us has counted the iterations of this rank.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        """Take records of earlier processes, in the order in which they were written."""
        self.counted = False
        self._begun: defaultdict[str, list[Record]] = defaultdict(list)
        for record in records:
            self.counted = record.counted
            if record.at == FORWARD and PARAMETERS in record.parts:
                self._begun[record.parts[PARAMETERS]].append(record)

    def iteration_of(self, parts: Mapping[str, str]) -> int | None:
        """Return the iteration that began with these parameters, None if none did.

        Of several, as with a learning rate of 0, it is the one that is most alike, and the latest.

        Args:
            parts: of the record before a forward pass.
        """
        begun = self._begun.get(parts[PARAMETERS], ())
        alike = [
            (sum(one.parts.get(name) == parts[name] for name in parts), one.iteration)
            for one in begun
        ]
        return max(alike)[1] if alike else None
