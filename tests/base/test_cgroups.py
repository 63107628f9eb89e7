"""The control groups of this process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.base.cgroups import cpu_quota, cpu_use, own_groups, usable_cpus

if TYPE_CHECKING:
    from pathlib import Path


def test_groups_of_both_versions(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("3:cpu,cpuacct:/a:b\n0::/\nnonsense\n4:pids:x\n")
    assert own_groups(tmp_path) == {"cpu": "/a:b", "cpuacct": "/a:b", "": "/"}


def test_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert own_groups(tmp_path) == {}


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"a/b/cpu.max": "max 100000"}, None),
        ({"a/b/cpu.max": "400000 100000"}, 4),
        ({"a/b/cpu.max": "150000 100000"}, 2),
        ({"a/b/cpu.max": "1000 100000"}, 1),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
        ({"a/b/cpu.max": "300000 100000", "a/cpu.max": "50000 10000"}, 3),
        ({"cpu.max": "100000 50000"}, 2),
        ({"a/b/cpu.max": "damaged"}, None),
        ({"a/b/cpu.max": "100000 0"}, None),
        ({}, None),
    ],
)
def test_cpu_quota_of_version_2(tmp_path: Path, files: dict[str, str], quota: int | None) -> None:
    assert cpu_quota(machine(tmp_path, "0::/a/b\n", files)) == quota


def test_cpu_time_that_groups_with_a_limit_have_used(tmp_path: Path) -> None:
    of_2 = {"a/cpu.max": "200000 100000", "a/cpu.stat": "usage_usec 2500000\nuser_usec 1"}
    of_1 = {f"cpu/b/{name}": text for name, text in QUOTA_OF_1.items()}
    one = machine(tmp_path / "2", "0::/a/b\n", {**of_2, "a/b/cpu.max": "max 100000"})
    assert cpu_use(one) == [(2, 2.5)]
    assert cpu_use(machine(tmp_path / "1", "3:cpu,cpuacct:/b\n", of_1)) == [(4, 1.5)]
    assert cpu_use(machine(tmp_path / "0", "0::/a\n", {})) == []


QUOTA_OF_1 = {
    "cpu.cfs_quota_us": "400000",
    "cpu.cfs_period_us": "100000",
    "cpuacct.usage": "1500000000",
}


@pytest.mark.parametrize(
    ("own", "above", "quota"),
    [
        (("-1", "100000"), ("-1", "100000"), None),
        (("400000", "100000"), ("-1", "100000"), 4),
        (("400000", "100000"), ("100000", "50000"), 2),
        (("100001", "100000"), ("-1", "100000"), 2),
    ],
)
def test_cpu_quota_of_version_1(
    tmp_path: Path, own: tuple[str, str], above: tuple[str, str], quota: int | None
) -> None:
    files = {}
    for group, values in (("a/b", own), ("a", above)):
        for name, value in zip(("quota", "period"), values, strict=True):
            files[f"cpu/{group}/cpu.cfs_{name}_us"] = value
    root = machine(tmp_path, "3:cpu,cpuacct:/a/b\n0::/\n", files)
    assert cpu_quota(root) == quota
    assert 1 <= usable_cpus(root) <= min(quota or 10**6, len(os.sched_getaffinity(0)))


def test_cpu_quota_of_a_container_that_is_not_shown_its_group(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}
    assert cpu_quota(machine(tmp_path, "3:cpu:/docker/1f\n", files)) == 3
