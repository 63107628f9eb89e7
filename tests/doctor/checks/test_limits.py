from __future__ import annotations

from tests.doctor.checks.saying import said, wanting
from undaunted.base.sizes import GIB, MIB
from undaunted.doctor.checks import limits
from undaunted.doctor.facts import Limit


def test_open_files() -> None:
    few = {"nofile": Limit(1024, 524288)}
    found = [("L03", "warn", "ulimit -n is 1024 (up to 524288 allowed)")]
    assert said(limits, limits=few) == found
    assert said(limits, limits={"nofile": Limit(1024, None)})[0][2].endswith("unlimited allowed)")
    assert said(limits, limits={"nofile": Limit(20000, 20000)})[0][1] == "info"
    assert said(limits, limits={"nofile": Limit(65536, 65536)}) == []
    assert said(limits, limits={"nofile": Limit(None, None)}) == []


def test_locked_memory_only_with_rdma() -> None:
    small = {"memlock": Limit(8 * MIB, 8 * MIB)}
    assert said(limits, limits=small) == []
    assert said(limits, limits=small, rdma=("mlx5_0",))[0][:2] == ("L02", "fail")
    assert said(limits, wanting("rdma"), limits=small)[0][:2] == ("L02", "fail")
    large = {"memlock": Limit(64 * GIB, None)}
    assert said(limits, limits=large, rdma=("mlx5_0",))[0][:2] == ("L02", "warn")
    assert said(limits, limits={"memlock": Limit(None, None)}, rdma=("mlx5_0",)) == []


def test_stack_and_limits_that_slurm_hands_on() -> None:
    unlimited = {"stack": Limit(None, None)}
    assert said(limits, limits=unlimited)[0][:2] == ("L05", "info")
    assert said(limits, wanting("nvl72"), limits=unlimited)[0][:2] == ("L05", "warn")
    assert said(limits, limits={"stack": Limit(8 * MIB, None)}) == []
    few = {"nofile": Limit(1024, 524288)}
    handed = said(limits, limits=few, environ={"SLURM_RLIMIT_NOFILE": "1024"})
    assert [row[0] for row in handed] == ["L03", "L06"]
    other = said(limits, limits=few, environ={"SLURM_RLIMIT_NOFILE": "garbage"})
    assert [row[0] for row in other] == ["L03"]
