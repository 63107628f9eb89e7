"""Simulated faults of other tools, as fault plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.launcher import launched
from undaunted.fault_tolerance.simulated_faults import (
    GpuFailure,
    SimulatedFaultParams,
    fault_plan,
    injected,
    parse_gpu_failures,
    parse_simulated_fault_params,
    setup_simulated_fault,
)
from undaunted.faults.plan import FaultPlan

if TYPE_CHECKING:
    from pathlib import Path

PARAMS = st.builds(
    SimulatedFaultParams,
    fault_type=st.sampled_from(["rank_killed", "rank_hung", "random"]),
    base_delay=st.floats(0, 1e6),
    rand_delay=st.floats(0, 1e6),
    rank_to_fail=st.none() | st.integers(0, 1000),
)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, None),
        ("", None),
        ("rank_hung;1;30", SimulatedFaultParams("rank_hung", 30.0, rank_to_fail=1)),
        ("random;;2.5", SimulatedFaultParams("random", 2.5)),
        (" rank_killed ; 0 ; 0 ", SimulatedFaultParams("rank_killed", 0, rank_to_fail=0)),
        ({"fault_type": "random", "base_delay": 1, "rand_delay": 2},
         SimulatedFaultParams("random", 1, 2)),
        (SimulatedFaultParams("random", 1), SimulatedFaultParams("random", 1)),
    ],
)  # fmt: skip
def test_descriptions(given_: Any, expected: SimulatedFaultParams | None) -> None:
    assert parse_simulated_fault_params(given_) == expected


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("rank_hung", "KIND;RANK;DELAY"),
        ("rank_hung;one;3", "KIND;RANK;DELAY"),
        ("rank_lost;1;3", "choose one of rank_killed, rank_hung, random"),
        ("random;1;-3", "base_delay -3"),
        ("random;1;nan", "base_delay nan"),
        ("random;-1;3", "rank_to_fail -1"),
        ({"fault_type": "random"}, "give fault_type and base_delay"),
        ({"fault_type": "random", "base_delay": 1, "rank": 2}, "known: fault_type"),
    ],
)
def test_bad_descriptions(bad: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_simulated_fault_params(bad)


def test_plans() -> None:
    (killed,) = fault_plan(SimulatedFaultParams("rank_killed", 12, rank_to_fail=2)).faults
    assert (killed.kind, str(killed.rank), killed.after) == ("sigkill", "2", 12.0)
    assert killed.repeat, "in every round"
    (hung,) = fault_plan(SimulatedFaultParams("rank_hung", 1)).faults
    assert (hung.kind, hung.rank) == ("sigstop", "random")


@given(PARAMS, st.text(max_size=20))
def test_every_rank_chooses_alike(params: SimulatedFaultParams, seed: str) -> None:
    plan = fault_plan(params, seed)
    assert plan == fault_plan(params, seed)
    assert FaultPlan.parse(plan.to_env()) == plan
    failing = [rank for rank in range(1001) if plan.due(rank=rank, round_=3, world_size=8)]
    assert len(failing) == 1
    after = plan.faults[0].after
    assert after is not None
    assert params.base_delay - 0.001 <= after <= params.base_delay + params.rand_delay + 0.001


def test_chance_depends_on_the_seed() -> None:
    params = SimulatedFaultParams("random", 0, rand_delay=10)
    plans = [fault_plan(params, str(seed)) for seed in range(50)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {"sigkill", "sigstop"}
    assert len({plan.faults[0].after for plan in plans}) > 40
    victims = {r for p in plans for r in range(4) if p.due(rank=r, round_=0, world_size=4)}
    assert victims == {0, 1, 2, 3}


def test_only_the_victim_is_armed() -> None:
    rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "FT_SIM_FAULT_DESC": "rank_killed;1;1000"}
    armed = setup_simulated_fault(environ=rank_1)
    assert armed is not None
    armed.close()
    assert setup_simulated_fault(environ={**rank_1, "RANK": "0"}) is None
    assert setup_simulated_fault(environ={}) is None


def test_a_fault_for_a_rank_that_is_not_there_is_refused() -> None:
    job = {"RANK": "1", "WORLD_SIZE": "2", "FT_SIM_FAULT_DESC": "rank_killed;2;1000"}
    with pytest.raises(ValueError, match="is for rank 2; this job has ranks 0 to 1"):
        setup_simulated_fault(environ=job)


def test_gpu_failures() -> None:
    failures = parse_gpu_failures("0:1, 2:0,,0:1")
    assert failures == (GpuFailure(0, 1), GpuFailure(2, 0))
    assert injected(failures, 0, 1) == "injected GPU failure (NVRX_INJECT_GPU_FAILURE=0:1)"
    assert injected(failures, 2, 0)
    assert not injected(failures, 0, 0)
    assert not injected(failures, 1, 1)
    assert not injected(parse_gpu_failures(""), 0, 0)


@pytest.mark.parametrize("bad", ["1", "1:", ":1", "a:1", "1:2:3", "-1:0", "1:9999999999"])
def test_bad_gpu_failures(bad: str) -> None:
    with pytest.raises(ValueError, match="is not CYCLE:INFRA_RANK"):
        parse_gpu_failures(f"0:0,{bad}")


def test_too_many_gpu_failures() -> None:
    with pytest.raises(ValueError, match="at most 256"):
        parse_gpu_failures(",".join(f"{cycle}:0" for cycle in range(300)))


@pytest.mark.e2e
def test_fault_of_a_description_in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from undaunted.fault_tolerance.launch import LaunchError, elastic_launch
    from undaunted.fault_tolerance.launch_config import LaunchConfig

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FT_SIM_FAULT_DESC", "rank_killed;1;0")
    (tmp_path / "train.py").write_text(
        "import signal\n"
        "from undaunted.fault_tolerance import setup_simulated_fault\n"
        "setup_simulated_fault()\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    config = LaunchConfig(1, 1, 2, worker_start="fresh", max_restarts=0)
    with pytest.raises(LaunchError, match="SIGKILL") as caught:
        elastic_launch(config, "train.py")()
    assert caught.value.rank == 1


@pytest.mark.e2e
def test_gpu_failure_before_a_round_excludes_the_node(tmp_path: Path) -> None:
    script = """
        import os
        print("round", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        raise SystemExit(3)
    """
    options = ("--worker-start=fresh", "--max-restarts=5")
    for text, rounds in (("0:0", 0), ("7:0,1:0,0:1", 1)):
        with launched(tmp_path, script, *options, NVRX_INJECT_GPU_FAILURE=text) as launcher:
            assert launcher.finish() == 1
            assert len([line for line in launcher.seen if line.startswith("round")]) == rounds
            assert "excluded" in launcher.seen[-1]
            assert f"injected GPU failure (NVRX_INJECT_GPU_FAILURE={rounds}:0)" in launcher.seen[-1]
