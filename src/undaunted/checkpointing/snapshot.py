"""A state at one step that is on its way to storage, and what a rank says of its part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undaunted.checkpointing.format.manifest import File  # noqa: TC001 - a type of a field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.agreement.failures import Failure
    from undaunted.checkpointing.dcp.saving import Planned, Staged
    from undaunted.checkpointing.memory.pool import Lease


class Report(msgspec.Struct, frozen=True):
    """What a rank says after it has written.

    Attributes:
        files: what it has written.
        objects: where in them the objects lie that are not tensors.
    """

    files: dict[str, File]
    objects: bytes


@dataclass(frozen=True)
class Snapshot:
    """A state at one step, on its way to storage.

    Attributes:
        step: of training.
        number: of the save, from 1; the same on all ranks.
        lease: where it lies.
        planned: its structure, None when this rank could not even plan.
        staged: what lies there, None when it could not be copied.
        problem: why not.
        stall_s: how long training was stopped for it, in seconds.
        began: when, on the monotonic clock.
    """

    step: int
    number: int
    lease: Lease | None
    planned: Planned | None
    staged: Staged | None
    problem: Failure | None
    stall_s: float
    began: float

    def name(self, attempt: int) -> str:
        """Return what messages call an attempt to save it, from 0; the same on all ranks."""
        again = f", attempt {attempt + 1}" if attempt else ""
        return f"save {self.number} (step {self.step}){again}"

    @property
    def bytes(self) -> int:
        """How large this rank's files are."""
        return 0 if self.staged is None else sum(file.size for file in self.staged.files)


def merged(reports: Sequence[Report]) -> dict[str, File]:
    """Return the files of all ranks."""
    return {name: file for report in reports for name, file in report.files.items()}
