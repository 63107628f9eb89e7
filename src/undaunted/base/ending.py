"""The exit code of a program that fails after its last line.

An atexit handler cannot change the exit code, but the last step of the interpreter can: it flushes
the standard streams, and where that fails, the code is 120.
"""

from __future__ import annotations

import sys
from typing import Any

EXIT_CODE = 120

failed = False


def fail() -> None:
    """Have this process end with `EXIT_CODE`; for atexit handlers, which all run."""
    global failed  # noqa: PLW0603 - of the process
    failed = True
    sys.stdout = _Failing(sys.stdout)


class _Failing:
    """A stream that only the interpreter cannot flush."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        try:
            sys._getframe(1)  # noqa: SLF001 - of the caller
        except ValueError:  # no code of a program does
            raise RuntimeError(
                f"the program failed as it ended, so that its exit code is {EXIT_CODE}"
            ) from None
