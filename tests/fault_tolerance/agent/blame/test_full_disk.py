from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

from tests.fault_tolerance.agent.round.test_environment import CONFIG
from undaunted.fault_tolerance.agent.blame import full_disk


def config(stdout: int):
    return msgspec.structs.replace(CONFIG, run_dir="/run", log_dir="/logs", stdout=[stdout])


@pytest.mark.parametrize(
    ("free", "files", "is_full"),
    [(0, 9, True), (15, 9, True), (16, 9, False), (100, 0, True)],
)
def test_a_full_log_directory_is_named(monkeypatch, free, files, is_full):
    def statvfs(path):
        room = SimpleNamespace(f_bavail=free, f_frsize=4096, f_files=10, f_favail=files)
        plenty = SimpleNamespace(f_bavail=1000, f_frsize=4096, f_files=0, f_favail=0)
        return room if path == "/logs" else plenty

    monkeypatch.setattr(os, "statvfs", statvfs)
    expected = "; /logs is full: make room, or choose --log-dir" if is_full else ""
    assert full_disk.hint(config(stdout=3)) == expected
    assert full_disk.hint(config(stdout=0)) == "", "nothing is written there"


def test_what_cannot_be_seen_is_not_full(monkeypatch):
    def statvfs(path):
        raise OSError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert full_disk.hint(config(stdout=3)) == ""
