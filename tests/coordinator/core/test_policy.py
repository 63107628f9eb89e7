"""The job policy: what follows what, and what must never happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.core import policy as p
from undaunted.coordinator.core.progress import Iterations


def job(**config: object) -> p.JobPolicy:
    return p.JobPolicy(p.PolicyConfig(**config))  # type: ignore[arg-type]


def running(**config: object) -> p.JobPolicy:
    machine = job(**config)
    machine.handle(p.NodeJoined("a", 4))
    return machine


def of(kind: type, commands: list[p.Command]) -> list[p.Command]:
    return [command for command in commands if isinstance(command, kind)]


def test_round_0_starts_when_enough_nodes_have_joined() -> None:
    machine = job(min_nodes=2)
    assert machine.handle(p.NodeJoined("a", 4)) == []
    starts = machine.handle(p.NodeJoined("b", 2))
    assert [(s.node, s.group_rank, s.first_rank, s.slots, s.world_size) for s in starts] == [
        ("a", 0, 0, 4, 6),
        ("b", 1, 4, 2, 6),
    ]


def test_a_node_that_joins_twice_counts_once() -> None:
    machine = job(min_nodes=2)
    machine.handle(p.NodeJoined("a", 4))
    assert machine.handle(p.NodeJoined("a", 4)) == []


def test_a_failure_within_budget_restarts() -> None:
    machine = running(max_restarts=1)
    commands = machine.handle(p.NodeFailed("a", 0, "rank 1: exit code 1"))
    assert [type(c) for c in commands] == [p.Decided, p.Stop]
    assert commands[0] == p.Decided(0, "restart", "rank 1: exit code 1", restarts_left=0)
    assert commands[1].grace_s == p.GRACE_AFTER_FAILURE_S
    (start,) = machine.handle(p.NodeStopped("a", 0))
    assert isinstance(start, p.Start)
    assert start.round == 1


def test_a_failure_without_budget_ends_the_job_with_its_cause() -> None:
    machine = running(max_restarts=0)
    decided, stop = machine.handle(p.NodeFailed("a", 0, "rank 1: exit code 1"))
    assert decided.action == "end"
    assert isinstance(stop, p.Stop)
    (end,) = machine.handle(p.NodeStopped("a", 0))
    assert end.outcome is p.Outcome.FAILED
    assert "rank 1: exit code 1" in end.reason
    assert "--max-restarts" in end.reason


def test_the_stop_timeout_given_by_the_user_wins() -> None:
    machine = running(max_restarts=1, stop_timeout_s=30.0)
    _, stop = machine.handle(p.NodeFailed("a", 0, "x"))
    assert stop.grace_s == 30.0


def test_several_failures_in_one_round_use_one_restart() -> None:
    machine = job(min_nodes=2, max_restarts=3)
    machine.handle(p.NodeJoined("a", 1))
    machine.handle(p.NodeJoined("b", 1))
    machine.handle(p.NodeFailed("a", 0, "x"))
    assert machine.handle(p.NodeFailed("b", 0, "y")) == []
    assert machine.restarts_used == 1
    assert machine.handle(p.NodeStopped("a", 0)) == []  # b still has processes of round 0
    assert len(of(p.Start, machine.handle(p.NodeStopped("b", 0)))) == 2


def test_finished_means_all_nodes() -> None:
    machine = job(min_nodes=2)
    machine.handle(p.NodeJoined("a", 1))
    machine.handle(p.NodeJoined("b", 1))
    assert machine.handle(p.NodeFinished("a", 0)) == []
    assert len(of(p.Stop, machine.handle(p.NodeFinished("b", 0)))) == 2
    machine.handle(p.NodeStopped("a", 0, all_ok=True))
    ends = machine.handle(p.NodeStopped("b", 0, all_ok=True))
    assert {end.outcome for end in ends} == {p.Outcome.FINISHED}


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (p.ShutdownRequested("a", 0, "done early"), p.Outcome.NO_RESTART),
        (p.ExclusionRequested("a", 0, "bad GPU"), p.Outcome.EXCLUDED),
    ],
)
def test_a_control_request_ends_the_job_although_restarts_are_left(
    event: p.Event, outcome: p.Outcome
) -> None:
    machine = running(max_restarts=5)
    _, stop = machine.handle(event)
    assert stop.grace_s == p.GRACE_ON_REQUEST_S
    (end,) = machine.handle(p.NodeStopped("a", 0))
    assert end.outcome is outcome
    assert event.description in end.reason


class TestProgress:
    def failed_rounds(self, machine: p.JobPolicy, rounds: int, last: int) -> list[p.Command]:
        commands: list[p.Command] = []
        for number in range(rounds):
            machine.handle(p.NodeFailed("a", number, "x"))
            stopped = p.NodeStopped("a", number, iterations=Iterations(40, last))
            commands = machine.handle(stopped)
        return commands

    def test_a_job_that_does_not_advance_ends_with_93_although_restarts_are_left(self) -> None:
        machine = running(max_restarts=10)
        decided, end = self.failed_rounds(machine, 3, last=40)
        assert (decided.action, decided.round, decided.restarts_left) == ("end", 2, 8)
        assert end.outcome is p.Outcome.NO_RESTART
        assert end.outcome.exit_code == 93
        assert "no progress in 3 rounds" in end.reason
        assert machine.handle(p.NodeStopped("a", 2)) == []

    def test_a_budget_that_is_used_up_first_is_a_failure(self) -> None:
        (end,) = self.failed_rounds(running(max_restarts=2), 3, last=40)
        assert end.outcome is p.Outcome.FAILED

    def test_without_iterations_every_restart_is_taken_and_it_is_said_once(self) -> None:
        machine = running(max_restarts=20)
        remarks = []
        for number in range(21):
            machine.handle(p.NodeFailed("a", number, "x"))
            commands = machine.handle(p.NodeStopped("a", number))
            remarks += of(p.Remark, commands)
        assert [end.outcome for end in of(p.End, commands)] == [p.Outcome.FAILED]
        assert len(remarks) == 1

    def test_the_settings_reach_the_tracker(self) -> None:
        machine = running(max_restarts=10, max_no_progress_cycles=1, min_progress_iterations=5)
        *_, end = self.failed_rounds(machine, 1, last=44)
        assert end.outcome is p.Outcome.NO_RESTART
        off = running(max_restarts=10, max_no_progress_cycles=0)
        assert len(of(p.Start, self.failed_rounds(off, 9, last=40))) == 1

    def test_a_job_that_is_told_to_stop_is_not_judged(self) -> None:
        machine = running(max_restarts=10, max_no_progress_cycles=1)
        machine.handle(p.NodeFailed("a", 0, "x"))
        machine.handle(p.Preempted("a", 15, "SIGTERM"))
        (end,) = machine.handle(p.NodeStopped("a", 0, iterations=Iterations(4, 4)))
        assert end.outcome is p.Outcome.PREEMPTED


def test_a_control_request_while_a_round_is_stopped_prevents_the_restart() -> None:
    machine = running(max_restarts=5)
    machine.handle(p.NodeFailed("a", 0, "x"))
    assert machine.handle(p.ShutdownRequested("a", 0, "enough")) == []
    (end,) = machine.handle(p.NodeStopped("a", 0))
    assert end.outcome is p.Outcome.NO_RESTART


class TestPreemption:
    def test_passes_the_signal_on_and_grants_the_long_grace(self) -> None:
        machine = running(max_restarts=5, term_timeout_s=77.0)
        _, stop = machine.handle(p.Preempted("a", 2, "SIGINT"))
        assert (stop.signal, stop.grace_s) == (2, 77.0)
        (end,) = machine.handle(p.NodeStopped("a", 0))
        assert end.outcome is p.Outcome.PREEMPTED

    def test_ranks_that_all_exit_with_0_have_finished(self) -> None:
        machine = running()
        machine.handle(p.Preempted("a", 15, "SIGTERM"))
        (end,) = machine.handle(p.NodeStopped("a", 0, all_ok=True))
        assert end.outcome is p.Outcome.FINISHED

    def test_while_a_round_is_stopped_for_a_restart_there_is_no_restart(self) -> None:
        machine = running(max_restarts=5)
        machine.handle(p.NodeFailed("a", 0, "x"))
        assert machine.handle(p.Preempted("a", 15, "SIGTERM")) == []
        (end,) = machine.handle(p.NodeStopped("a", 0))
        assert end.outcome is p.Outcome.PREEMPTED

    def test_does_not_hide_a_job_that_has_failed_already(self) -> None:
        machine = running(max_restarts=0)
        machine.handle(p.NodeFailed("a", 0, "x"))
        machine.handle(p.Preempted("a", 15, "SIGTERM"))
        (end,) = machine.handle(p.NodeStopped("a", 0))
        assert end.outcome is p.Outcome.FAILED


class TestUnhealthy:
    REASON = "node a is unhealthy: the GPU check failed"

    def test_a_node_that_cannot_join_ends_the_job(self) -> None:
        (end,) = job().handle(p.NodeUnhealthy("a", -1, "the GPU check failed"))
        assert end == p.End("a", p.Outcome.EXCLUDED, self.REASON)

    def test_in_a_round_it_stops_the_round(self) -> None:
        machine = running(max_restarts=3)
        decided, stop = machine.handle(p.NodeUnhealthy("a", 0, "the GPU check failed"))
        assert decided == p.Decided(0, "end", self.REASON, restarts_left=3)
        assert isinstance(stop, p.Stop)
        (end,) = machine.handle(p.NodeStopped("a", 0))
        assert end == p.End("a", p.Outcome.EXCLUDED, self.REASON)

    def test_before_a_restart_it_takes_the_restart_back(self) -> None:
        machine = running(max_restarts=1)
        machine.handle(p.NodeFailed("a", 0, "x"))
        unhealthy = p.NodeUnhealthy("a", 0, "the GPU check failed")
        assert machine.handle(unhealthy) == [p.Decided(0, "end", self.REASON, restarts_left=1)]
        assert machine.handle(unhealthy) == []
        (end,) = machine.handle(p.NodeStopped("a", 0))
        assert end.outcome is p.Outcome.EXCLUDED
        assert machine.restarts_used == 0

    def test_does_not_hide_what_has_ended_the_job_already(self) -> None:
        machine = running()
        machine.handle(p.NodeFailed("a", 0, "x"))
        assert machine.handle(p.NodeUnhealthy("a", 0, "y")) == []
        (end,) = machine.handle(p.NodeStopped("a", 0))
        assert end.outcome is p.Outcome.FAILED

    def test_of_a_round_that_is_over_is_stale(self) -> None:
        machine = running(max_restarts=1)
        machine.handle(p.NodeFailed("a", 0, "x"))
        machine.handle(p.NodeStopped("a", 0))
        assert machine.handle(p.NodeUnhealthy("a", 0, "y")) == []


def test_a_signal_before_any_node_has_joined_ends_the_job_for_its_node() -> None:
    (end,) = job().handle(p.Preempted("a", 15, "SIGTERM"))
    assert (end.node, end.outcome) == ("a", p.Outcome.PREEMPTED)


def test_stale_and_foreign_events_are_ignored() -> None:
    machine = running(max_restarts=3)
    machine.handle(p.NodeFailed("a", 0, "x"))
    machine.handle(p.NodeStopped("a", 0))
    assert machine.round == 1
    for event in (
        p.NodeFailed("a", 0, "late"),
        p.NodeStopped("a", 0),
        p.NodeFinished("a", 0),
        p.NodeFailed("stranger", 1, "x"),
    ):
        assert machine.handle(event) == []
    assert machine.restarts_used == 1


NODES = ["a", "b", "c"]
EVENTS = st.one_of(
    st.builds(p.NodeJoined, st.sampled_from(NODES), st.integers(1, 8)),
    st.builds(p.NodeFailed, st.sampled_from(NODES), st.integers(0, 5), st.just("x")),
    st.builds(p.NodeFinished, st.sampled_from(NODES), st.integers(0, 5)),
    st.builds(
        p.NodeStopped,
        st.sampled_from(NODES),
        st.integers(0, 5),
        st.booleans(),
        iterations=st.builds(Iterations, st.none() | st.just(0), st.none() | st.integers(0, 3)),
    ),
    st.builds(p.ShutdownRequested, st.sampled_from(NODES), st.integers(0, 5), st.just("")),
    st.builds(p.NodeUnhealthy, st.sampled_from(NODES), st.integers(-1, 5), st.just("x")),
    st.builds(p.Preempted, st.sampled_from(NODES), st.just(15), st.just("SIGTERM")),
)


@given(st.lists(EVENTS, max_size=60), st.integers(0, 3), st.integers(1, 3))
def test_whatever_arrives(events: list[p.Event], budget: int, min_nodes: int) -> None:
    """The budget holds, rounds only grow, one start per round, nothing after the end."""
    machine = job(max_restarts=budget, min_nodes=min_nodes)
    rounds: list[int] = []
    ended = False
    for event in events:
        commands = machine.handle(event)
        assert not (ended and commands), "a command after the end"
        starts = of(p.Start, commands)
        if starts:
            rounds.append(starts[0].round)
            places = [(s.first_rank, s.slots) for s in starts]
            world = [r for first, slots in places for r in range(first, first + slots)]
            assert world == list(range(starts[0].world_size)), "each rank in exactly one place"
        ended = ended or bool(of(p.End, commands))
    assert rounds == list(range(len(rounds)))
    assert machine.restarts_used <= budget
    assert len(rounds) <= budget + 1
