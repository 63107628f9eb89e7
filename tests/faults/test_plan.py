from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.faults.plan import KINDS, LASTING, Choice, Fault, FaultPlan, FaultPlanError


def only(text: str) -> Fault:
    (fault,) = FaultPlan.parse(text).faults
    return fault


def test_reads_every_option() -> None:
    fault = only("gil: rank=1, iteration=30, round=0, seconds=2.5, seed=7, id=x, repeat")
    assert fault == Fault(
        kind="gil", id="x", rank=Choice(1, 1), iteration=Choice(30, 30), round=0, seconds=2.5,
        seed=7, repeat=True,
    )  # fmt: skip


def test_reads_options_of_single_kinds() -> None:
    assert only("slow:rank=0,iteration=4,steps=3,seconds=0.5").steps == 3
    assert only("torn-write:rank=0,iteration=4,bytes=100").bytes == 100
    assert only("torn-write:rank=0").id == "torn-write-1"
    assert only("bad-save:rank=all,iteration=4,how=copy").how == "copy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow:rank=0,steps=0", "steps=0 .*give a whole number from 1"),
        ("slow:rank=0,bytes=5", "bytes belongs to torn-write only"),
        ("nan:rank=0,steps=5", "steps belongs to slow only"),
        ("call:rank=0,seconds=5", "seconds belongs to gil and sleep and slow only"),
        ("torn-write:rank=0,how=nan", "how belongs to bad-save only"),
        ("bad-save:rank=0,how=x", "how=x .*give one of nan, copy, replica"),
        ("torn-write:rank=0,bytes=1k", "bytes=1k .*give a whole number from 0"),
    ],
)
def test_options_of_other_kinds_are_refused(text: str, message: str) -> None:
    with pytest.raises(FaultPlanError, match=message):
        only(text)


def test_reads_several_faults_and_numbers_them() -> None:
    plan = FaultPlan.parse("sigkill:rank=1,iteration=60;sleep:rank=0,iteration=140;")
    assert [fault.id for fault in plan.faults] == ["sigkill-1", "sleep-2"]


def test_json_means_the_same_as_text() -> None:
    items = [
        {"kind": "sigkill", "rank": 1, "iteration": "10-50", "repeat": True},
        {"kind": "exit", "rank": "all", "code": 3, "after": 1.5, "round": None},
    ]
    text = "sigkill:rank=1,iteration=10-50,repeat;exit:rank=all,code=3,after=1.5"
    assert FaultPlan.parse(json.dumps(items)) == FaultPlan.parse(text)
    assert FaultPlan.parse(json.dumps(items[0])) == FaultPlan.parse(text.split(";", maxsplit=1)[0])


@pytest.mark.parametrize("text", ["", "  ", ";;", "[]"])
def test_an_empty_plan(text: str) -> None:
    assert FaultPlan.parse(text) == FaultPlan()
    assert FaultPlan.parse(text).to_env() == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sigkil:rank=1", r"'sigkil' is not a kind .*known: .*oom.*did you mean 'sigkill'"),
        (":rank=1", r"'' is not a kind"),
        ("sigkill", r"on which rank\?"),
        ("sigkill:rank=one", r"rank=one .*give a rank"),
        ("sigkill:rank=-1", r"rank=-1"),
        ("sigkill:rank=5-2", r"rank=5-2"),
        ("sigkill:rank=1,iterations=3", r"'iterations' .*did you mean 'iteration'\?"),
        ("sigkill:rank=1,iteration=x", r"iteration=x .*give a number"),
        ("sigkill:rank=1,iteration", r"'iteration' .*is not KEY=VALUE"),
        ("sigkill:rank=1,rank=2", r"'rank' is given twice"),
        ("sigkill:rank=1,iteration=2,after=3", r"not both"),
        ("sigkill:rank=1,seconds=3", r"seconds belongs to gil and sleep"),
        ("sigkill:rank=1,code=3", r"code belongs to exit"),
        ("exit:rank=1,code=256", r"exit codes are 0 to 255"),
        ("sleep:rank=1,seconds=nan", r"seconds=nan"),
        ("sleep:rank=1,after=-1", r"after=-1"),
        ("sleep:rank=1,repeat=maybe", r"repeat=maybe"),
        ("sleep:rank=1,round=1.5", r"round=1.5"),
        ("sleep:rank=1,id=a b", r"id=a b"),
        ("sleep:rank=1,id=a;exit:rank=1,id=a", r"two faults have the id 'a'"),
        (";".join(["sleep:rank=1"] * 257), r"257 faults"),
        ("[{]", r"not valid JSON"),
        ("[1]", r"1 is not a fault"),
        ('{"rank": 1}', r"is not a fault"),
        ('{"kind": "sleep", "rank": [1]}', r"rank=\[1\]"),
    ],
)  # fmt: skip
def test_bad_plans_are_refused_with_the_bad_part(text: str, message: str) -> None:
    with pytest.raises(FaultPlanError, match=message):
        FaultPlan.parse(text)


