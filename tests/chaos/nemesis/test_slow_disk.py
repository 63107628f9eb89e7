"""A disk that can be made slow: which one it is, and what the kernel is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.nemesis.machines import disk, machine, machine_of_version_1
from undaunted.chaos.nemesis import slow_disk
from undaunted.chaos.nemesis.helper import NotPossibleError
from undaunted.chaos.nemesis.slow_disk import SlowDisk, device_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("partition", [True, False])
def test_limits_are_those_of_whole_disks(tmp_path: Path, partition: bool) -> None:
    disk(tmp_path, tmp_path, partition=partition)

    assert device_of(tmp_path, tmp_path) == "259:0"


def test_a_place_that_does_not_exist_yet(tmp_path: Path) -> None:
    disk(tmp_path, tmp_path, partition=False)

    assert device_of(tmp_path / "run" / "work", tmp_path) == "259:0"


def test_a_file_system_without_a_disk(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match=r"sys/dev/block/\d+:\d+"):
        device_of(tmp_path, tmp_path)


def test_slow_and_as_before(tmp_path: Path) -> None:
    disk(tmp_path, tmp_path, partition=True)
    top = machine(tmp_path, top="io memory")
    slow = SlowDisk(tmp_path, 65536, tmp_path)
    limits = slow.group / "io.max"

    assert slow.group.parent == top
    assert "259:0" in slow.slow()
    assert limits.read_text() == "259:0 wbps=65536 wiops=50"
    slow.lift()
    assert limits.read_text() == "259:0 wbps=max wiops=max"
    slow.close()


def test_slow_and_as_before_with_version_1(tmp_path: Path) -> None:
    disk(tmp_path, tmp_path, partition=True)
    top = machine_of_version_1(tmp_path, own="/job")
    slow = SlowDisk(tmp_path, 65536, tmp_path)

    def limits() -> list[str]:
        names = ("write_bps", "write_iops")
        return [(slow.group / f"blkio.throttle.{name}_device").read_text() for name in names]

    assert slow.group.parent == top / "job"
    assert "write_bps_device: 259:0 65536" in slow.slow()
    assert limits() == ["259:0 65536", "259:0 50"]
    slow.lift()
    assert limits() == ["259:0 0", "259:0 0"]
    slow.close()


def test_this_machine_allows_it_or_says_why_not(tmp_path: Path) -> None:
    reason = slow_disk.not_possible(tmp_path)

    assert reason == "" or "/" in reason  # a file is named
