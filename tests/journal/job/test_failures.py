"""What ended a round first: who is blamed, and when it happened for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from undaunted.journal import events as e
from undaunted.journal.goodput import Break, worked_until
from undaunted.journal.job.failures import RoundFailure, failure_of_round
from undaunted.journal.job.launches import World, attempts_of, launches_of
from undaunted.journal.job.values import Failure
from undaunted.journal.reader import Journal

ENDED = e.JobEnded(t=900, round=1, outcome="finished", exit_code=0)


def node(name: str, ranks: list[int], *events: e.AnyEvent) -> Journal:
    about: dict[str, Any] = {"master_port": 5, "world_size": 4}
    start: list[e.AnyEvent] = [
        e.JournalOpened(t=0, node=name, boot_id="b"),
        e.JobStarted(t=0, run_id="r", argv=[], nproc_per_node=2, max_restarts=1),
        e.RoundStarted(t=10, round=0, ranks=ranks, **about),
    ]
    return Journal(Path(name), [*start, *events])


def failure_of(*nodes: Journal, followed: bool = True) -> RoundFailure | None:
    [attempt] = attempts_of(launches_of(nodes))[0]
    world = attempt.worlds[0]
    return failure_of_round(
        world, following=World(1, launches=world.launches) if followed else None
    )


def crash(t: int, rank: int, line: str) -> list[e.AnyEvent]:
    return [
        e.FailureDetected(t=t, round=0, kind="crash", rank=rank, since_ns=t - 2),
        e.Verdict(t=t + 3, round=0, kind="crash", rank=rank, local_rank=0, pid=1, line=line),
    ]


def blamed(name: str, line: str = "it was this one") -> e.RoundBlamed:
    return e.RoundBlamed(t=300, round=0, number=0, node=name, line=line)


def test_the_node_that_is_blamed_not_the_first_that_failed() -> None:
    found = failure_of(
        node("a", [0, 1], *crash(100, 0, "victim"), blamed("b")),
        node("b", [2, 3], *crash(120, 2, "culprit"), blamed("b")),
    )
    assert found is not None
    assert found.failure == Failure(kind="crash", node="b", rank=2, line="culprit")
    assert (found.happened_ns, found.noticed_ns) == (98, 100)


def test_without_blame_the_first_that_failed() -> None:
    found = failure_of(
        node("a", [0, 1], *crash(200, 0, "later")), node("b", [2, 3], *crash(120, 2, "first"))
    )
    assert found is not None
    assert found.failure.line == "first"


def test_a_hang_without_a_verdict_is_no_rank_s() -> None:
    """The launcher was killed: whose limit passed first may only have waited."""
    hang = e.FailureDetected(t=10, round=0, kind="hang", rank=3, detail="heartbeat: 3.0 s")
    found = failure_of(node("a", [0, 1]), node("b", [2, 3], hang))
    assert found is not None
    assert (found.failure.kind, found.failure.node, found.failure.rank) == ("hang", "b", -1)
    assert "rank 3" in found.failure.line
    assert "heartbeat: 3.0 s" in found.failure.line
    assert "not recorded" in found.failure.line


def test_a_hang_began_when_its_limit_did() -> None:
    second = 1_000_000_000
    hang = [
        e.FailureDetected(t=10 * second, round=0, kind="hang", rank=3, since_ns=9 * second),
        e.EvidenceCollected(t=11 * second, round=0, ranks=[3]),
        e.Verdict(t=12 * second, round=0, kind="hang", rank=3, local_rank=1, pid=1, line="hangs",
                  limit_s=5.0),
    ]  # fmt: skip
    found = failure_of(node("a", [0, 1]), node("b", [2, 3], *hang))
    assert found is not None
    assert found.failure.limit_ns == 5 * second
    assert found.broke_ns == 4 * second
    assert (found.happened_ns, found.noticed_ns, found.judged_ns) == tuple(
        moment * second for moment in (9, 10, 11)
    )


def test_a_node_that_is_blamed_and_saw_nothing_was_lost() -> None:
    decision = e.Decision(t=250, round=0, action="restart", reason="")
    found = failure_of(node("a", [0, 1], decision, blamed("b", "b is lost")), node("b", [2, 3]))
    assert found is not None
    assert found.failure == Failure(kind="lost", node="b", line="b is lost")
    assert (found.happened_ns, found.broke_ns) == (250, 250)


SECOND = 1_000_000_000


def test_a_node_that_stood_still_and_then_saw_a_victim_of_it_was_lost() -> None:
    """Its rank failed since the others were stopped; it was heard of long after the blame."""
    decision = e.Decision(t=2 * SECOND, round=0, action="restart", reason="")
    told = e.RoundBlamed(t=2 * SECOND, round=0, number=0, node="b", line="b is lost")
    found = failure_of(
        node("a", [0, 1], decision, told), node("b", [2, 3], *crash(20 * SECOND, 2, "reset"))
    )
    assert found is not None
    assert found.failure == Failure(kind="lost", node="b", line="b is lost")
    assert found.broke_ns == 2 * SECOND


def test_a_coordinator_that_stood_still_is_the_cause_though_nobody_is_blamed() -> None:
    stopped = e.StopRequested(t=12 * SECOND, round=0, reason="", grace_s=1)
    paused = e.AgentPaused(t=25 * SECOND, round=0, seconds=16.0)
    late = crash(25 * SECOND + 5, 2, "reset")
    found = failure_of(node("a", [0, 1], stopped), node("b", [2, 3], paused, *late))
    assert found is not None
    assert (found.failure.kind, found.failure.node, found.failure.rank) == ("lost", "b", -1)
    assert "16.0 s" in found.failure.line
    assert found.broke_ns == 9 * SECOND


def test_a_node_that_stood_still_and_was_stopped_without_a_failure_was_lost() -> None:
    """Others go on without it, or have waited for it: nobody tells of a failure."""
    paused = e.AgentPaused(t=25 * SECOND, round=0, seconds=16.0)
    stopped = e.StopRequested(t=26 * SECOND, round=0, reason="", grace_s=1)
    decided = e.Decision(t=40 * SECOND, round=0, action="end", reason="done")
    for followed in (True, False):
        one = node("a", [0, 1], decided)
        found = failure_of(one, node("b", [2, 3], paused, stopped, decided), followed=followed)
        assert found is not None
        assert (found.failure.kind, found.failure.node, found.failure.rank) == ("lost", "b", -1)
        assert "16.0 s" in found.failure.line
        assert (found.broke_ns, found.noticed_ns) == (9 * SECOND, 26 * SECOND)


def test_ranks_may_work_on_while_their_launcher_stands_still() -> None:
    paused = e.AgentPaused(t=25 * SECOND, round=0, seconds=16.0)
    stopped = e.StopRequested(t=26 * SECOND, round=0, reason="", grace_s=1)
    steps = e.RoundProgress(t=25 * SECOND, round=0, first_iteration=0, last_iteration=9,
                            last_ns=24 * SECOND)  # fmt: skip
    found = failure_of(node("a", [0, 1]), node("b", [2, 3], steps, paused, stopped))
    assert found is not None
    assert (found.happened_ns, found.broke_ns) == (9 * SECOND, 24 * SECOND)


def test_a_pause_before_the_job_decided_to_stop_is_no_failure() -> None:
    paused = e.AgentPaused(t=5 * SECOND, round=0, seconds=2.0)
    stopped = e.StopRequested(t=21 * SECOND, round=0, reason="", grace_s=1)
    decided = e.Decision(t=20 * SECOND, round=0, action="restart", reason="the job grows")
    events = (paused, decided, stopped)
    assert failure_of(node("a", [0, 1], decided, stopped), node("b", [2, 3], *events)) is None


def test_a_node_that_is_blamed_as_it_was_silent_stood_still() -> None:
    paused = e.AgentPaused(t=25 * SECOND, round=0, seconds=16.0)
    found = failure_of(node("a", [0, 1], blamed("b", "b is lost")), node("b", [2, 3], paused))
    assert found is not None
    assert found.failure.line == "b is lost; its agent, or its machine, stood still for 16.0 s"


def test_a_pause_that_the_leader_on_that_node_has_noticed_itself_is_told_once() -> None:
    line = "the agent of node b, or its machine, stood still for 16.0 s; node a is lost: silence"
    for noticed in (True, False):
        told = replace(blamed("b", line), paused=noticed)
        paused = e.AgentPaused(t=25 * SECOND, round=0, seconds=16.0)
        found = failure_of(node("a", [0, 1]), node("b", [2, 3], paused, told))
        assert found is not None
        assert found.failure.line.count("stood still") == (1 if noticed else 2)


def test_work_that_went_on_beside_an_agent_that_stood_still_ended_with_its_last_step() -> None:
    """The agent sees the end of its ranks only when it goes on, after the next round has begun."""
    steps = e.RoundProgress(t=25 * SECOND, round=0, first_iteration=0, last_iteration=9,
                            last_ns=15 * SECOND)  # fmt: skip
    late = [*crash(24 * SECOND, 2, "killed"), steps]
    paused = e.AgentPaused(t=25 * SECOND, round=0, seconds=16.0)
    for pauses, until in (([paused], 15 * SECOND), ([], 24 * SECOND - 2)):
        [launch] = launches_of([node("b", [2, 3], *late, *pauses)])
        ended = worked_until(launch.state.rounds[0], Break(14 * SECOND, 14 * SECOND, None))
        assert ended == until


def test_a_pause_that_nobody_minded_explains_no_crash() -> None:
    paused = e.AgentPaused(t=5 * SECOND, round=0, seconds=2.0)
    stopped = e.StopRequested(t=21 * SECOND, round=0, reason="", grace_s=1)
    found = failure_of(
        node("a", [0, 1], stopped), node("b", [2, 3], paused, *crash(20 * SECOND, 2, "bad batch"))
    )
    assert found is not None
    assert (found.failure.kind, found.failure.line) == ("crash", "bad batch")


def test_of_a_node_without_a_journal_the_kind_is_unknown() -> None:
    found = failure_of(node("a", [0, 1], blamed("z")))
    assert found is not None
    assert (found.failure.kind, found.failure.node) == ("unknown", "z")


def test_a_node_that_was_lost_before_it_could_write_has_other_rounds() -> None:
    lost = node("z", [2, 3])
    lost.events[2:] = []
    [attempt] = attempts_of(launches_of([node("a", [0, 1], blamed("z")), lost]))[0]
    world = attempt.worlds[0]
    found = failure_of_round(world, following=World(1, launches=world.launches), nodes={"a", "z"})
    assert found is not None
    assert found.failure.kind == "lost"


def test_a_launcher_that_ended_without_a_word() -> None:
    stopped = [e.StopRequested(t=200, round=0, reason="", grace_s=1),
               e.RoundStopped(t=201, round=0)]  # fmt: skip
    nodes = node("a", [0, 1], *stopped, ENDED), node("b", [2, 3])
    found = failure_of(*nodes)
    assert found is not None
    assert (found.failure.kind, found.failure.node) == ("lost", "b")
    assert failure_of(*nodes, followed=False) is None


def test_a_round_that_was_stopped_did_not_fail() -> None:
    stopped = [e.StopRequested(t=200, round=0, reason="", grace_s=1),
               e.RoundStopped(t=201, round=0)]  # fmt: skip
    assert failure_of(node("a", [0, 1], *stopped, ENDED), node("b", [2, 3], *stopped)) is None


def test_what_a_launch_is_told_is_by_its_own_clock() -> None:
    launch = launches_of([node("a", [0, 1])])[0]
    launch.offset_ns = -50
    told = RoundFailure(Failure(kind="crash"), 100, 90, 110).context(launch, 7)
    assert told == (7, 140, 160, None)
