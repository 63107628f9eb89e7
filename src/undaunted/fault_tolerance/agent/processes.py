"""The processes of a round: exit statuses, signals, and the tree below the agent.

The agent is the parent (or, as a subreaper, the foster parent) of every process of a round. It
reaps them all in one place: SIGCHLD, then wait4 until nothing is left. A pid can therefore not be
used anew before its exit has been seen here.

Processes that somebody else has started for a rank (a service, a container, a terminal multiplexer)
are not below the agent, and are not ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Callable

# Exit statuses kept for processes that nobody has claimed yet (a rank can end before its pid is
# known to us); beyond that the oldest is forgotten.
_UNCLAIMED_KEPT = 1024


class Ended(NamedTuple):
    """The end of a process.

    Attributes:
        code: exit code, or minus a signal.
        at_ns: when that was seen.
        peak_bytes: the most memory that it, or a process that it has waited for, had; 0 = unknown.
        dumped_core: the kernel has kept its memory.
    """

    code: int
    at_ns: int
    peak_bytes: int = 0
    dumped_core: bool = False


@dataclass(slots=True)
class Worker:
    """One rank's process. ``code`` is set when it has ended, and so is the rest of `Ended`.

    ``signals_sent`` leaves out signals to a process that was on its way out already: they are not
    what ended it. ``lost``: it has failed, and the others have gone on without it.
    ``outlived``: the front has ended it, as this process, its agent, stood still.
    """

    local_rank: int
    pid: int
    spawned_ns: int
    code: int | None = None
    exited_ns: int = 0
    signals_sent: list[tuple[int, int]] = field(default_factory=list)  # (signal, when)
    lost: bool = False
    outlived: bool = False
    peak_bytes: int = 0
    dumped_core: bool = False

    @property
    def signalled_by_us(self) -> bool:
        """Return whether it ended after it had got a signal of ours."""
        return bool(self.signals_sent) and self.signals_sent[0][1] <= (
            self.exited_ns or time.monotonic_ns()
        )

    def ended_by_front(self, at_ns: int) -> None:
        """Note that the front has sent SIGKILL, if that has ended it."""
        if self.code == -signal.SIGKILL:
            self.outlived = True
            self.signals_sent.append((signal.SIGKILL, at_ns))


class Workers:
    """The processes of the current round.

    Args:
        on_exit: called with a worker that has ended.
        on_tree_change: called when some other descendant has ended.
    """

    def __init__(
        self, on_exit: Callable[[Worker], None], on_tree_change: Callable[[], None]
    ) -> None:
        self._on_exit = on_exit
        self._on_tree_change = on_tree_change
        self._by_pid: dict[int, Worker] = {}
        self._unclaimed: dict[int, Ended] = {}
        self._signalled: set[int] = set()
        self.all: list[Worker] = []
        self.killed: set[int] = set()  # got SIGKILL and have not been reaped yet

    @property
    def pids(self) -> set[int]:
        """Processes of the round that are known to have existed."""
        return {*self._by_pid, *self._unclaimed, *self._signalled}

    @property
    def ranks(self) -> set[int]:
        """Processes that are, or were, a rank of the round."""
        return {*self._by_pid}

    def killed_by_others(self) -> list[tuple[int, int]]:
        """Return pids and signals of processes of the round that no signal of ours has ended."""
        ranks = [(each.pid, each.code) for each in self.all if not each.signalled_by_us]
        others = [(pid, ended.code) for pid, ended in self._unclaimed.items()]
        found = [*ranks, *(each for each in others if each[0] not in self._signalled)]
        return [(pid, -code) for pid, code in found if code is not None and code < 0]

    def begin_round(self) -> None:
        """Forget the last round's processes."""
        self._by_pid.clear()
        self._unclaimed.clear()
        self._signalled.clear()
        self.killed.clear()
        self.all = []

    def adopt(self, pids: list[int]) -> None:
        """``pids[i]`` is local rank i; ranks that have ended already are reported at once."""
        now = time.monotonic_ns()
        self.all = [Worker(rank, pid, now) for rank, pid in enumerate(pids)]
        self._by_pid = {worker.pid: worker for worker in self.all}
        for worker in self.all:
            if worker.pid in self._unclaimed:
                self._ended(worker, self._unclaimed.pop(worker.pid))

    def replace(self, local_rank: int, pid: int, began_ns: int) -> None:
        """A process of ours is a local rank from now on; if it has ended, that is reported.

        Args:
            local_rank: whose place it takes.
            pid: its.
            began_ns: before it was started. Another one with this pid may have ended before.
        """
        worker = self.all[local_rank] = Worker(local_rank, pid, time.monotonic_ns())
        self._by_pid[pid] = worker
        ended = self._unclaimed.pop(pid, None)
        if ended is not None and ended.at_ns >= began_ns:
            self._ended(worker, ended)

    def end(self, pid: int) -> None:
        """Kill a process that was started for nothing; `reap` may have seen its end already."""
        stat = process.read_stat(pid)
        if stat is not None and stat.ppid == os.getpid():  # else the pid is nobody's, or another's
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Take the status of every child that has ended; called on SIGCHLD."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            code, peak_bytes = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
            dumped_core = os.WCOREDUMP(status)
            self._reaped(pid, Ended(code, time.monotonic_ns(), peak_bytes, dumped_core))
        self._on_tree_change()

    def code_of(self, pid: int) -> int | None:
        """Take the exit code of another child that has ended, or minus the number of its signal."""
        self.reap()
        ended = self._unclaimed.pop(pid, None)
        return None if ended is None else ended.code

    def has_ended(self, local_rank: int) -> bool:
        """Return whether the process of a rank has ended, as far as `reap` has seen."""
        return local_rank < len(self.all) and self.all[local_rank].code is not None

    def catches(self, local_rank: int, number: int) -> bool:
        """Return whether a rank has a handler for a signal, as far as is known."""
        return local_rank < len(self.all) and process.catches(self.all[local_rank].pid, number)

    def signal_ranks(self, local_ranks: tuple[int, ...], number: int) -> None:
        """Send ``number`` to these ranks; a stopped process is continued first."""
        for local_rank in local_ranks:
            if local_rank >= len(self.all):
                continue
            worker = self.all[local_rank]
            if worker.code is None:
                if not process.is_exiting(worker.pid):
                    worker.signals_sent.append((number, time.monotonic_ns()))
                # Only we reap it, so its pid cannot have been given to another process.
                with contextlib.suppress(PermissionError):  # it has changed its user
                    os.kill(worker.pid, signal.SIGCONT)
                    os.kill(worker.pid, number)

    def pass_on(self, number: int) -> list[int]:
        """Send ``number`` to the ranks that have a handler for it; return their local ranks.

        It is somebody else's signal: what a rank does then is its own.
        """
        passed = []
        for worker in self.all:
            if worker.code is None and process.catches(worker.pid, number):
                with contextlib.suppress(PermissionError):  # it has changed its user
                    os.kill(worker.pid, number)
                    passed.append(worker.local_rank)
        return passed

    def signal_tree(self, number: int, spare: set[int]) -> list[int]:
        """Send ``number`` to every descendant but ``spare`` and what is below; return the pids."""
        left = below_us(spare)
        now = time.monotonic_ns()
        for pid in left:
            worker = self._by_pid.get(pid)
            if worker is not None and not process.is_exiting(pid):
                worker.signals_sent.append((number, now))
            send(pid, number)
        self._signalled.update(left)
        if number == signal.SIGKILL:
            self.killed.update(left)
        return left

    def _reaped(self, pid: int, ended: Ended) -> None:
        self.killed.discard(pid)
        worker = self._by_pid.get(pid)
        if worker is None:
            if len(self._unclaimed) >= _UNCLAIMED_KEPT:
                self._unclaimed.pop(next(iter(self._unclaimed)))
            self._unclaimed[pid] = ended
        elif worker.code is None:
            self._ended(worker, ended)

    def _ended(self, worker: Worker, ended: Ended) -> None:
        worker.code, worker.exited_ns = ended.code, ended.at_ns
        worker.peak_bytes, worker.dumped_core = ended.peak_bytes, ended.dumped_core
        self._on_exit(worker)


