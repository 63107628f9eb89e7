"""The control groups of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.cgroups import own_groups

if TYPE_CHECKING:
    from pathlib import Path


def test_groups_of_both_versions(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("3:cpu,cpuacct:/a:b\n0::/\nnonsense\n4:pids:x\n")
    assert own_groups(tmp_path) == {"cpu": "/a:b", "cpuacct": "/a:b", "": "/"}


def test_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert own_groups(tmp_path) == {}
