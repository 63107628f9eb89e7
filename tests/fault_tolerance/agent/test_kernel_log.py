"""What the kernel has logged since a round began; the log is a pipe, which has no end either."""

from __future__ import annotations

import os
import time
from signal import SIGILL, SIGKILL, SIGSEGV, SIGTERM
from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.agent import kernel_log
from undaunted.fault_tolerance.agent.kernel_log import Death, KernelLog, loaders_killed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

XID = b"NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
OOM = b"Memory cgroup out of memory: Killed process 4711 (python) total-vm:98304kB"

SEGFAULT = b"python[4711]: segfault at 0 ip 00007f rsp 00007f error 4 in libnccl.so.2"


class Kernel:
    """Gives out records as /dev/kmsg does: one for each read, and no wait for the next one."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.touch()
        self.path = path
        self.records: list[bytes | OSError] = []
        self.next = 0
        self.opened: list[KernelLog] = []
        monkeypatch.setattr(kernel_log.os, "read", self._read)
        monkeypatch.setattr(kernel_log.os, "lseek", self._seek)

    def logs(self, text: bytes, level: int = 6) -> None:
        after_us = round(time.monotonic() * 1e6)
        self.records.append(b"%d,%d,%d,-;%s\n" % (level, len(self.records), after_us, text))

    def _seek(self, fd: int, place: int, whence: int) -> int:
        assert (place, whence) == (0, os.SEEK_END)
        self.next = len(self.records)
        return 0

    def _read(self, fd: int, size: int) -> bytes:
        if self.next == len(self.records):
            raise BlockingIOError
        record = self.records[self.next]
        self.next += 1
        if isinstance(record, OSError):
            raise record
        return record


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    made = Kernel(tmp_path / "kmsg", monkeypatch)
    yield made
    for log in made.opened:
        log.close()


def begun(kernel: Kernel) -> KernelLog:
    log = KernelLog(str(kernel.path))
    log.begin()
    kernel.opened.append(log)
    return log


def texts(log: KernelLog, deaths: Sequence[Death] = ()) -> list[str]:
    return [each.text for each in log.read(deaths)]


def test_what_was_logged_since_the_round_began_is_told_once(kernel: Kernel) -> None:
    kernel.logs(b"EXT4-fs error (device sda1): an old one", level=2)
    log = begun(kernel)
    kernel.logs(b"eth0: renamed from veth1")
    kernel.logs(XID, level=4)
    (record,) = log.read([])
    assert record.text == XID.decode()
    assert record.t == pytest.approx(time.time(), abs=60)
    assert texts(log) == []


@pytest.mark.parametrize(
    "text",
    [
        XID,
        b"nvme nvme0: I/O 123 QID 4 timeout, aborting",
        b"EXT4-fs warning (device dm-0): ext4_end_bio:343: I/O error 10 writing to inode 12",
        b'XFS (nvme1n1): metadata I/O error in "xfs_da_read_buf"',
        b"mlx5_core 0000:3b:00.0 ens1f0: Link down",
        b"mce: [Hardware Error]: Machine check events logged",
        b"INFO: task python:4711 blocked for more than 120 seconds.",
    ],
)
def test_lines_that_explain_failures_are_kept_whatever_their_level(
    kernel: Kernel, text: bytes
) -> None:
    log = begun(kernel)
    kernel.logs(text)
    assert len(texts(log)) == 1


@pytest.fixture(params=["initial", "container"])
def comparable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    number = {"initial": 4026531836, "container": 4026532200}[request.param]
    monkeypatch.setattr(kernel_log.os, "readlink", lambda path: f"pid:[{number}]")
    return request.param == "initial"


@pytest.mark.parametrize(
    ("text", "of_its_kind", "of_another"), [(OOM, SIGKILL, SIGSEGV), (SEGFAULT, SIGSEGV, SIGKILL)]
)
def test_the_end_of_a_process_counts_if_one_of_ours_ended_so(
    kernel: Kernel, comparable: bool, text: bytes, of_its_kind: int, of_another: int
) -> None:
    for deaths, counts in (
        ([], False),
        ([Death(4711, of_another)], False),
        ([Death(4711, SIGTERM)], False),
        ([Death(4711, of_its_kind)], True),
        ([Death(4712, of_another), Death(4711, of_its_kind)], True),
    ):
        log = begun(kernel)
        kernel.logs(text, level=3)
        assert len(texts(log, deaths)) == counts, deaths


def test_an_out_of_memory_kill_of_a_stranger(kernel: Kernel, comparable: bool) -> None:
    log = begun(kernel)
    kernel.logs(OOM, level=3)
    kernel.logs(b"oom-kill:constraint=CONSTRAINT_NONE,task=python,pid=4711,uid=0")
    kernel.logs(XID, level=3)
    said = texts(log, [Death(4712, SIGKILL)])
    assert said == [XID.decode()] if comparable else len(said) == 3


def test_a_crash_of_a_stranger_beside_ours(kernel: Kernel, comparable: bool) -> None:
    log = begun(kernel)
    kernel.logs(SEGFAULT.replace(b"4711", b"99"))
    kernel.logs(SEGFAULT)
    said = texts(log, [Death(4711, SIGSEGV)])
    assert said == [SEGFAULT.decode()] if comparable else len(said) == 2


def test_a_crash_of_a_thread_has_the_threads_number(kernel: Kernel, comparable: bool) -> None:
    log = begun(kernel)
    kernel.logs(SEGFAULT)
    assert texts(log, [Death(4700, SIGSEGV)]) == [SEGFAULT.decode()]


@pytest.mark.parametrize(
    ("lines", "death", "kept"),
    [
        ([SEGFAULT], Death(4800, SIGSEGV), 0),  # a thread begins after its process
        ([SEGFAULT], Death(4700, SIGILL), 0),
        ([SEGFAULT, SEGFAULT.replace(b"4711", b"4720")], Death(4700, SIGSEGV), 0),  # whose?
        ([SEGFAULT, SEGFAULT.replace(b"4711", b"99")], Death(4700, SIGSEGV), 1),
        ([b"traps: python[4711] trap invalid opcode ip:7f sp:7f error:0"], Death(4700, SIGILL), 1),
    ],
)
def test_a_crash_that_need_not_be_of_our_thread(
    kernel: Kernel, comparable: bool, lines: list[bytes], death: Death, kept: int
) -> None:
    log = begun(kernel)
    for line in lines:
        kernel.logs(line)
    if comparable:
        assert len(texts(log, [death])) == kept


def test_the_loaders_of_a_rank() -> None:
    said = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault. "
    assert loaders_killed(said) == [Death(4711, SIGSEGV)]
    assert loaders_killed(said.replace("Segmentation fault", "Killed")) == [Death(4711, SIGKILL)]
    assert loaders_killed("DataLoader worker (pid 1) is killed by signal: nothing known.") == []


def test_what_users_write_into_the_log_is_not_of_the_kernel(kernel: Kernel) -> None:
    log = begun(kernel)
    kernel.logs(XID, level=3 | 1 << 3)
    assert texts(log) == []


def test_records_that_were_overwritten_or_make_no_sense(kernel: Kernel) -> None:
    log = begun(kernel)
    kernel.records += [BrokenPipeError(), b"", b";", b"3,x,5,-;text", b"\xff" * 50]
    kernel.logs(XID)
    assert texts(log) in ([], [XID.decode()])
    log.begin()
    kernel.records.append(BrokenPipeError())
    kernel.logs(b"I/O error \x1b[31m\xff", level=3)
    (text,) = texts(log)
    assert text.isprintable()


def test_a_flood_is_bounded(kernel: Kernel) -> None:
    log = begun(kernel)
    for _ in range(5_000):
        kernel.logs(XID)
    assert len(texts(log)) == 256


def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    log.begin()
    assert log.read([Death(1, SIGKILL)]) == []
    log.close()
