"""What earlier processes of a rank have recorded, for one that goes on where they ended."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from undaunted.digests.record import FORWARD, PARAMETERS, UPDATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
        self._updated: dict[str, int] = {}
        for record in records:
            self.counted = record.counted
            if record.at == FORWARD and record.n == 0 and PARAMETERS in record.parts:
                self._begun[record.parts[PARAMETERS]].append(record)
            elif record.at == UPDATE and PARAMETERS in record.parts:
                self._updated[record.parts[PARAMETERS]] = record.iteration

    def iteration_of(self, parts: Mapping[str, str], updated: Callable[[], str]) -> int | None:
        """Return the iteration that began with these parameters, or is the next; None if none is.

        Of several, as with a learning rate of 0, it is the one that is most alike, and the latest.
        A process that saves and leaves has updated the parameters and not begun with them.

        Args:
            parts: of the record before a forward pass.
            updated: returns the digest of the parameters as an optimizer of them all has it.
        """
        begun = self._begun.get(parts[PARAMETERS], ())
        alike = [
            (sum(one.parts.get(name) == parts[name] for name in parts), one.iteration)
            for one in begun
        ]
        if alike:
            return max(alike)[1]
        last = self._updated.get(updated()) if self._updated else None
        return None if last is None else last + 1
