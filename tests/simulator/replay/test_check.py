"""Jobs that were in order are clean; of every invariant, a job that breaks it is found."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from benchmarks.simulated_job import Job, simulate
from simulator.replay import values as v
from simulator.replay.check import check
from undaunted.journal import events as e
from undaunted.journal.reader import Journal, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.replay.values import Findings

S = 1_000_000_000


def a_job(**more: Any) -> Job:
    return simulate(**{"nodes": 3, "slots": 2, "restarts": 3, "mean_s": 300, "seed": 2, **more})


def crashing(*nodes: str) -> Job:
    """A job in which ranks crash and nothing else happens, on some of its nodes only."""
    jobs = (a_job(seed=seed) for seed in range(500))
    return next(
        job
        for job in jobs
        if all(one.kind == "crash" and one.node in (nodes or one.node) for one in job.failures)
    )


def checked(job: Job) -> Findings:
    return check([Journal(Path(f"{node.name}"), list(node.events)) for node in job.nodes])


def change(
    job: Job, node: int, kind: type[e.Event], number: int, make: Callable[[Any], dict[str, Any]]
) -> None:
    """Replace fields of the events of a kind that a node has of a round."""
    events = job.nodes[node].events
    for index, event in enumerate(events):
        if isinstance(event, kind) and event.round == number:
            events[index] = msgspec.structs.replace(event, **make(event))


def drop(job: Job, node: int, keep: Callable[[e.AnyEvent], bool]) -> None:
    job.nodes[node].events[:] = [event for event in job.nodes[node].events if keep(event)]


def found(job: Job) -> set[str]:
    return {violation.rule for violation in checked(job).violations}


@pytest.mark.parametrize("seed", range(20))
def test_a_job_in_order_is_clean(seed: int) -> None:
    findings = checked(a_job(restarts=8, seed=seed))
    assert findings.violations == []
    assert findings.unchecked == []
    assert findings.rounds == 9


def test_two_tables_of_one_round() -> None:
    job = a_job()
    change(job, 2, e.RoundStarted, 1, lambda _: {"master_port": 9})
    findings = checked(job)
    [first, *_] = findings.violations
    assert first.rule == v.TWO_WORLDS
    assert first.text.startswith("round 1 begins with two tables, ")
    [(launch, event)] = first.seen
    assert isinstance(event, e.RoundStarted)
    assert launch.node in first.text


def test_two_worlds_run_at_the_same_time() -> None:
    one, other = a_job(restarts=0, seed=7), a_job(restarts=0, seed=7)
    for index, node in enumerate(other.nodes):
        change(other, index, e.RoundStarted, 0, lambda _: {"master_port": 9})
        node.events[:] = [msgspec.structs.replace(x, node=f"x{index}") for x in node.events]
        for n, event in enumerate(node.events):
            if isinstance(event, e.JournalOpened):
                node.events[n] = msgspec.structs.replace(event, pid=9)
    both = Job([*one.nodes, *other.nodes])
    [violation] = checked(both).violations
    assert violation.rule == v.TWO_WORLDS
    assert len(violation.seen) == 2


def test_an_old_world_goes_on() -> None:
    job = a_job(mean_s=1000)
    stops = (e.StopRequested, e.RankExited, e.RoundStopped, e.Decision, e.FailureDetected)
    drop(job, 0, lambda x: not (x.round == 0 and isinstance(x, stops)))
    drop(job, 0, lambda x: x.round <= 0 and not isinstance(x, e.JobEnded))
    drop(job, 0, lambda x: not isinstance(x, e.RoundBlamed))
    last = max(x.t for x in job.nodes[0].events)
    job.nodes[0].events.append(e.LimitsChanged(t=last + 9000 * S, round=0, limits={}))
    for node in (1, 2):
        for number in (1, 2, 3):
            change(job, node, e.RoundStarted, number, lambda x: {
                "world_size": 4, "ranks": [rank - 2 for rank in x.ranks]})  # fmt: skip
            change(job, node, e.RankExited, number, lambda x: {"rank": x.rank - 2})
    for node in job.nodes:
        lenient(node.events)
    assert v.OLD_WORLD in found(job)


def lenient(events: list[e.AnyEvent]) -> None:
    """Two nodes are enough."""
    for index, event in enumerate(events):
        if isinstance(event, e.JobStarted):
            nodes = e.JobNodes(least=2, most=3, lease_s=5, away_timeout_s=60)
            events[index] = msgspec.structs.replace(event, nodes=nodes)


def test_a_rank_in_two_places() -> None:
    job = a_job()
    change(job, 2, e.RoundStarted, 1, lambda _: {"ranks": [2, 3]})
    [first, *_] = checked(job).violations
    assert first.rule == v.ONE_PLACE
    assert "gaps or overlaps" in first.text


def test_ranks_that_do_not_follow_each_other() -> None:
    job = a_job()
    change(job, 2, e.RoundStarted, 1, lambda _: {"ranks": [4, 9]})
    texts = [one.text for one in checked(job).violations if one.rule == v.ONE_PLACE]
    assert "node002 has ranks [4, 9] in round 1" in texts


def test_too_few_nodes() -> None:
    job = a_job(nodes=2)
    for node in job.nodes:
        for index, event in enumerate(node.events):
            if isinstance(event, e.JobStarted):
                nodes = e.JobNodes(least=3, most=3)
                node.events[index] = msgspec.structs.replace(event, nodes=nodes)
    assert found(job) == {v.ONE_PLACE}


def test_a_round_begins_twice_on_a_node() -> None:
    job = a_job()
    events = job.nodes[1].events
    start = next(x for x in events if isinstance(x, e.RoundStarted) and x.round == 2)
    events.insert(events.index(start) + 1, msgspec.structs.replace(start, t=start.t + S))
    assert found(job) == {v.ONE_PLACE, v.ASCENDING}


def test_rounds_that_do_not_ascend() -> None:
    job = a_job()
    for node in job.nodes:
        for index, event in enumerate(node.events):
            swapped = {1: 2, 2: 1}.get(event.round, event.round)
            node.events[index] = msgspec.structs.replace(event, round=swapped)
    findings = checked(job)
    [violation] = [one for one in findings.violations if "node001" in one.text][:1]
    assert violation.rule == v.ASCENDING
    assert violation.text == "node001 begins round 1 after round 2"


def test_an_older_round_begins_on_another_node() -> None:
    job = a_job(nodes=2)
    # Node 0 has gone on to round 3 by itself when node 1 begins round 2.
    drop(job, 0, lambda x: x.round != 2)
    drop(job, 1, lambda x: x.round != 3)
    shift = 5000 * S
    events = job.nodes[1].events
    for index, event in enumerate(events):
        if event.round == 2:
            events[index] = msgspec.structs.replace(event, t=event.t + shift)
    assert v.ASCENDING in found(job)


def test_more_restarts_than_allowed() -> None:
    job = a_job()
    change_all(job, e.JobStarted, -1, max_restarts=2)
    change_all(job, e.Decision, 0, restarts_left=1)
    change_all(job, e.Decision, 1, restarts_left=0)
    change_all(job, e.Decision, 2, restarts_left=-1)
    violations = [one for one in checked(job).violations if one.rule == v.BUDGET]
    assert violations[0].text == "3 restarts have been used of 2"


def change_all(job: Job, kind: type[e.Event], number: int, **fields: Any) -> None:
    for index in range(len(job.nodes)):
        change(job, index, kind, number, lambda _: fields)


def test_a_restart_that_is_not_counted() -> None:
    job = crashing()
    change_all(job, e.Decision, 1, restarts_left=2)
    change_all(job, e.Decision, 2, restarts_left=1)
    [violation] = checked(job).violations
    assert violation.rule == v.BUDGET
    assert violation.text == "the restart after round 1, which failed, was not counted: 2 left"


def test_restarts_that_were_used_come_back() -> None:
    job = a_job()
    change_all(job, e.Decision, 2, restarts_left=3)
    assert v.BUDGET in found(job)


def test_a_healthy_node_loses_its_seat() -> None:
    job = evicted()
    [violation] = checked(job).violations
    assert violation.rule == v.EVICTED
    assert violation.text.startswith("node002 has had no fault, and has no place any more")


def evicted() -> Job:
    """Another node fails, and node 2 has no seat after that, though it is told of the restart."""
    job = crashing("node000", "node001")
    drop(job, 2, lambda x: x.round <= 0)
    for node in job.nodes:
        lenient(node.events)
    end = next(x for x in job.nodes[0].events if isinstance(x, e.JobEnded))
    ended = end.t - job.nodes[0].skew + job.nodes[2].skew
    job.nodes[2].events.append(msgspec.structs.replace(end, t=ended, node="node002", round=0))
    for node in (0, 1):
        for number in (1, 2, 3):
            change(job, node, e.RoundStarted, number, lambda _: {"world_size": 4})
    return job


@pytest.mark.parametrize(
    "trouble",
    [
        e.NodeChecked(t=0, round=0, problem="no network"),
        e.SignalReceived(t=0, round=0, signal="SIGTERM"),
        e.ControlRequested(t=0, round=0, rank=4, action="ExcludeThisNode"),
        e.AgentPaused(t=0, round=0, seconds=20),
        e.EventsLost(t=0, round=0, count=7),
    ],
)
def test_a_node_to_which_something_has_happened_may_lose_its_seat(trouble: e.AnyEvent) -> None:
    job = evicted()
    events = job.nodes[2].events
    at = next(n for n, x in enumerate(events) if isinstance(x, e.Decision))
    events.insert(at, msgspec.structs.replace(trouble, t=events[at].t - 1))
    assert found(job) == set()


def test_a_node_that_is_cut_off_may_lose_its_seat() -> None:
    job = evicted()
    events = job.nodes[2].events
    at = next(n for n, x in enumerate(events) if isinstance(x, e.Decision))
    # It stops by itself, later, and hears of a decision about others after that.
    events[at], events[at + 1] = (
        msgspec.structs.replace(events[at + 1], t=events[at + 1].t + 5 * S),
        msgspec.structs.replace(events[at], t=events[at].t + 9 * S),
    )
    assert found(job) == set()


def test_an_excluded_node_that_is_launched_again_is_told_so() -> None:
    job = a_job(restarts=0)
    launched = [x for x in job.nodes[1].events if isinstance(x, e.JournalOpened | e.JobStarted)]
    end = e.JobEnded(t=launched[-1].t + 1, outcome="excluded", exit_code=0)
    alone = [msgspec.structs.replace(event, node="z") for event in [*launched, end]]
    journals = [Journal(Path(node.name), list(node.events)) for node in job.nodes]
    assert check([*journals, Journal(Path("z"), alone)]).violations == []


def test_a_node_is_excluded_that_never_asked_for_it() -> None:
    job = a_job(restarts=0)
    change(job, 1, e.JobEnded, 0, lambda _: {"outcome": "excluded", "exit_code": 1})
    assert found(job) == {v.EVICTED}


def test_a_round_after_the_end() -> None:
    job = a_job()
    events = job.nodes[0].events
    number = 1
    stopped = next(
        n for n, x in enumerate(events) if isinstance(x, e.RoundStopped) and x.round == number
    )
    end = e.JobEnded(t=events[stopped].t, round=number, outcome="finished", exit_code=0)
    events[stopped + 1 :] = [end]
    violations = [one for one in checked(job).violations if one.rule == v.OVER]
    # Round 2 may have begun before that, as far as the clocks tell.
    assert 3 in {event.round for one in violations for _, event in one.seen[1:]}


def test_ends_that_differ() -> None:
    job = a_job()
    change(job, 1, e.JobEnded, 3, lambda _: {"outcome": "failed", "exit_code": 1})
    [violation] = checked(job).violations
    assert violation.rule == v.VERDICT
    assert "failed" in violation.text
    assert "finished" in violation.text


def test_who_was_cut_off_may_end_in_its_own_way() -> None:
    job = a_job()
    change(job, 1, e.JobEnded, 3, lambda _: {"outcome": "failed", "exit_code": 1, "alone": True})
    assert found(job) == set()


def test_what_cannot_be_checked_is_said() -> None:
    job = a_job()
    journals = [Journal(Path(node.name), list(node.events)) for node in job.nodes[:2]]
    journals[0].unreadable, journals[0].problems = 2, [Problem(5, "torn")]
    journals[1].events.insert(9, e.EventsLost(t=journals[1].events[9].t, round=0, count=3))
    findings = check(journals)
    assert findings.violations == []
    texts = "\n".join(findings.unchecked)
    assert "what became of ranks 4-5 in rounds 0-3: no journal tells of them" in texts
    assert "node000 does not tell: 2 lines cannot be read, 0 events were not written" in texts
    assert "node001 does not tell: 0 lines cannot be read, 3 events were not written" in texts


@pytest.mark.parametrize("how", ["events lost", "a line that cannot be read"])
def test_rounds_whose_end_was_lost_are_not_said_to_run_beside_later_ones(how: str) -> None:
    job = a_job(nodes=1)
    ends = (e.StopRequested, e.RankExited, e.RoundStopped, e.Decision, e.FailureDetected)
    drop(job, 0, lambda x: x.round != 1 or not isinstance(x, ends))
    events = job.nodes[0].events
    if how == "events lost":
        begins = next(
            n for n, x in enumerate(events) if isinstance(x, e.RoundStarted) and x.round == 2
        )
        events.insert(begins, e.EventsLost(t=events[begins].t, count=9, reason="full"))
    journal = Journal(Path("one"), list(events))
    if how != "events lost":
        journal.unreadable, journal.problems = 1, [Problem(5, "torn")]

    findings = check([journal])

    assert findings.violations == []
    assert any("how long round 1 ran on node000" in text for text in findings.unchecked)


def test_a_round_that_goes_on_beside_a_later_one_in_a_whole_journal_is_found() -> None:
    job = a_job(nodes=1)
    ends = (e.StopRequested, e.RankExited, e.RoundStopped, e.Decision, e.FailureDetected)
    drop(job, 0, lambda x: x.round != 1 or not isinstance(x, ends))

    assert v.TWO_WORLDS in found(job)


def test_rounds_whose_start_cannot_be_read_are_passed_over() -> None:
    job = a_job()
    for node in range(3):
        drop(job, node, lambda event: not isinstance(event, e.RoundStarted) or event.round != 1)
    change(job, 0, e.RoundStarted, 2, lambda _: {"round": -5})
    checked(job)


def test_every_invariant_says_what_is_expected() -> None:
    rules = {value for name, value in vars(v).items() if name.isupper() and isinstance(value, str)}
    assert rules == set(v.EXPECTED)


def test_no_journal_is_no_violation() -> None:
    assert check([]).violations == []
