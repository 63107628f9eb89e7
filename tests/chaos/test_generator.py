"""Plans out of seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.chaos.generator import Wanted, settle, wanted_of
from undaunted.chaos.kinds import INSIDE, KINDS
from undaunted.chaos.plan import Plan, PlanError, Planned

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = st.integers(1, 5)


def generate(
    kinds: Sequence[str], *, runs_per_kind: int, faults_per_run: int, seed: int, **run: Any
) -> Plan:
    wanted = wanted_of(kinds, runs_per_kind=runs_per_kind, faults_per_run=faults_per_run, seed=seed)
    return settle(wanted, seed=seed, **run)


def plan(**changes: object):  # type: ignore[no-untyped-def]
    options = {
        "runs_per_kind": 2,
        "faults_per_run": 1,
        "seed": 7,
        "world_size": 2,
        "first": 0,
        "last": 99,
    }
    return generate(["kill", "hang"], **{**options, **changes})  # type: ignore[arg-type]


def test_the_same_plan_everywhere() -> None:
    assert plan().faults == (
        Planned("kill-1", "kill", 1, 83, 1),
        Planned("kill-2", "kill", 1, 37, 2),
        Planned("hang-1", "hang", 1, 35, 3),
        Planned("hang-2", "hang", 0, 14, 4),
    )


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6, unique=True),
    runs_per_kind=SIZES,
    faults_per_run=SIZES,
    seed=st.integers(0, 2**63),
    world_size=st.integers(1, 1000),
    first=st.integers(0, 1000),
    length=st.integers(10, 1000),
)
def test_every_kind_as_often_as_asked_in_the_middle_of_the_run(
    kinds: list[str],
    runs_per_kind: int,
    faults_per_run: int,
    seed: int,
    world_size: int,
    first: int,
    length: int,
) -> None:
    options = {
        "runs_per_kind": runs_per_kind,
        "faults_per_run": faults_per_run,
        "seed": seed,
        "world_size": world_size,
        "first": first,
        "last": first + length - 1,
    }

    made = generate(kinds, **options)

    assert generate(kinds, **options) == made
    assert sorted(f.kind for f in made.faults) == sorted(kinds * runs_per_kind)
    assert len({f.id for f in made.faults}) == len(made.faults)
    margin = length // 10
    for number, (run, faults) in enumerate(made.runs().items(), start=1):
        assert run == number
        assert len(faults) <= faults_per_run
        iterations = [fault.iteration for fault in faults]
        assert sorted(set(iterations)) == iterations
        assert all(first + margin <= i < first + length - margin for i in iterations)
        assert all(0 <= fault.rank < world_size for fault in faults)


def test_a_kind_with_several_ways_takes_them_in_turn() -> None:
    options = {"faults_per_run": 1, "world_size": 2, "first": 0, "last": 99}
    hows = KINDS["bad-checkpoint"].hows
    for seed in (0, 5):
        made = generate(["bad-checkpoint"], runs_per_kind=len(hows), seed=seed, **options)
        assert sorted(fault.how for fault in made.faults) == sorted(hows)
    assert {fault.how for fault in plan().faults} == {""}
    drawn = settle([Wanted("a", "bad-checkpoint", 1)], seed=1, world_size=2, first=0, last=99)
    assert drawn.faults[0].how in hows


def test_a_checkpoint_is_there_when_it_is_to_be_made_bad() -> None:
    options = {"world_size": 2, "first": 0, "last": 99, "faults_per_run": 1}
    for seed in range(20):
        kinds = ["bad-checkpoint", "corrupt-checkpoint"]
        for fault in generate(kinds, runs_per_kind=8, seed=seed, **options).faults:
            if fault.how in INSIDE:
                assert fault.iteration < 50, "two more saves follow"
            else:
                assert fault.iteration >= 50, "the script has saved by then"
    early = Wanted("a", "bad-checkpoint", 1, iteration=12, how="disk")
    assert settle([early], seed=0, world_size=2, first=0, last=99).faults[0].iteration == 12


def test_other_seeds_make_other_plans() -> None:
    assert len({plan(seed=seed) for seed in range(20)}) == 20


def test_kinds_are_mixed_where_a_run_has_several_faults() -> None:
    made = generate(
        ["kill", "hang", "stop"],
        runs_per_kind=6,
        faults_per_run=3,
        seed=1,
        world_size=2,
        first=0,
        last=99,
    )

    assert any(len({fault.kind for fault in faults}) > 1 for faults in made.runs().values())


def test_a_kind_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(PlanError, match=r"'kil' is not a kind of fault.*did you mean 'kill'\?"):
        wanted_of(["kil"], runs_per_kind=1, faults_per_run=1, seed=0)


def test_more_faults_than_iterations_are_refused() -> None:
    with pytest.raises(PlanError, match="run 1 has 3 faults to be spread over 2 iterations"):
        plan(runs_per_kind=2, faults_per_run=3, first=5, last=6)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Wanted("a", "kill", 1, rank=2), "fault 'a' is for rank 2; this job has ranks 0 to 1"),
        (Wanted("a", "kill", 1, iteration=100), "iteration 100; .* iterations 0 to 99"),
        (Wanted("a", "kill", 1, rank=2, where="p.yaml, line 3: "), "^p.yaml, line 3: fault 'a'"),
    ],
)
def test_what_the_program_does_not_have_is_refused(fault: Wanted, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        settle([fault], seed=0, world_size=2, first=0, last=99)


def test_what_the_user_has_decided_stays() -> None:
    wanted = [
        Wanted("late", "kill", 1, rank=1, iteration=90),
        Wanted("early", "slow", 1, rank=0, iteration=0, seconds=0.5),
    ]

    made = settle(wanted, seed=0, world_size=2, first=0, last=99)

    assert made.faults == (
        Planned("early", "slow", 0, 0, 1, 0.5),
        Planned("late", "kill", 1, 90, 1),
    )
