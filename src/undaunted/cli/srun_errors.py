"""The standard error of srun: launchers that have ended, and lines that all of them write.

Design: docs/design/srun.md.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from undaunted.base.text import count, one_line
from undaunted.cli.asking import NoAnswerError
from undaunted.fault_tolerance import control_socket as s
from undaunted.services.slurm.allocation import read_ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.cli.asking import Launchers

_CHUNK = 1 << 16
_OURS = b"[undaunted] "
_SRUNS = b"srun: error: "
_LONGEST = 4096  # bytes of a line that is looked at
# Launchers that end because the job does have ended by then.
_SETTLE_S = 5.0
_STARTS_S = 120.0  # a launcher until it can be asked: it has much to import
_LEFT_OPEN_S = 1.0  # for the rest of the errors, once srun has ended
_AT_ONCE_S = 5.0  # launchers say the same within this time
_MOST_LINES = 1000  # that are remembered


class SrunErrors:
    """Copies srun's standard error to ours, and learns from it which launchers have ended.

    Slurm starts none of them again. Where fewer are left than a round needs, these would wait for
    minutes: their leader hears that no other can come. Used on a loop.

    Args:
        nodes: how many launchers srun starts.
        needed: how many a round needs.
        launchers: those of this host.
        say: shows a line.

    Attributes:
        stderr: for srun; closed here by `began`.
    """

    def __init__(
        self, nodes: int, needed: int, launchers: Launchers, say: Callable[[str], None]
    ) -> None:
        self._nodes, self._needed, self._launchers, self._say = nodes, needed, launchers, say
        self._ended: dict[str, str] = {}
        self._loop = asyncio.get_running_loop()
        self._telling: asyncio.Task[None] | None = None
        self._read, self.stderr = os.pipe()
        self._thread = threading.Thread(target=self._copy, name="undaunted-srun", daemon=True)

    def began(self) -> None:
        """The program srun runs, or could not be started."""
        os.close(self.stderr)
        self._thread.start()

    async def close(self) -> None:
        """The program srun has ended: show the rest of its errors, end."""
        await asyncio.to_thread(self._thread.join, _LEFT_OPEN_S)
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])

    # --- in a thread: the reader of our errors may be slow ---

    def _copy(self) -> None:
        fold, rest = LineFold(), b""
        with os.fdopen(self._read, "rb", buffering=0) as errors:
            while data := errors.read(_CHUNK):
                _show(fold.take(data) if self._nodes > 1 else data)
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_LONGEST:]
                for line in lines:
                    self._hear(line[-_LONGEST:])
        _show(fold.end())

    def _hear(self, line: bytes) -> None:
        """Pass on an error of srun; a progress bar of a rank may stand before it."""
        _, mark, error = line.partition(_SRUNS)
        if mark:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._take, error.decode("utf-8", "replace"))

    # --- on the loop ---

    def _take(self, error: str) -> None:
        for node, how in read_ended(error).items():
            self._ended.setdefault(node, how)
        if self._telling is None and self._nodes - len(self._ended) < self._needed:
            self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        """Have the leader know, by a launcher of this host, which may only be starting."""
        why, until = "", self._loop.time() + _STARTS_S
        while self._loop.time() < until:
            await asyncio.sleep(_SETTLE_S)
            try:
                await self._order(s.NoOthers(why=self._why))
            except NoAnswerError as error:
                why = one_line(str(error))
            else:
                return
        self._say(f"{self._why}; no launcher could be reached ({why}): scancel ends the job")

    async def _order(self, order: s.Order) -> None:
        """Give an order to the first launcher that takes it; raises NoAnswerError if none does."""
        refused: NoAnswerError | None = None
        for name in await self._launchers.names(order):
            try:
                await self._launchers.ask(name, order)
            except NoAnswerError as error:
                refused = error
            else:
                return
        if refused is not None:
            raise refused

    @property
    def _why(self) -> str:
        ends = "; ".join(f"node {node}: {how}" for node, how in self._ended.items())
        left = self._nodes - len(self._ended)
        of_all = f"{left} of {count(self._nodes, 'launcher')} {'is' if left == 1 else 'are'} left"
        return one_line(f"{of_all} ({ends}), {self._needed} are needed")


class LineFold:
    """Leaves out a line of a launcher that another one has just written: the same fact."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown: dict[bytes, float] = {}
        self._rest = b""  # a line of a launcher, perhaps, that has no end yet
        self._at_begin = True  # of a line

    def take(self, data: bytes) -> bytes:
        """Return what is to be shown of what has come."""
        data, self._rest = self._rest + data, b""
        shown = []
        for line in _lines(data):
            whole = line.endswith(b"\n")
            may_be_ours = self._at_begin and _OURS.startswith(line[: len(_OURS)])
            if may_be_ours and not whole and len(line) < _LONGEST:
                self._rest = line
                break
            if not (may_be_ours and self._is_repeated(line)):
                shown.append(line)
            self._at_begin = whole
        return b"".join(shown)

    def end(self) -> bytes:
        """Return what is left."""
        return self._rest

    def _is_repeated(self, line: bytes) -> bool:
        now = self._clock()
        if now - self._shown.get(line, -_AT_ONCE_S) < _AT_ONCE_S:
            return True
        if len(self._shown) == _MOST_LINES:
            self._shown.clear()
        self._shown[line] = now
        return False


def _lines(data: bytes) -> list[bytes]:
    *lines, rest = data.split(b"\n")
    return [*(line + b"\n" for line in lines), *([rest] if rest else [])]


def _show(data: bytes) -> None:
    with suppress(OSError):  # nobody reads it
        while data:
            data = data[os.write(2, data) :]
