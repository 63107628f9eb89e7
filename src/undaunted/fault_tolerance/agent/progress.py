"""The progress of a job: from the file its checkpoints keep, or from the pages.

The file is one that the training program writes with each checkpoint (Megatron's
``latest_checkpointed_iteration.txt``, for example): text, one whole number. It usually lies on a
file system of the network, which may hang: a thread reads it, and nobody waits longer than 1 s.
The journal gets what the pages say, as long as the ranks run and when they have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for
from undaunted.coordinator.policy.messages import Iterations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.fault_tolerance.agent.scribe import Scribe
    from undaunted.progress.area import PageArea
    from undaunted.progress.snapshot import PageSnapshot

READ_S = 1.0
# No iteration has more digits; a file may be of any size.
_MAX_BYTES = 64
_NUMBER = re.compile(rb"\s*(\d{1,18})\s*")
# First look at a round; each later delay is twice as long, up to a minute. Of a launcher that is
# killed, this is known.
_FIRST_S = 1.0
_EVERY_S = 60.0


class PageProgress:
    """The progress of the ranks of a round, by their pages, which show only where they are now.

    Iterations that go back within a round tell nothing about progress: the program counts anew,
    with each epoch perhaps. That is noticed from one look to the next.
    """

    def __init__(self) -> None:
        self._highest: dict[tuple[int, int], int] = {}  # by local rank and pid
        self._went_back = ""

    def look(self, pages: Sequence[PageSnapshot]) -> Iterations:
        """Return how far the ranks with these pages came in their round."""
        known = {
            (rank, page.pid): (page.first_iteration, page.iteration)
            for rank, page in enumerate(pages)
            if page.first_iteration is not None and page.iteration is not None
        }
        if not known.keys() & self._highest.keys():  # another round
            self._highest, self._went_back = {}, ""
        for key, (first, now) in known.items():
            before = self._highest.get(key, first)
            if now < before:
                self._went_back = _went_back(before, now)
            self._highest[key] = max(before, now)
        if self._went_back:
            return Iterations(problem=self._went_back)
        if known:
            firsts, lasts = zip(*known.values(), strict=True)
            return Iterations(min(firsts), max(lasts))
        broken = [(rank, page.problem) for rank, page in enumerate(pages) if page.problem]
        if not broken:
            return Iterations()
        rank, problem = broken[0]
        return Iterations(problem=f"the page of local rank {rank} is unreadable ({problem})")


def _went_back(before: int, now: int) -> str:
    return (
        f"undaunted.step went back from iteration {before} to {now} within a round; give it "
        "numbers that grow over the whole training, not anew with each epoch"
    )


def last_step_ns(pages: Sequence[PageSnapshot]) -> int:
    """Return when the highest iteration was begun, 0 if none was."""
    begun = [(page.iteration, page.iteration_ns) for page in pages if page.iteration is not None]
    return max(begun, default=(0, 0))[1] or 0


class ProgressFile:
    """The file of one job.

    Args:
        name: the file, which need not exist yet; "" = there is none, the pages count.
        directory: where a relative name begins.
        limit_s: how long a read may take, seconds.
    """

    def __init__(self, name: str, directory: str = "/", limit_s: float = READ_S) -> None:
        self._path = str(Path(directory, name)) if name else ""
        self._limit_s = limit_s
        self._reader: threading.Thread | None = None
        self._answered = threading.Event()
        self._answered.set()
        self._at_start: int | None = None

    async def begin(self) -> None:
        """Read what the job starts from."""
        if self._path:
            self._at_start = (await self.read()).last

    async def reached(self, in_pages: Iterations) -> Iterations:
        """Return how far the job has come, which is what the pages say if there is no file."""
        return await self.read() if self._path else in_pages

    async def read(self) -> Iterations:
        """Return what is in the file now, with a problem if it cannot be read in time."""
        if not self._answered.is_set():
            return self._unknown("a read that began earlier still waits for the disk")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Iterations] = loop.create_future()

        def deliver(found: Iterations) -> None:
            if not done.done():
                done.set_result(found)

        def work() -> None:
            found = self._read_now()
            self._answered.set()
            with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
                loop.call_soon_threadsafe(deliver, found)

        # A daemon: a disk that hangs must not keep the launcher from ending. At most one is left.
        self._answered.clear()
        self._reader = threading.Thread(target=work, name="undaunted-progress", daemon=True)
        self._reader.start()
        try:
            return await wait_for(done, self._limit_s)
        except TimeoutError:
            return self._unknown(f"it could not be read within {self._limit_s:g} s")

    def _read_now(self) -> Iterations:
        try:
            # Not blocking, should it be a pipe.
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    return self._unknown("it is not a file")
                content = os.read(fd, _MAX_BYTES)
            finally:
                os.close(fd)
        except (OSError, ValueError) as error:
            return self._unknown(getattr(error, "strerror", None) or str(error))
        match = _NUMBER.fullmatch(content)
        if match is None:
            return self._unknown(f"it does not hold one whole number but {content[:20]!r}")
        return Iterations(self._at_start, int(match[1]))

    def _unknown(self, why: str) -> Iterations:
        return Iterations(problem=f"{self._path}: {why}")


class ProgressNotes:
    """Looks at the pages now and then.

    Args:
        area: the pages.
        scribe: records it.
    """

    def __init__(self, area: PageArea, scribe: Scribe) -> None:
        self._area = area
        self._scribe = scribe
        self._progress = PageProgress()
        self._timer: asyncio.TimerHandle | None = None
        self._delay_s = _FIRST_S

    def begin(self) -> None:
        """The ranks run: note how far they are now, and again and again."""
        self.close()
        self._delay_s = _FIRST_S
        self._again()

    def end(self) -> Iterations:
        """The ranks have ended: note it once more, and return how far they came."""
        self.close()
        return self._note()

    def close(self) -> None:
        """Note nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _again(self) -> None:
        self._note()
        self._timer = asyncio.get_running_loop().call_later(self._delay_s, self._again)
        self._delay_s = min(2 * self._delay_s, _EVERY_S)

    def _note(self) -> Iterations:
        pages = [self._area.snapshot(index) for index in range(self._area.ranks)]
        seen = self._progress.look(pages)
        self._scribe.round_progress(seen, last_step_ns(pages))
        return seen
