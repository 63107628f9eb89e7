"""What the kernel of this node has logged since a round began, where this user may read it.

The log is opened at its end when a round begins, and read when the round has failed, so that no
clock has to be compared. Only errors are kept, and lines that explain failures of jobs. The log is
of the whole machine: what it says of a process counts only if a rank was killed.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

from undaunted.base.text import one_line

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
# Process numbers in it are not those of a container: it may be about another one.
_OF_A_PROCESS = re.compile(
    rb"[Oo]ut of memory|oom-kill|oom_reaper|Memory cgroup|segfault at|general protection|traps: "
)


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

    def read(self, *, killed: bool) -> list[Record]:
        """Return what was logged since, and was not returned before: at most the first 256 lines.

        Nothing in it waits.

        Args:
            killed: a rank was killed by a signal, and not by us.
        """
        kept: list[Record] = []
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
            if len(kept) < _MOST_KEPT and (one := _record(record, ahead_s, killed=killed)):
                kept.append(one)
        return kept

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _record(data: bytes, ahead_s: float, *, killed: bool) -> Record | None:
    """Read ``3,1234,5678901,-;text``, of which more lines may follow; None = it says nothing."""
    head, _, rest = data.partition(b";")
    fields = head.split(b",")
    text = rest.partition(b"\n")[0]
    if len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
        return None
    from_kernel, level = int(fields[0]) >> 3 == 0, int(fields[0]) & 7
    tells = killed if _OF_A_PROCESS.search(text) else level <= _ERROR or _TELLS.search(text)
    if not from_kernel or not text or not tells:
        return None
    line = one_line(text.decode("utf-8", "replace"), longest=_LONGEST)
    return Record(int(fields[2]) / 1e6 + ahead_s, line)
