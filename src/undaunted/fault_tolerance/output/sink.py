"""The destination of lines. A sink never raises, nor holds its follower without a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Sink:
    """A sink that takes nothing; others derive from it. Used by one thread.

    Attributes:
        chunk_bytes: how much of a file is read for it at once.
        live: people look on: a carriage return ends a line, and a line longer than a chunk is
            shown in pieces.
        error: why something is waiting to be written, "" = nothing is.
    """

    chunk_bytes = 256 * 1024
    live = False
    error = ""

    @property
    def blocked(self) -> bool:
        """Return whether something is waiting: call `flush` now and then, and do not `write`."""
        return False

    @property
    def missing_lines(self) -> int:
        """Lines that were given up, or still wait."""
        return 0

    @property
    def awaited(self) -> Sequence[int]:
        """Descriptors; when one becomes writable, `flush` has something to do."""
        return ()

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append the pieces, or keep or drop them."""

    def flush(self) -> None:
        """Try again what did not work."""

    def close(self) -> None:
        """Release what is held."""
