"""A small disk of a run's own."""

from __future__ import annotations

import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.nemesis import small_disk, stage
from undaunted.chaos.nemesis.helper import NotPossibleError
from undaunted.chaos.nemesis.small_disk import SmallDisk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 1 << 20


@pytest.fixture
def place(tmp_path: Path) -> Path:
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


@pytest.fixture
def disk(place: Path) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(place, SIZE)
    except NotPossibleError as error:
        pytest.skip(str(error))
    yield disk
    disk.close()


def sh(disk: SmallDisk, command: str) -> str:
    words = stage.command(os.getpid(), disk.namespaces, ["/bin/sh", "-c", command])
    done = subprocess.run(
        words, pass_fds=disk.namespaces, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


def test_only_those_inside_see_it(disk: SmallDisk, place: Path) -> None:
    sh(disk, f"echo hello > {place}/file")

    assert (disk.directory / "file").read_text() == "hello\n"
    assert list(place.iterdir()) == []
    assert sh(disk, f"cat {place}/file") == "hello\n"


def test_a_process_inside_starts_where_it_would_outside(disk: SmallDisk) -> None:
    assert sh(disk, "pwd").strip() == os.getcwd()  # noqa: PTH109


def test_full_and_empty_again(disk: SmallDisk) -> None:
    taken = disk.fill()

    assert SIZE // 2 < taken <= SIZE
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the number is looked at
        (disk.directory / "file").write_bytes(bytes(10_000))
    assert raised.value.errno == errno.ENOSPC

    disk.empty()
    (disk.directory / "file").write_bytes(bytes(10_000))
    disk.empty()  # once more does no harm


def test_what_is_left_can_be_kept(disk: SmallDisk, place: Path) -> None:
    (disk.directory / "a").mkdir()
    (disk.directory / "a" / "b").write_text("x")
    disk.fill()

    disk.copy_to(place)

    assert [path.name for path in place.iterdir()] == ["a"]
    assert (place / "a" / "b").read_text() == "x"


def test_a_place_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError):
        SmallDisk(tmp_path / "missing", SIZE)
    assert small_disk.not_possible(tmp_path / "missing", SIZE)


def test_more_than_memory(place: Path) -> None:
    assert "--disk-size" in small_disk.not_possible(place, 1 << 60)
