from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doctor.probe.tree import write_tree
from undaunted.base.cgroups import memory_left
from undaunted.doctor.facts import Cgroup
from undaunted.doctor.probes import of_cgroup

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "sys/fs/cgroup/job"


def test_version_2_the_tightest_limit_counts(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            f"{GROUP}/step/memory.max": "max\n",
            f"{GROUP}/step/pids.max": "max\n",
            f"{GROUP}/memory.max": "1000\n",
            f"{GROUP}/memory.current": "800\n",
            f"{GROUP}/memory.stat": "anon 500\ninactive_file 300\n",
            f"{GROUP}/memory.events": "low 0\noom 1\noom_kill 4\n",
            f"{GROUP}/pids.max": "100\n",
            f"{GROUP}/pids.current": "7\n",
            "sys/fs/cgroup/memory.max": "2000\n",
        },
    )
    assert of_cgroup(root) == Cgroup(
        memory_max=1000, memory_now=500, oom_kills=4, pids_max=100, pids_now=7
    )


def test_the_limit_that_leaves_least_counts_and_file_caches_are_left(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/job/step\n",
            f"{GROUP}/step/memory.max": "1000\n",
            f"{GROUP}/step/memory.current": "100\n",
            f"{GROUP}/memory.max": "2000\n",
            f"{GROUP}/memory.current": "1990\n",
            f"{GROUP}/memory.stat": "inactive_file 100\nactive_file 200\n",
        },
    )
    assert of_cgroup(root) == Cgroup(memory_max=2000, memory_now=1690)
    assert memory_left(root) == 310


def test_version_1(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {
            "proc/self/cgroup": "8:pids:/job\n4:memory:/job\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/job/memory.stat": "total_inactive_file 100\n",
            "sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/pids/job/pids.max": "50\n",
        },
    )
    found = Cgroup(memory_max=1000, memory_now=800, oom_kills=2, pids_max=50)
    assert of_cgroup(root) == found


def test_a_group_that_is_not_shown_inside_of_the_container(tmp_path: Path) -> None:
    root = write_tree(
        tmp_path,
        {"proc/self/cgroup": "0::/../../elsewhere\n", "sys/fs/cgroup/memory.max": "1000\n"},
    )
    assert of_cgroup(root).memory_max == 1000


@pytest.mark.parametrize("text", ["", "\0", "0:", "::::\n", "0::relative\n", "x\n" * 100])
def test_garbage(tmp_path: Path, text: str) -> None:
    root = write_tree(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/memory.max": "\xff"})
    assert of_cgroup(root) == Cgroup()


def test_nothing_at_all(tmp_path: Path) -> None:
    assert of_cgroup(tmp_path) == Cgroup()