def below_us(spare: set[int]) -> list[int]:
    """All descendants of this process but ``spare``, which are children of it, and theirs."""
    spared = {(pid, start) for pid in spare if (start := process.start_time(pid)) is not None}
    return process.descendants(os.getpid(), spared)


def send(pid: int, number: int) -> None:
    """Signal a descendant that is not necessarily our child: its pid may be stale by now."""
    try:
        pidfd = process.open_pidfd(pid)
        if pidfd is None:
            return
        try:
            if number != signal.SIGKILL:
                process.signal_pidfd(pidfd, signal.SIGCONT)
            process.signal_pidfd(pidfd, number)
        finally:
            os.close(pidfd)
    except PermissionError:
        pass  # it has changed its user: it is reported as unkillable


class Tree:
    """Ends everything that belongs to a round.

    Args:
        workers: they send the signals.
        kept: returns the processes that the agent keeps between rounds.
        empty: called once when nothing is left after `signal`.
        spare: called before a signal with all that it would go to; what it adds to ``kept`` lives.
    """

    def __init__(
        self,
        workers: Workers,
        kept: Callable[[], set[int]],
        empty: Callable[[], None],
        spare: Callable[[tuple[int, ...]], None] = lambda _: None,
    ) -> None:
        self._workers = workers
        self._kept = kept
        self._empty = empty
        self._spare = spare
        self._awaited = 0  # the signal that was sent to all

    def signal(self, number: int) -> None:
        """Send ``number`` to all, and have ``empty`` called when they have ended."""
        self._awaited = number
        self._spare(self.left())
        self._workers.signal_tree(number, spare=self._kept())
        self.look()

    def look(self) -> None:
        """After every exit: is anything left? A process that has come since SIGKILL gets it too."""
        if not self._awaited or self._others_end_first():
            return
        if left := self.left():
            self._spare(left)
        if not left or not self.left():
            self._awaited = 0
            self._empty()
        elif self._awaited == signal.SIGKILL:
            self._workers.signal_tree(signal.SIGKILL, spare=self._kept())

    def end_orphans(self) -> None:
        """Kill all that is not below a rank that lives."""
        ranks = {worker.pid for worker in self._workers.all if worker.code is None}
        self._spare(tuple(below_us(self._kept() | ranks)))
        self._workers.signal_tree(signal.SIGKILL, spare=self._kept() | ranks)

    def left(self) -> tuple[int, ...]:
        """Pids of all that is left of the round."""
        return tuple(sorted(below_us(self._kept())))

    def forget(self) -> None:
        """Wait for no process that is left."""
        self._awaited = 0

    def _others_end_first(self) -> bool:
        """Whether a child has yet to end, after which all is looked at anyway.

        Looking at all processes of the machine is slow where there are thousands.
        """
        children = process.children() - self._kept()
        if self._awaited == signal.SIGKILL:
            return bool(children) and children <= self._workers.killed
        return bool(children)
