from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.sample import CRASH, MS, OPENING, RUN, at, begin
from undaunted.journal import events as e
from undaunted.journal.launch import LaunchState
from undaunted.journal.metrics.families import Now, RankNow, families

Values = dict[tuple[str, ...], float]


def values(
    events: list[e.AnyEvent], now: Now | None = None, max_kept: int = 1000
) -> dict[str, Values]:
    """Each metric's values, by what its labels say besides node and run."""
    found: dict[str, Values] = {}
    has_begun = any(isinstance(event, e.JobStarted) for event in events)
    for family in families(LaunchState.of(events, max_kept), "n0", now):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("node") == "n0"
            assert labels.pop("run_id") == ("demo" if has_begun else "")
            found.setdefault(family.name, {})[tuple(labels.values())] = sample.value
    return found


def test_failures_of_all_nodes_are_told_by_the_one_that_leads() -> None:
    told = [
        e.RoundBlamed(t=number, number=number // 2, node=node, line="")  # said twice of each round
        for number, node in enumerate(["n1", "n1", "n2", "n2", "n1"])
    ]
    name = "undaunted_job_node_failures_total"
    assert values([*OPENING, *told], Now(9, leads=True))[name] == {("n1",): 2, ("n2",): 1}
    assert name not in values([*OPENING, *told], Now(9))
    assert name not in values(RUN, Now(9999 * MS, leads=True))


def test_lost_steps_are_known_before_the_first_step_of_a_rank_is_noted() -> None:
    done = e.RoundProgress(t=5, round=0, first_iteration=0, last_iteration=4, last_ns=4)
    begun = e.RoundStarted(t=6, round=1, ranks=[0], world_size=1)
    found = values([*OPENING, done, begun], Now(9, steps=(1, 3, 8)))
    assert found["undaunted_lost_steps_total"] == {(): 3}


def test_a_whole_run() -> None:
    found = values(RUN)
    assert found["undaunted_run_info"] == {("",): 1}
    assert found["undaunted_run_exit_code"] == {("finished",): 0}
    assert found["undaunted_round"] == {(): 2}
    assert found["undaunted_world_size"] == {(): 2}
    assert found["undaunted_restarts_total"] == {(): 2}
    assert found["undaunted_restarts_left"] == {(): 1}
    assert found["undaunted_failures_total"] == {("crash",): 1, ("hang",): 1, ("spawn",): 0}
    assert found["undaunted_rank_failures_total"] == {("0", "hang"): 1, ("1", "crash"): 1}
    assert found["undaunted_restart_seconds_total"][()] == pytest.approx(0.057 + 0.124)
    buckets = found["undaunted_restart_duration_seconds"]
    assert (buckets["0.1",], buckets["0.25",], buckets["+Inf",]) == (1, 2, 2)
    assert found["undaunted_iteration"] == {(): 107}
    assert found["undaunted_lost_steps_total"] == {(): (27 - 7) + (47 - 7)}
    assert found["undaunted_goodput_ratio"][()] == pytest.approx(0.45, abs=0.01)
    times = found["undaunted_time_seconds"]
    assert sum(times.values()) == pytest.approx(9.003)
    assert times["productive",] == pytest.approx(4.08, abs=0.05)
    assert found["undaunted_mean_time_to_failure_seconds"][()] == pytest.approx(9.003 / 2)
    assert found["undaunted_journal_events_total"]["verdict",] == 2
    assert "undaunted_rank_iteration" not in found  # pages tell, journals do not


def test_a_run_that_is_under_way() -> None:
    rank = RankNow(rank=1, phase="stepping", iteration=40, step_s=0.5, heartbeat_age_s=0.25,
                   heartbeat_longest_s=2.0, sections={"checkpoint": 1.5})  # fmt: skip
    now = Now(t=5000 * MS, ranks=(rank,), steps=(7, 40, 4990 * MS), events_lost=3)
    found = values([*OPENING, *begin(10, 0), *CRASH, *begin(1043, 1)], now)
    assert found["undaunted_iteration"] == {(): 40}
    assert found["undaunted_run_duration_seconds"][()] == pytest.approx(4.999)
    assert sum(found["undaunted_time_seconds"].values()) == pytest.approx(4.999)
    # Iteration 27 was cut short; what comes after it is new.
    assert 1.0 < found["undaunted_time_seconds"]["recomputed",] < 3.0
    assert found["undaunted_journal_events_lost_total"] == {(): 3}
    assert found["undaunted_rank_iteration"] == {("1",): 40}
    assert found["undaunted_rank_phase"] == {("1", "stepping"): 1}
    assert found["undaunted_rank_step_seconds"] == {("1",): 0.5}
    assert found["undaunted_rank_heartbeat_age_seconds"] == {("1",): 0.25}
    assert found["undaunted_rank_heartbeat_longest_seconds"] == {("1",): 2.0}
    assert found["undaunted_rank_section_open_seconds"] == {("1", "checkpoint"): 1.5}
    assert "undaunted_run_exit_code" not in found


def test_before_anything_has_happened() -> None:
    found = values([], Now(t=1))
    assert found["undaunted_failures_total"] == {("crash",): 0, ("hang",): 0, ("spawn",): 0}
    assert "undaunted_goodput_ratio" not in found
    assert "undaunted_round" not in found


def test_a_run_longer_than_what_is_kept_has_no_times_rather_than_wrong_ones() -> None:
    found = values(RUN, max_kept=5)
    assert "undaunted_time_seconds" not in found
    assert "undaunted_failures_total" not in found
    assert found["undaunted_journal_events_total"]["verdict",] == 2


def test_limits() -> None:
    event = at(1, e.LimitsChanged, limits={"heartbeat": 60.0, "section:step": None})
    assert values([event])["undaunted_limit_seconds"] == {("heartbeat",): 60}


def test_names_have_units_and_are_there_once() -> None:
    now = Now(t=9999 * MS, ranks=(RankNow(rank=0, phase="stepping", iteration=1),))
    found = families(LaunchState.of(RUN), "n0", now)
    names = [family.name for family in found]
    assert len(set(names)) == len(names)
    for family in found:
        assert re.fullmatch(r"undaunted_[a-z_]+", family.name)
        assert family.help.endswith(".")
        labels = {tuple(key for key in sample.labels if key != "le") for sample in family.samples}
        assert len(labels) == 1


@given(st.lists(st.sampled_from(RUN)), st.booleans())
def test_any_events_in_any_order(events: list[e.AnyEvent], live: bool) -> None:
    now = Now(t=9999 * MS, steps=(0, 5, 4 * MS)) if live else None
    for family in families(LaunchState.of(events), "n0", now):
        assert all(math.isfinite(sample.value) for sample in family.samples)
        assert family.name == "undaunted_round" or all(s.value >= 0 for s in family.samples)
