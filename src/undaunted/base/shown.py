"""The line about long reading or writing on a terminal: bytes, rate, remaining time.

Nothing is shown by other ranks than 0, where standard error is no terminal, or of what is over
within a second.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.progress import Progress, TaskID

_SILENT_S = 1.0
_PERIOD_S = 0.2


class Shown:
    """A line that shows how far something is. Its methods may be called by any thread.

    Example:
        >>> with Shown("loading step 100", rank=0) as shown:
        ...     shown.expect(1 << 30)
        ...     shown.advance(1 << 20)
    """

    def __init__(self, text: str, rank: int = 0) -> None:
        """Prepare; nothing is shown yet.

        Args:
            text: what is done.
            rank: of this process; others than 0 show nothing.
        """
        self._text = text
        self._wanted = rank == 0 and sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._expected: int | None = None
        self._done = 0
        self._line: Progress | None = None
        self._task: TaskID | None = None

    @property
    def period_s(self) -> float | None:
        """The time between two lines, in seconds; None if nobody looks."""
        return _PERIOD_S if self._wanted else None

    def expect(self, size: int) -> None:
        """Say how many more bytes there will be."""
        with self._lock:
            self._expected = (self._expected or 0) + size
            self._update()

    def advance(self, size: int) -> None:
        """Say that so many more bytes are done."""
        with self._lock:
            self._done += size
            self._update()

    def reach(self, done: int, expected: int) -> None:
        """Say how many bytes are done, and of how many."""
        with self._lock:
            self._done, self._expected = done, expected
            self._update()

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the line."""
        with self._lock:
            self._wanted = False
            if self._line is not None:
                self._line.stop()

    def _update(self) -> None:
        if not self._wanted or time.monotonic() - self._began < _SILENT_S:
            return
        if self._line is None:
            self._line, self._task = _start(self._text, self._began)
        assert self._task is not None
        self._line.update(self._task, total=self._expected, completed=self._done)


def _start(text: str, began: float) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    line = Progress(
        TextColumn("[undaunted] {task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        get_time=time.monotonic,
    )
    task = line.add_task(text, total=None)
    line.tasks[0].start_time = began
    line.start()
    return line, task
