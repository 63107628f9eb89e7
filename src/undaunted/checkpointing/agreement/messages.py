"""What ranks write into the store for each other."""

from __future__ import annotations

import msgspec

from undaunted.checkpointing.errors import (
    CheckpointError,
    DamagedCheckpointError,
    NoCheckpointError,
    SaveError,
    StaleEpochError,
    StateError,
    StructureError,
    WriterError,
)

_OF_SAVES = {kind.__name__: kind for kind in (SaveError, StateError, WriterError, StaleEpochError)}
_OTHERS = {kind.__name__: kind for kind in (CheckpointError, NoCheckpointError, StructureError)}


class Failure(msgspec.Struct, frozen=True):
    """What a rank contributes when it could not do its part.

    Attributes:
        message: for people; it need not name the rank.
        errno: of the operating system's error.
        kind: name of the error all ranks raise, one of ``undaunted.checkpointing.errors``.
        path, names, block: of a `DamagedCheckpointError`.
    """

    message: str
    errno: int | None = None
    kind: str = "SaveError"
    path: str = ""
    names: tuple[str, ...] = ()
    block: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        if isinstance(error, DamagedCheckpointError):
            return cls(
                str(error), None, "DamagedCheckpointError", error.path, error.names, error.block
            )
        text = str(error)
        if isinstance(error, CheckpointError):
            return cls(text, getattr(error, "errno", None), type(error).__name__)
        kind = type(error).__name__
        return cls(f"{kind}: {text}" if text else kind, getattr(error, "errno", None))


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """Of one rank to one round.

    Attributes:
        name: of the round, the same on all ranks.
        content: what it contributes.
        pieces: values of the store that have the content, where it is too long for this one.
    """

    name: str
    content: bytes
    pieces: int = 0


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The end of a round: the first that is written holds for all ranks.

    Attributes:
        content: what was decided.
        failure: why nothing was.
        ranks: whose failure that is.
        name: of the round that failed, as who wrote this calls it; "" = whatever it is called.
        pieces: values of the store that have the content, where it is too long for this one.
    """

    content: bytes = b""
    failure: Failure | None = None
    ranks: tuple[int, ...] = ()
    name: str = ""
    pieces: int = 0

    def is_of(self, name: str) -> bool:
        """Whether this is about the round that a rank calls so."""
        return self.name in ("", name)

    def answer(self) -> bytes:
        """Return what was decided, or raise what was not."""
        if self.failure is not None:
            raise error_of(self.failure, self.ranks)
        return self.content


def error_of(failure: Failure, ranks: tuple[int, ...]) -> CheckpointError:
    """Return what a failure is raised as, on every rank the same."""
    if failure.kind == "DamagedCheckpointError":
        return DamagedCheckpointError(failure.message, failure.path, failure.names, failure.block)
    other = _OTHERS.get(failure.kind)
    if other is not None:
        return other(failure.message)
    kind = _OF_SAVES.get(failure.kind, SaveError)
    return kind(failure.message, ranks, failure.errno)
