"""Control groups: where one can be made, and that none is left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.nemesis.machines import MOUNT, machine, machine_of_version_1
from undaunted.chaos.nemesis import control_groups, stage
from undaunted.chaos.nemesis.control_groups import (
    Group,
    find_parent,
    find_parent_of_version_1,
)
from undaunted.chaos.nemesis.helper import NotPossibleError

BOTH = ("io", "memory")
# Makes a group, tells its directory, and waits to be killed.
OWNER = """
import sys, threading
from pathlib import Path
from undaunted.chaos.nemesis.control_groups import Group
print(Group(Path(sys.argv[1])).path, flush=True)
threading.Event().wait(300)
"""


def test_the_nearest_group_whose_children_have_the_controllers(tmp_path: Path) -> None:
    top = machine(
        tmp_path,
        own="/user.slice/user/session",
        top="cpu io memory",
        **{"user.slice": "io memory pids", "user.slice_user": "memory", "other": "io memory"},
    )

    assert find_parent(BOTH, tmp_path) == top / "user.slice"


def test_the_top_is_the_last_resort(tmp_path: Path) -> None:
    top = machine(tmp_path, top="io memory")

    assert find_parent(BOTH, tmp_path) == top


def test_a_container_whose_groups_are_a_part_of_all(tmp_path: Path) -> None:
    top = machine(tmp_path, own="/job", inside="/", job="io memory")
    (tmp_path / "proc/self/mountinfo").write_text(MOUNT.format(inside="/docker/1"))
    (tmp_path / "proc/self/cgroup").write_text("0::/docker/1/job\n")

    assert find_parent(BOTH, tmp_path) == top / "job"


def test_a_group_outside_of_what_is_seen(tmp_path: Path) -> None:
    top = machine(tmp_path, top="io memory")
    (tmp_path / "proc/self/cgroup").write_text("0::/../../elsewhere\n")

    assert find_parent(BOTH, tmp_path) == top


def test_no_version_2(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="mountinfo"):
        find_parent(BOTH, tmp_path)


def test_a_kernel_or_container_without_the_controller(tmp_path: Path) -> None:
    machine(tmp_path, has="cpu memory", top="cpu memory")

    with pytest.raises(NotPossibleError, match=r"cgroup\.controllers lacks io:"):
        find_parent(BOTH, tmp_path)


def test_a_controller_that_no_child_has(tmp_path: Path) -> None:
    machine(tmp_path, top="cpu memory")

    with pytest.raises(NotPossibleError, match=r"subtree_control lacks io: .* echo \+io > "):
        find_parent(BOTH, tmp_path)


@pytest.mark.parametrize(
    ("own", "inside", "expected"),
    [("/job/of/us", "/", "job/of/us"), ("/docker/1/job", "/docker/1", "job"), ("/", "/", "")],
)
def test_our_group_of_a_controller_of_version_1(
    tmp_path: Path, own: str, inside: str, expected: str
) -> None:
    top = machine_of_version_1(tmp_path, own=own, inside=inside)

    assert find_parent_of_version_1("blkio", tmp_path) == top / expected
    assert find_parent_of_version_1("memory", tmp_path) is None


def test_a_group_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="No such file"):
        Group(tmp_path / "missing")


def test_a_group_that_cannot_be_locked_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(control_groups.fcntl, "flock", refuse)
    with pytest.raises(NotPossibleError, match="No locks available"):
        Group(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_that_the_kernel_refuses(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.path.rmdir()

    with pytest.raises(NotPossibleError, match=r"io\.max: No such file"):
        group.write("io.max", "8:0 wbps=1")

    group.close()  # nor does its end raise


def test_what_a_killed_owner_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    left = Path(owner.stdout.readline().strip())
    control_groups.remove_left_over(tmp_path)
    assert left.is_dir()  # its owner lives

    owner.kill()
    owner.communicate(timeout=60)
    control_groups.remove_left_over(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_with_a_group_ends_what_is_in_it() -> None:
    mounted = control_groups.mount_of_version_2(Path("/proc/self/mountinfo").read_text())
    if mounted is None:
        pytest.skip("no control groups of version 2 are mounted")
    try:
        group = Group(Path(mounted[1]))
    except NotPossibleError as error:
        pytest.skip(str(error))
    if not (group.path / "cgroup.kill").exists():
        group.close()
        pytest.skip("this kernel has no cgroup.kill")
    words = stage.command(
        os.getpid(), (), ["/bin/sh", "-c", "echo here; exec sleep 300"], group.path
    )
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    assert f"/{group.path.name}" in Path(f"/proc/{child.pid}/cgroup").read_text()

    group.close()

    assert not group.path.exists()
    child.communicate(timeout=60)


def test_with_a_group_of_version_1_what_is_in_it_moves_back() -> None:
    parent = find_parent_of_version_1("blkio")
    if parent is None:
        pytest.skip("no control groups of version 1 with blkio are mounted")
    try:
        group = Group(parent)
    except NotPossibleError as error:
        pytest.skip(str(error))
    child = subprocess.Popen(
        stage.command(os.getpid(), (), ["/bin/sh", "-c", "echo; exec cat"], group.path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"\n"
    before = Path(f"/proc/{child.pid}/cgroup").read_text()

    group.close()

    assert not group.path.exists()
    assert group.path.name in before
    assert group.path.name not in Path(f"/proc/{child.pid}/cgroup").read_text()
    child.communicate(timeout=60)
