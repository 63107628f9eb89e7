"""The failures of checkpoints, by name.

All ranks raise what one has failed with; the message names that one, as ``rank 3: ``, by which the
launcher tells it from those that only heard of it (`undaunted.attribution.peers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from undaunted.agreement.failures import AgreedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.agreement.failures import Failure


class CheckpointError(AgreedError):
    """Every error of checkpointing."""


class SaveError(CheckpointError):
    """A checkpoint was not saved; the ones before it are untouched, and the next save may work.

    Attributes:
        ranks: of the job; those that failed or did not answer, ascending.
        errno: of the operating system's error, or None.
        is_final: whether another attempt to save the same copy of the state would fail as well.
    """

    is_final = False

    def details(self) -> dict[str, Any]:
        """See `AgreedError`."""
        return {"is_final": True} if self.is_final else {}

    @classmethod
    def from_failure(cls, failure: Failure, ranks: Sequence[int]) -> Self:
        """See `AgreedError`."""
        error = super().from_failure(failure, ranks)
        error.is_final = cls.is_final or failure.details.get("is_final", False)
        return error


class StateError(SaveError):
    """The state cannot be saved as it is, now or after a restart; the message names the entry."""

    is_final = True


class WriterError(SaveError):
    """The writer process of a rank died, stopped or could not be started."""


class StaleEpochError(SaveError):
    """A newer round of the job writes to the same place: this process belongs to the past."""

    is_final = True


class OccupiedError(SaveError):
    """Another job saves its checkpoints in the same place, and did so before this one."""

    is_final = True


class NoCheckpointError(CheckpointError):
    """Nothing that could be loaded was found; the message says what was there and why not."""


class DamagedCheckpointError(CheckpointError):
    """A file is missing, cut short or holds wrong bytes.

    Attributes:
        path: of the file.
        names: the tensors (or objects) in the damaged block, in the file's order.
        block: index of the block, or None when the whole file is concerned.
    """

    def __init__(
        self, message: str, path: str, names: Sequence[str] = (), block: int | None = None
    ) -> None:
        super().__init__(message)
        self.path = path
        self.names = tuple(names)
        self.block = block

    def details(self) -> dict[str, Any]:
        """See `AgreedError`."""
        return {"path": self.path, "names": self.names, "block": self.block}

    @classmethod
    def from_failure(cls, failure: Failure, ranks: Sequence[int]) -> Self:  # noqa: ARG003 - the interface
        """See `AgreedError`."""
        return cls(failure.message, **failure.details)


class StructureError(CheckpointError):
    """The state to fill and the checkpoint do not fit; the message names what is missing."""


# What ranks raise as one of them has raised it; the first is raised for all other errors.
AGREED = (
    SaveError,
    StateError,
    WriterError,
    StaleEpochError,
    OccupiedError,
    CheckpointError,
    NoCheckpointError,
    DamagedCheckpointError,
    StructureError,
)
