from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

from tests.fault_tolerance.agent.round.test_environment import CONFIG
from undaunted.attribution.crash import RankFailure
from undaunted.fault_tolerance.agent.blame import full_disk
from undaunted.progress.snapshot import ErrorRecord


def config(stdout: int):
    return msgspec.structs.replace(CONFIG, run_dir="/run", log_dir="/logs", stdout=[stdout])


def failed(kind="", message="", **fields):
    error = ErrorRecord(1, kind, message, f"{kind}: {message}", 7) if kind else None
    return RankFailure(rank=1, local_rank=1, pid=7, at_ns=1, error=error, **fields)


SILENT = failed(exit_code=1)
TORCH = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"


@pytest.fixture
def disks(monkeypatch, tmp_path):
    """Sets how many blocks are free where: ``disks({"/ckpt": 0})``; elsewhere there are plenty."""
    table = tmp_path / "mounts"
    table.write_text(
        "proc /proc proc rw,nosuid 0 0\nnone / overlay rw 0 0\nbroken\n"
        "/dev/sdb /ckpt\\040one xfs rw,noatime 0 0\n/dev/sdc /iso iso9660 ro 0 0\n"
    )
    monkeypatch.setattr(full_disk, "_MOUNTS", str(table))
    free, files = {}, {}

    def statvfs(path):
        blocks = 0 if path == "/proc" else 3072
        return SimpleNamespace(
            f_bavail=free.get(path, blocks),
            f_blocks=blocks,
            f_frsize=4096,
            f_files=10,
            f_favail=files.get(path, 9),
        )

    monkeypatch.setattr(os, "statvfs", statvfs)
    return free, files


@pytest.mark.parametrize(
    ("free", "files", "is_full"),
    [(0, 9, True), (15, 9, True), (16, 9, False), (100, 0, True)],
)
def test_a_full_log_directory_is_named(disks, free, files, is_full):
    disks[0]["/logs"], disks[1]["/logs"] = free, files
    expected = "; /logs is full: make room, or choose --log-dir" if is_full else ""
    assert full_disk.hint(config(stdout=3), SILENT) == expected
    assert full_disk.hint(config(stdout=0), SILENT) == "", "nothing is written there"


@pytest.mark.parametrize(
    "root",
    [
        failed(signal=9),
        failed("ValueError", "bad batch", exit_code=1),
    ],
)
def test_a_full_run_directory_is_named_only_where_it_may_be_the_cause(disks, root):
    disks[0]["/run"] = 0
    assert full_disk.hint(config(stdout=0), root) == ""
    assert "/run is full" in full_disk.hint(config(stdout=0), SILENT)


@pytest.mark.parametrize(
    "root",
    [
        failed("OSError", "[Errno 28] No space left on device: '/ckpt one/5.pt'", exit_code=1),
        failed("OSError", "[Errno 122] Disk quota exceeded", exit_code=1),
        failed("RuntimeError", TORCH, exit_code=1),
        failed(exit_code=1, last_lines="cp: error writing 'x': No space left on device"),
    ],
)
def test_a_full_disk_of_checkpoints_is_named_with_what_is_left(disks, root):
    disks[0]["/ckpt one"], disks[0]["/iso"] = 1, 0
    said = full_disk.hint(config(stdout=0), root)
    assert said.startswith("; no room is left on /ckpt one (0 of 12 MiB free): ")
    disks[0].clear()
    assert "a disk was full" in full_disk.hint(config(stdout=0), root)


def test_what_cannot_be_seen_is_not_full(monkeypatch):
    def statvfs(path):
        raise OSError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert full_disk.hint(config(stdout=3), SILENT) == ""
