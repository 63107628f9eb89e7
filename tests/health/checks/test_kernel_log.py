from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import kernel_log
from undaunted.health.checks.kernel_log import KernelLog, fatal

if TYPE_CHECKING:
    from tests.health.checks.conftest import Tree


def record(number: int, text: str) -> bytes:
    return f"4,{number},{number * 10},-;{text}\n SUBSYSTEM=pci\n".encode()


def xid(number: int, kind: int) -> bytes:
    return record(number, f"NVRM: Xid (PCI:0000:3b:00): {kind}, pid=7, name=python, so it is")


class Log:
    """Stands in for /dev/kmsg: a record for each read, as the kernel does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[bytes | OSError] = []
        self._left: list[bytes | OSError] = []
        monkeypatch.setattr(kernel_log.os, "open", self.open)
        monkeypatch.setattr(kernel_log.os, "read", self.read)
        monkeypatch.setattr(kernel_log, "close_quietly", lambda fd: None)

    def open(self, *_: object) -> int:
        self._left = list(self.records)
        return 99

    def read(self, fd: int, most: int) -> bytes:
        assert (fd, most) == (99, 8192)
        if not self._left:
            raise BlockingIOError
        one = self._left.pop(0)
        if isinstance(one, OSError):
            raise one
        return one


def test_only_what_comes_after_the_first_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    log, seen, check = Log(monkeypatch), {}, KernelLog("/")
    log.records = [record(5, "usb 1-1"), xid(6, 79)]
    assert check.run(seen) is None
    assert check.run(seen) is None
    log.records += [BrokenPipeError(), record(7, "usb"), xid(8, 31), xid(9, 79), xid(10, 79)]
    found = check.run(seen)
    assert found == Finding("GPU at 0000:3b:00: Xid 79, it has fallen off the bus")
    assert seen == {"next": 11}
    assert check.run(seen) is None, "told once"


def test_an_empty_log_has_been_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    log, seen, check = Log(monkeypatch), {}, KernelLog("/")
    assert check.run(seen) is None
    log.records = [xid(0, 48)]
    assert check.run(seen) is not None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (xid(1, 79), "Xid 79"),
        (xid(1, 13), ""),
        (xid(1, 9999), ""),
        (b"", ""),
        (b"\xff\xfe NVRM: Xid (PCI", ""),
        (record(1, "NVRM: Xid (PCI:0000:65:00.0): 95, uncontained"), "0000:65:00.0: Xid 95"),
    ],
)
def test_what_a_record_says(line: bytes, says: str) -> None:
    assert says in fatal(line)
    assert bool(fatal(line)) is bool(says)


def test_a_log_that_cannot_be_read_says_nothing(tree: Tree) -> None:
    assert kernel_log.checks(Settings(root=str(tree.root))) == []
    (check,) = kernel_log.checks(Settings(root=str(tree.root), xid=True))
    found = check.run({})
    assert found is not None
    assert not found.failed


def test_a_log_that_ends(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    path = tree.write("dev/kmsg", "")
    check = KernelLog(str(tree.root))
    assert check.run(seen) is None
    path.write_bytes(xid(0, 79))
    assert check.run(seen) is not None
