from __future__ import annotations

import os
import tempfile
import threading
from typing import TYPE_CHECKING

import pytest

from tests.doctor.probe.tree import write_tree
from undaunted.doctor import probes as file_systems
from undaunted.doctor.probes import file_system, mount_of

if TYPE_CHECKING:
    from pathlib import Path

MOUNTS = r"""
22 1 0:1 / / rw,relatime shared:1 - ext4 /dev/sda rw
23 22 0:2 / /data rw,noexec,nosuid shared:2 master:1 - nfs4 server:/data rw
24 22 0:3 / /data/with\040space rw - tmpfs tmpfs rw
25 22 0:4 / /data rw,exec - xfs /dev/sdb rw
garbage
26 22
""".lstrip()


@pytest.mark.parametrize(
    ("path", "kind", "options"),
    [
        ("/", "ext4", ("rw", "relatime")),
        ("/database", "ext4", ("rw", "relatime")),
        ("/data/a", "xfs", ("rw", "exec")),
        ("/data/with space/a", "tmpfs", ("rw",)),
    ],
)
def test_mounts(path: str, kind: str, options: tuple[str, ...]) -> None:
    assert mount_of(path, MOUNTS) == (kind, options)


@pytest.mark.parametrize("text", ["", "- -\n", "\0 - \n", " - ".join("abc")])
def test_mounts_that_cannot_be_read(text: str) -> None:
    assert mount_of("/", text) == ("", ())


def test_a_directory(tmp_path: Path) -> None:
    found = file_system(str(tmp_path), writable=True)
    assert found.problem == ""
    assert found.kind
    assert found.size
    assert found.free is not None
    without_proc = file_system(str(tmp_path), write_tree(tmp_path, {}))
    assert (without_proc.kind, without_proc.problem) == ("", "")


def test_what_is_not_there_or_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system(str(tmp_path / "none")).problem == "No such file or directory"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert file_system(str(tmp_path)).problem == ""
    assert file_system(str(tmp_path), writable=True).problem == "this user may not write there"


def test_a_server_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    back = threading.Event()
    real = os.statvfs

    def hanging(path: str) -> os.statvfs_result:
        back.wait(60)
        return real(path)

    monkeypatch.setattr(file_systems, "_ANSWER_S", 0.05)
    monkeypatch.setattr(os, "statvfs", hanging)
    before = set(threading.enumerate())
    assert file_system(str(tmp_path)).problem == "no answer within 0 s"
    back.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


def test_both_places_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = file_systems.of_file_systems()["file_systems"]
    assert found.keys() == {"shm", "tmp"}
    assert (found["tmp"].path, found["tmp"].problem) == (str(tmp_path), "")


def test_a_directory_that_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    found = file_systems.of_file_systems()["file_systems"]["tmp"]
    assert found.path == str(tmp_path / "none")
    assert found.problem.startswith("nothing can be written there, /")
