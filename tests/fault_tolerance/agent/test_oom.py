from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.fault_tolerance.agent import oom

if TYPE_CHECKING:
    from pathlib import Path


def system(root: Path, **files: str) -> Path:
    """A /proc and /sys with these files; ``__`` in a name stands for a slash."""
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


EVENTS = "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n"


def test_version_2(tmp_path: Path) -> None:
    root = system(tmp_path, proc__self__cgroup="0::/job/step\n", proc__vmstat="oom_kill 99\n")
    assert oom.read(root) == 99
    (root / "sys/fs/cgroup/job/step").mkdir(parents=True)
    (root / "sys/fs/cgroup/job/step/memory.events").write_text(EVENTS)
    assert oom.read(root) == 3


def test_version_2_in_a_container_that_sees_its_group_at_the_top(tmp_path: Path) -> None:
    root = system(tmp_path, proc__self__cgroup="0::/../pod7\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.events").write_text(EVENTS)
    assert oom.read(root) == 3


def test_version_1(tmp_path: Path) -> None:
    groups = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"
    root = system(tmp_path, proc__self__cgroup=groups)
    (root / "sys/fs/cgroup/memory").mkdir(parents=True)
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    (root / "sys/fs/cgroup/memory/memory.oom_control").write_text(control)
    assert oom.read(root) == 2


@pytest.mark.parametrize("content", ["", "oom_kill x\n", "oom_kill -1\n", "xoom_kill 1\n"])
def test_unknown(tmp_path: Path, content: str) -> None:
    assert oom.read(tmp_path) is None
    assert oom.read(system(tmp_path, proc__vmstat=content)) is None


def test_this_system() -> None:
    count = oom.read()
    assert count is None or count >= 0
