"""Processes that ranks have started, and that have something to do after their rank's end.

torch_shm_manager and multiprocessing's resource tracker remove the shared memory of processes that
have died, some seconds after them. Loggers write and upload what they still have. Such a process is
in a session of its own, or is a resource tracker; all others end with their round.

A helper gets no signal for a while, then SIGTERM, then SIGKILL, while the next round runs already.
The end of the job waits for it. Some write what they have only if their rank tells them so, as it
ends by an exception: a rank with a helper gets the time for that, see `node.StopRound`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.deadline import wait_for
from undaunted.base.text import one_line
from undaunted.fault_tolerance.agent.processes import send

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

UNDISTURBED_S = 5.0  # from the ranks' end to SIGTERM; torch_shm_manager takes 2 s
TERM_S = 2.0  # from SIGTERM to SIGKILL, unless --workers-stop-timeout says otherwise
_GONE_S = 2.0  # from SIGKILL to the end
# Open while a device is computed with; those who only watch devices leave them closed.
_DEVICES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/accel", "/dev/hl")
_LISTENS = "0A"  # a state in /proc/PID/net/tcp
# Programs of ours, which end with their rank: they are no helpers.
_OURS = (b"import undaunted; ", b"/undaunted/fault_tolerance/", b"/bin/undaunted\0", b"\0undaunted")


class Helpers:
    """The helpers of all rounds of an agent, which is a subreaper and reaps them.

    Args:
        term_s: how long they have from SIGTERM to SIGKILL.
    """

    def __init__(self, term_s: float = TERM_S) -> None:
        self._term_s = term_s
        self._helpers: dict[int, int] = {}  # pid -> when it started
        self._sessions: set[int | None] = set()  # theirs
        self._timers: list[asyncio.TimerHandle] = []
        self._gone = asyncio.Event()
        self._killed = False

    def adopt(self, below: Iterable[int], ranks: AbstractSet[int], *, restart: bool) -> None:
        """Give those time that are helpers.

        Args:
            below: descendants of this process that are to end.
            ranks: processes of ranks.
            restart: another round follows, which needs ports and devices.
        """
        if self._killed:
            return
        others = {*ranks, os.getsid(0)}  # their sessions hold no helpers
        found = {
            pid: start
            for pid in below
            if pid not in self._helpers
            and pid not in ranks
            and (start := process.start_time(pid)) is not None
            and _is_helper(pid, others)
            and not (restart and any(map(_holds, [pid, *process.descendants(pid)])))
        }
        if not found:
            return
        sessions = {_session(pid) for pid in found} - others
        self._helpers.update(found)
        self._sessions |= sessions
        self._gone.clear()
        loop = asyncio.get_running_loop()
        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        for delay_s, number in (
            (UNDISTURBED_S, signal.SIGTERM),
            (UNDISTURBED_S + self._term_s, signal.SIGKILL),
        ):
            timer = loop.call_later(delay_s, self._signal, found, sessions, number)
            self._timers.append(timer)

    def pids(self) -> set[int]:
        """Those that live."""
        return {pid for pid, start in self._helpers.items() if process.start_time(pid) == start}

    def look(self) -> None:
        """After the end of any child: forget who has ended; orphans of a helper take its place."""
        if not self._helpers:
            return
        alive = self.pids()
        if len(alive) < len(self._helpers):
            self._helpers = {pid: self._helpers[pid] for pid in alive}
            self._helpers.update(_members(self._sessions))
        if not self._helpers:
            self._gone.set()

    def kill(self) -> None:
        """End them now, and give nobody time from now on."""
        self._killed = True
        self._signal(self._helpers, self._sessions, signal.SIGKILL)

    async def wait(self) -> str:
        """Wait until all have ended, as long as they have at most; return who has not, in words."""
        self.look()
        if self._helpers:
            with contextlib.suppress(TimeoutError):
                await wait_for(self._gone.wait(), UNDISTURBED_S + self._term_s + _GONE_S)
        stats = [process.read_stat(pid) for pid in sorted(self.pids())]
        left = [f"{stat.comm} (pid {stat.pid})" for stat in stats if stat and stat.state != "Z"]
        return f"not ended, though SIGKILL was sent: {one_line(', '.join(left))}" if left else ""

    def close(self) -> None:
        """Stop the clocks; the caller ends what is left."""
        for timer in self._timers:
            timer.cancel()

    def _signal(
        self, helpers: Mapping[int, int], sessions: AbstractSet[int | None], number: int
    ) -> None:
        """Signal these helpers, and all that they and processes of their sessions have started."""
        alive = {pid for pid, start in helpers.items() if process.start_time(pid) == start}
        alive.update(_members(sessions))
        below = {child for pid in alive for child in process.descendants(pid)}
        for pid in alive | below:
            send(pid, number)


def with_helpers(ranks: Iterable[int]) -> set[int]:
    """Return those of these processes that have started a helper in a session of its own.

    Left out are those that compute on a device: there they wait for a peer that is gone, and hear
    nothing of its end.
    """
    return {rank for rank in ranks if _has_helper(rank) and not _computes_on_device(rank)}


def _has_helper(rank: int) -> bool:
    others = {_session(rank), os.getsid(0)}
    return any(
        _session(child) not in {*others, None} and _is_helper(child, others)
        for child in process.children(rank)
    )


def _members(sessions: AbstractSet[int | None]) -> dict[int, int]:
    """Return processes below this one of these sessions, with the time of their start."""
    found = {}
    for pid in process.descendants(os.getpid()) if sessions else ():
        stat = process.read_stat(pid)
        if stat is not None and stat.state != "Z" and _session(pid) in sessions:
            found[pid] = stat.start_time
    return found


def _is_helper(pid: int, others: AbstractSet[int | None]) -> bool:
    """Whether a process is no part of these sessions, or is a resource tracker."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if any(word in command for word in _OURS):
            return False
        return _session(pid) not in {*others, None} or b".resource_tracker" in command
    return False


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def _holds(pid: int) -> bool:
    """Whether a process uses a device, or listens at a port that somebody chose.

    The next round may need it. Ports that the kernel chose are left out: torch_shm_manager inherits
    those of gloo.
    """
    files = _open_files(pid)
    sockets = {file[len("socket:[") : -1] for file in files if file.startswith("socket:[")}
    return _computes_on_device(pid) or (bool(sockets) and not sockets.isdisjoint(_listening(pid)))


def _computes_on_device(pid: int) -> bool:
    return any(file.startswith(_DEVICES) for file in _open_files(pid))


def _open_files(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def _listening(pid: int) -> set[str]:
    """Return the inodes of the sockets that listen at a chosen port where this process is."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        first, last = map(
            int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("utf-8").split()
        )
        for name in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{name}").read_text("utf-8").splitlines()[1:]:
                words = line.split()
                port = int(words[1].rpartition(":")[2], 16)
                if words[3] == _LISTENS and not first <= port <= last:
                    found.add(words[9])
    return found
