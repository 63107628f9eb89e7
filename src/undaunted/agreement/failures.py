"""Errors that all ranks raise alike, and how a rank tells the others of an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class AgreedError(Exception):
    """The failure of one rank; all ranks raise it.

    Attributes:
        ranks: of the job; those that failed or did not answer, ascending.
        errno: of the operating system's error, or None.
        undecided: whether it is certain that rank 0 has decided nothing, and never will.
    """

    def __init__(self, message: str, ranks: Sequence[int] = (), errno: int | None = None) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.errno = errno
        self.undecided = False

    def details(self) -> dict[str, Any]:
        """Return what else the other ranks have to know: plain data, see `from_failure`."""
        return {}

    @classmethod
    def from_failure(cls, failure: Failure, ranks: Sequence[int]) -> Self:
        """Return the error that a failure of these ranks is raised as."""
        return cls(failure.message, ranks, failure.errno)


class Failure(msgspec.Struct, frozen=True):
    """The contribution of a rank that could not do its part.

    Attributes:
        message: for people; it need not name the rank.
        errno: of the operating system's error.
        kind: name of the error that all ranks raise, see `error`.
        details: see `AgreedError.details`.
    """

    message: str
    errno: int | None = None
    kind: str = ""
    details: dict[str, Any] = {}

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception."""
        text, kind, errno = str(error), type(error).__name__, getattr(error, "errno", None)
        if isinstance(error, AgreedError):
            return cls(text, errno, kind, error.details())
        return cls(f"{kind}: {text}" if text else kind, errno)

    def error(self, kinds: Sequence[type[AgreedError]], ranks: Sequence[int]) -> AgreedError:
        """Return what this is raised as, on every rank the same.

        Args:
            kinds: that travel between ranks; the first stands for all others.
            ranks: whose failure this is.
        """
        known = {kind.__name__: kind for kind in kinds}
        return known.get(self.kind, kinds[0]).from_failure(self, ranks)
