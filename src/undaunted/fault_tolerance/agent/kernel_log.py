"""The lines of this node's kernel since a round began, where this user may read them.

The log is opened at its end when a round begins, and read when the round has failed, so that no
clock has to be compared. Only errors are kept, and lines that explain failures of jobs. The log is
of the whole machine: a line about the death of a process counts only if it fits a death of ours.
"""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PATH = "/dev/kmsg"
_RECORD = 8192  # bytes, as much as the kernel gives at once
_MOST_READ = 1 << 14  # records, which take some 30 ms
_MOST_KEPT = 256
_LONGEST = 500  # of a line
_ERROR = 3  # level of the kernel; less is worse
_TELLS = re.compile(
    rb"NVRM: |nvidia-nvswitch.*SXid|amdgpu.*(?:GPU reset|timeout|[Rr]as)"
    rb"|mce: |[Hh]ardware [Ee]rror|EDAC |PCIe Bus Error|AER: "
    rb"|EXT4-fs (?:error|warning)|XFS \(|BTRFS (?:error|critical)|filesystem read-only"
    rb"|I/O error|nvme\d* ?.*(?:timeout|controller is down|reset)|LustreError|Lustre: .*[Ll]ost"
    rb"|nfs: server .* not responding|ceph: .*(?:hung|lost)"
    rb"|[Ll]ink (?:is )?[Dd]own|link_layer.*down|mlx5_core.*(?:error|health|timeout)"
    rb"|blocked for more than \d|soft lockup|rcu.*stall"
)
_OUT_OF_MEMORY = re.compile(rb"[Oo]ut of memory|oom-kill|oom_reaper|Memory cgroup")
_CRASH = re.compile(rb"segfault at|general protection|traps: |unhandled (?:exception|signal)")
_INVALID_MEMORY = re.compile(rb"segfault at|general protection")
_KILLED = re.compile(rb"process (\d{1,10})\b|\bpid=(\d{1,10})\b")
_CRASHED = re.compile(rb"\[(\d{1,10})\]")  # of a thread
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP})
_OF_MEMORY = frozenset({signal.SIGSEGV, signal.SIGBUS})
_PID_NAMESPACE = "/proc/self/ns/pid"
_OF_THE_MACHINE = "pid:[4026531836]"  # where process numbers are those of the kernel
# What torch raises in a rank when a process that loads data has died.
_LOADER = re.compile(r"\(pid (\d{1,10})\) is killed by signal: ([^.\n]+)\.")


class Death(NamedTuple):
    """A rank, or a process below it, that a signal has ended, and not one of ours."""

    pid: int
    signal: int


class Record(NamedTuple):
    """One line of the kernel's log; when it was written, seconds since 1970."""

    t: float
    text: str


class KernelLog:
    """Reads the log of one round after the other."""

    def __init__(self, path: str = _PATH) -> None:
        self._path = path
        self._fd = -1

    def begin(self) -> None:
        """Leave out all that was logged until now."""
        self.close()
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:  # it may not be read, or there is none
            self.close()

    def read(self, deaths: Sequence[Death]) -> list[Record]:
        """Return what was logged since, and was not returned before: at most the first 256 lines.

        Nothing in it waits.

        Args:
            deaths: of this round.
        """
        lines: list[_Line] = []
        ahead_s = time.time() - time.monotonic()  # the kernel's clock is about the monotonic one
        for _ in range(_MOST_READ if self._fd >= 0 else 0):
            try:
                record = os.read(self._fd, _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError:  # BlockingIOError: that was all
                break
            if not record:
                break
            if (line := _line(record, ahead_s)) is not None and _may_be_ours(line, deaths):
                lines.append(line)
        return [line.record for line in _ours(lines, deaths)][:_MOST_KEPT]

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def loaders_killed(text: str) -> list[Death]:
    """Return the processes that load data of which a rank has said what has killed them."""
    names = {signal.strsignal(number): number for number in signal.valid_signals()}
    found = ((int(pid), names.get(name)) for pid, name in _LOADER.findall(text))
    return [Death(pid, number) for pid, number in found if number is not None]


class _Line(NamedTuple):
    """A record; which signals end a process as it says, and the number of that process.

    Without signals it is about the machine. Of a crash the number is that of the thread.
    """

    record: Record
    signals: frozenset[int] = frozenset()
    number: int | None = None


def _line(data: bytes, ahead_s: float) -> _Line | None:
    """Read ``3,1234,5678901,-;text``, of which more lines may follow; None = it says nothing."""
    head, _, rest = data.partition(b";")
    fields = head.split(b",")
    text = rest.partition(b"\n")[0]
    if len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
        return None
    from_kernel, level = int(fields[0]) >> 3 == 0, int(fields[0]) & 7
    if not from_kernel or not text:
        return None
    line = one_line(text.decode("utf-8", "replace"), longest=_LONGEST)
    record = Record(int(fields[2]) / 1e6 + ahead_s, line)
    if _OUT_OF_MEMORY.search(text):
        return _Line(record, frozenset({signal.SIGKILL}), _number(_KILLED, text))
    if _CRASH.search(text):
        signals = _OF_MEMORY if _INVALID_MEMORY.search(text) else _CRASHES
        return _Line(record, signals, _number(_CRASHED, text))
    return _Line(record) if level <= _ERROR or _TELLS.search(text) else None


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = pattern.search(text)
    return None if found is None else int(found[found.lastindex or 0])


def _may_be_ours(line: _Line, deaths: Iterable[Death]) -> bool:
    return not line.signals or any(death.signal in line.signals for death in deaths)


def _ours(lines: Sequence[_Line], deaths: Sequence[Death]) -> Sequence[_Line]:
    """Leave out lines about processes of others, where process numbers tell them apart."""
    if not _numbers_are_of_the_machine():
        return lines
    named = {line.number for line in lines if line.signals}
    ours = {death.pid for death in deaths if death.pid in named}
    # A thread has another number than its process; it is unknown afterwards.
    others = [death for death in deaths if death.signal in _CRASHES and death.pid not in ours]
    by_thread = [line for line in lines if line.number not in ours and _fits_thread(line, others)]
    if len(by_thread) > len(others):
        by_thread = []  # some are of strangers, and nothing tells which
    return [line for line in lines if not line.signals or line.number in ours or line in by_thread]


def _fits_thread(line: _Line, deaths: Iterable[Death]) -> bool:
    """Whether a crash may be that of a thread of ours: its number is later than the process's."""
    later = [death for death in deaths if line.number is None or line.number > death.pid]
    return line.signals <= _CRASHES and any(death.signal in line.signals for death in later)


def _numbers_are_of_the_machine() -> bool:
    try:
        return os.readlink(_PID_NAMESPACE) == _OF_THE_MACHINE
    except OSError:
        return False
