from __future__ import annotations

from tests.doctor.checks.saying import said, wanting
from undaunted.base.sizes import GIB
from undaunted.doctor.checks import memory
from undaunted.doctor.facts import Cgroup, Limit


def test_memory_of_the_container() -> None:
    tight = Cgroup(memory_max=4 * GIB, memory_now=3 * GIB, oom_kills=2)
    found = said(memory, cgroup=tight)
    assert [row[:2] for row in found] == [("L10", "warn"), ("L10", "warn")]
    assert found[0][2] == "the container may use 4 GiB, 1 GiB more"
    assert "has killed 2 processes" in found[1][2]
    assert said(memory, cgroup=Cgroup(memory_max=64 * GIB, memory_now=None)) == []
    eight = wanting(nproc_per_node=8)
    assert said(memory, eight, cgroup=Cgroup(memory_max=12 * GIB))[0][0] == "L10"


def test_overcommit_scores_and_core_files() -> None:
    assert said(memory, settings={"vm.overcommit_memory": "2"})[0][:2] == ("L11", "warn")
    assert said(memory, settings={"vm.overcommit_memory": "0"}) == []
    assert said(memory, settings={"vm.overcommit_memory": "\0\0 2 2"}) == []
    assert said(memory, oom_score_adj=500)[0][:2] == ("L11", "info")
    cores = {"core": Limit(None, None)}
    assert said(memory, limits=cores)[0][:2] == ("L11", "info")
    piped = {"kernel.core_pattern": "|/usr/share/apport %p"}
    assert said(memory, limits=cores, settings=piped) == []
    assert said(memory, limits={"core": Limit(0, None)}) == []