def test_faults_of_ranks_that_do_not_exist() -> None:
    FaultPlan.parse("sigkill:rank=0-3;exit:rank=all;abort:rank=random").check_ranks(4)
    with pytest.raises(FaultPlanError, match="is for rank 2-4; this job has ranks 0 to 3"):
        FaultPlan.parse("sigkill:rank=0;abort:rank=2-4").check_ranks(4)
    with pytest.raises(FaultPlanError, match="is for rank 1; this job has only rank 0"):
        FaultPlan.parse("sigkill:rank=1").check_ranks(1)


def test_a_fault_that_happened_is_left_out_and_the_others_keep_their_ids() -> None:
    plan = FaultPlan.parse("sigkill:rank=1;sleep:rank=0,iteration=5;abort:rank=1,repeat")
    later = FaultPlan.parse(plan.without(["sigkill-1", "abort-3", "unknown"]).to_env())
    assert [fault.id for fault in later.faults] == ["sleep-2", "abort-3"]


def test_due_selects_rank_and_round() -> None:
    plan = FaultPlan.parse("sigkill:rank=1,round=0;abort:rank=all;sleep:rank=0")
    assert [f.id for f in plan.due(rank=1, round_=0, world_size=2)] == ["sigkill-1", "abort-2"]
    assert [f.id for f in plan.due(rank=1, round_=1, world_size=2)] == ["abort-2"]
    assert [f.id for f in plan.due(rank=0, round_=1, world_size=2)] == ["abort-2", "sleep-3"]


@given(seed=st.integers(0, 10**9 - 1), world=st.integers(1, 50))
def test_random_ranks_hit_exactly_one_rank(seed: int, world: int) -> None:
    plan = FaultPlan.parse(f"sigkill:rank=random,iteration=10-50,seed={seed}")
    hit = [plan.due(rank=rank, round_=0, world_size=world) for rank in range(world)]
    (fault,) = [found[0] for found in hit if found]
    assert isinstance(fault.iteration, Choice)
    assert 10 <= fault.iteration.low == fault.iteration.high <= 50


def test_the_seed_decides_and_stays_the_same_on_every_machine() -> None:
    def chosen(seed: int) -> list[int]:
        plan = FaultPlan.parse(f"sigkill:rank=random,seed={seed}")
        return [r for r in range(8) if plan.due(rank=r, round_=0, world_size=8)]

    assert [chosen(seed) for seed in range(4)] == [chosen(seed) for seed in range(4)]
    assert len({chosen(seed)[0] for seed in range(50)}) == 8


@st.composite
def plans(draw: st.DrawFn) -> FaultPlan:
    count = draw(st.integers(0, 5))
    numbers = st.integers(0, 10**9 - 1)
    choices = st.tuples(numbers, numbers).map(lambda pair: Choice(min(pair), max(pair)))
    faults = []
    for index in range(count):
        kind = draw(st.sampled_from(KINDS))
        iteration = draw(st.none() | choices)
        seconds = st.none() | st.floats(0, 1e6)
        faults.append(
            Fault(
                kind=kind,
                id=f"f{index}",
                rank=draw(choices | st.sampled_from(["random", "all"])),
                iteration=iteration,
                after=None if iteration else draw(seconds),
                round=draw(st.none() | numbers),
                seconds=draw(seconds) if kind in ("gil", "sleep") else None,
                code=draw(st.integers(0, 255)) if kind == "exit" else 1,
                seed=draw(numbers),
                repeat=kind == LASTING or draw(st.booleans()),
            )
        )
    return FaultPlan(tuple(faults))


@given(plans())
def test_every_plan_survives_the_environment(plan: FaultPlan) -> None:
    assert FaultPlan.parse(plan.to_env()) == plan


@given(st.text() | st.text(alphabet="sigkilseep:rank=,;0123456789-.[]{}\"' ", max_size=60))
def test_garbage_is_read_or_refused_in_our_words(text: str) -> None:
    with contextlib.suppress(FaultPlanError):
        FaultPlan.parse(text)


def test_what_a_slot_computes_wrong_stays_with_the_slot_and_over_restarts() -> None:
    plan = FaultPlan.parse("wrong-result-always:rank=1,iteration=3;wrong-result:rank=1,iteration=3")
    later = FaultPlan.parse(plan.without(["wrong-result-always-1"]).to_env())

    assert [one.kind for one in later.due(rank=0, round_=1, world_size=2, slot=1)] == [
        "wrong-result-always"
    ]
    assert [one.kind for one in later.due(rank=1, round_=1, world_size=2, slot=0)] == [
        "wrong-result"
    ]
