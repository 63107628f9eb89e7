"""Kinds of faults: how they are made."""

from __future__ import annotations

import pytest

from undaunted.chaos.kinds import KINDS, KindOf, injections
from undaunted.chaos.plan import Planned
from undaunted.faults.plan import KINDS as INJECTORS
from undaunted.faults.plan import Choice, FaultPlan


def test_every_kind_is_made_by_injectors_that_exist() -> None:
    for kind in KINDS.values():
        assert set(kind.injectors) <= set(INJECTORS)


def test_faults_of_a_run_are_one_plan_for_the_launcher() -> None:
    faults = (
        Planned("kill-1", "kill", rank=1, iteration=30, run=1),
        Planned("hang-2", "hang", rank=0, iteration=60, run=1, seconds=2.5),
    )

    first, second = FaultPlan.parse(injections(faults)).faults

    assert (first.kind, first.rank, first.iteration) == ("sigkill", Choice(1, 1), Choice(30, 30))
    assert (second.kind, second.seconds) == ("sleep", 2.5)
    assert [first.id, second.id] == ["kill-1", "hang-2"]


def test_a_kind_of_two_injectors_tells_the_nemesis_before_the_rank_is_killed() -> None:
    planned = Planned("corrupt-1", "corrupt-checkpoint", rank=1, iteration=30, run=2)

    assert injections([planned]) == (
        "call:rank=1,iteration=30,id=corrupt-1;sigkill:rank=1,iteration=30,id=corrupt-1.2"
    )


def planned_bad(how: str) -> Planned:
    return Planned("bad-1", "bad-checkpoint", rank=1, iteration=30, run=2, how=how)


def test_a_bad_checkpoint_is_saved_by_ranks_or_made_of_files() -> None:
    of_rank = injections([planned_bad("replica")])
    of_all = injections([planned_bad("nan")])

    assert of_rank == "bad-save:rank=1,iteration=30,how=replica,id=bad-1"
    assert of_all == "bad-save:rank=all,iteration=30,how=nan,id=bad-1"
    for how in KINDS["bad-checkpoint"].hows:
        first = FaultPlan.parse(injections([planned_bad(how)])).faults[0]
        assert (first.kind, first.how) in [("bad-save", how), ("call", None)]


def test_how_long_a_fault_of_the_nemesis_lasts_is_not_told_to_the_rank() -> None:
    planned = Planned("network-1", "slow-network", rank=0, iteration=3, run=1, seconds=2.0)

    assert injections([planned]) == "call:rank=0,iteration=3,id=network-1"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_kinds_say_what_must_follow(kind: KindOf) -> None:
    named = bool(kind.signal or kind.exception or kind.exit_code is not None)
    assert not (kind.blame == "none" and named)
    assert not (kind.blame == "crash" and kind.certain and not named)
    assert kind.needs == "" or kind.outside
