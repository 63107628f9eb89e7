"""How a job ended, told from what its nodes wrote."""

from __future__ import annotations

import msgspec

from undaunted.journal.outcome import job_outcome
from undaunted.journal.restarts import RunSummary


def launch(node: str, start: float, end: float | None, outcome: str = "", code: int = 1):
    if end is None:
        return RunSummary(node=node, started_wall=start)
    return RunSummary(
        node=node,
        started_wall=start,
        duration_ns=int((end - start) * 1e9),
        outcome=outcome,
        exit_code=code,
        reason=f"of {node}",
    )


def test_nothing_has_ended():
    assert job_outcome([]) is None
    assert job_outcome([launch("a", 0, None)]) is None


def test_lost_nodes_do_not_count():
    found = job_outcome([launch("a", 0, None), launch("b", 0, 9, "finished", 0)])
    assert found == ("finished", 0, "of b", "b")


def test_neither_do_nodes_that_left_before():
    nodes = [launch("a", 0, 9, "failed"), launch("b", 0, 5, "excluded")]
    assert job_outcome(nodes).outcome == "failed"
    nodes = [launch("a", 0, 9, "preempted", 75), launch("b", 0, 8, "failed")]
    assert job_outcome(nodes).exit_code == 75


def test_what_holds_for_all_may_be_said_by_one():
    nodes = [launch("a", 0, 9, "failed"), launch("b", 0, 8, "finished", 0)]
    assert job_outcome(nodes).exit_code == 0
    nodes = [launch("a", 0, 9, "failed"), launch("b", 0, 8, "no_restart", 93)]
    assert job_outcome(nodes).exit_code == 93


def test_only_the_job_that_was_started_last():
    first = [launch("a", 0, 5, "finished", 0), launch("c", 0, 5, "finished", 0)]
    assert job_outcome([*first, launch("a", 6, 9, "preempted", 75)]).exit_code == 75
    assert job_outcome([*first, launch("a", 6, None)]) is None


def test_a_node_that_was_cut_off_knows_less_than_the_others():
    ends = [launch("a", 0, 5, "failed"), launch("b", 0, 5, "failed")]
    cut_off = msgspec.structs.replace(launch("c", 0, 9, "failed"), alone=True)
    assert job_outcome([*ends, cut_off]).reason == "of a"
    assert job_outcome([cut_off]).reason == "of c"
    left = launch("d", 0, 3, "preempted", 75)
    assert job_outcome([left, cut_off]).reason == "of c"
