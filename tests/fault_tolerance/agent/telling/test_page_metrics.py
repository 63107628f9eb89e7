from __future__ import annotations

import dataclasses

import pytest

from undaunted.fault_tolerance.agent.telling.page_metrics import now_of
from undaunted.journal.metrics.now import Now, RankNow
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot

S = 1_000_000_000
PAGE = PageSnapshot(
    pid=1,
    phase=Phase.STEPPING,
    heartbeat_ns=90 * S,
    heartbeat_max_ns=3 * S,
    iteration=25,
    iteration_ns=80 * S,
    first_iteration=5,
    first_step_ns=40 * S,
    sections={
        "open": SectionSnapshot("open", open_since_ns=99 * S),
        "closed": SectionSnapshot("closed", count=3),
    },
)


def test_a_rank_in_the_middle_of_its_work() -> None:
    now = now_of({7: PAGE}, 100 * S, 2)
    assert now == Now(
        t=100 * S,
        steps=(5, 25, 80 * S),
        events_lost=2,
        ranks=(
            RankNow(
                rank=7,
                phase="stepping",
                iteration=25,
                step_s=2.0,
                heartbeat_age_s=10.0,
                heartbeat_longest_s=3.0,
                sections={"open": 1.0},
            ),
        ),
    )


def test_the_farthest_rank_tells_how_far_the_node_is() -> None:
    behind = dataclasses.replace(PAGE, iteration=24, iteration_ns=85 * S, first_iteration=4)
    assert now_of({0: PAGE, 1: behind}, 100 * S, 0).steps == (4, 25, 80 * S)


@pytest.mark.parametrize(
    "changes",
    [{"first_step_ns": None}, {"iteration": 5}, {"iteration": 3}, {"first_iteration": None}],
)
def test_a_step_time_that_is_not_known(changes: dict[str, int | None]) -> None:
    (rank,) = now_of({0: dataclasses.replace(PAGE, **changes)}, 100 * S, 0).ranks
    assert rank.step_s is None


def test_pages_that_say_little_or_nonsense() -> None:
    assert now_of({0: PageSnapshot()}, 1, 0).ranks == (RankNow(rank=0, phase="empty", sections={}),)
    assert now_of({0: PageSnapshot(problem="damaged")}, 1, 0) == Now(t=1)
    future = dataclasses.replace(PAGE, heartbeat_ns=200 * S)
    assert now_of({0: future}, 100 * S, 0).ranks[0].heartbeat_age_s == 0
