"""What follows what: one node, and what nodes report of a round."""

from __future__ import annotations

import pytest

from tests.coordinator.policy.driving import ADDRESS, PORT, Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.messages import Iterations
from undaunted.coordinator.policy.policy import GRACE_AFTER_FAILURE_S, GRACE_ON_REQUEST_S


def one(**config: object) -> Driver:
    return running("a", slots=4, **config)


def test_a_job_of_one_node_starts_at_once() -> None:
    job = Driver(max_restarts=3)
    (start,) = job.join("a", slots=4)
    assert start == m.Start("a", 0, 0, 1, 0, 4, 4, 3, ADDRESS, PORT)


def test_a_node_that_joins_twice_counts_once() -> None:
    job = Driver(min_nodes=2)
    job.join("a")
    assert job.join("a") == []
    assert not job.policy.running


def test_a_failure_within_budget_restarts() -> None:
    job = one(max_restarts=1)
    decided, stop = job.fail("a", "rank 1: exit code 1")
    assert decided == m.Decided(0, "restart", "rank 1: exit code 1", restarts_left=0)
    assert stop == m.Stop("a", 0, "rank 1: exit code 1", GRACE_AFTER_FAILURE_S, failed=True)
    blamed, start = job.stop("a")
    assert blamed == m.Blamed(0, "a", "node a: rank 1: exit code 1")
    assert isinstance(start, m.Start)
    assert start.round == 1


def test_a_failure_without_budget_ends_the_job_with_its_cause() -> None:
    job = one()
    decided, _ = job.fail("a", "rank 1: exit code 1")
    assert isinstance(decided, m.Decided)
    assert decided.action == "end"
    job.stop("a")
    assert job.outcomes == {"a": "failed"}
    assert job.ends["a"].reason == "rank 1: exit code 1; --max-restarts is 0"


def test_the_rank_that_is_found_out_to_have_failed_first_is_the_cause() -> None:
    job = one()
    job.fail("a", "rank 1: exit code 1")
    job.stop("a", verdict="rank 0 (node a, pid 7) failed: SaveError")
    assert job.ends["a"].reason == ("rank 0 (node a, pid 7) failed: SaveError; --max-restarts is 0")


def test_a_budget_that_is_used_up_is_said() -> None:
    job = one(max_restarts=1)
    for _ in range(2):
        job.fail("a", "x")
        job.stop("a")
    assert job.ends["a"].reason == "x; no restart is left of 1"


def test_a_program_that_was_called_wrongly_is_not_restarted() -> None:
    job = one(max_restarts=3)
    job.fail("a", "rank 1: exit code 2")
    *_, decided, end = job.stop("a", misuse=True)
    assert isinstance(decided, m.Decided)
    assert (decided.action, decided.restarts_left) == ("end", 3)
    assert isinstance(end, m.End)
    assert end.outcome is m.Outcome.FAILED
    assert end.reason.startswith("rank 1: exit code 2; not restarted: ")


@pytest.mark.parametrize(
    "second", [{"misuse": False}, {"misuse": True, "iterations": Iterations(0, 1)}]
)
def test_a_node_that_trained_speaks_against_misuse(second: dict[str, object]) -> None:
    job = running("a", "b", min_nodes=2, max_restarts=1)
    job.fail("a", "rank 0: exit code 2")
    job.stop("a", misuse=True)
    job.stop("b", **second)
    assert job.policy.round == 1


@pytest.mark.parametrize("second", [True, None])
def test_misuse_on_several_nodes(second: bool | None) -> None:
    job = running("a", "b", min_nodes=2, max_restarts=1)
    job.fail("a", "rank 0: exit code 2")
    job.stop("a", misuse=True)
    job.stop("b", misuse=second)
    assert set(job.outcomes.values()) == {"failed"}


def test_a_later_round_is_no_misuse() -> None:
    job = one(max_restarts=2)
    for _ in range(2):
        job.fail("a", "rank 0: exit code 2")
        job.stop("a", misuse=None if job.policy.round == 0 else True)
    assert job.policy.round == 2


def test_the_stop_timeout_given_by_the_user_wins() -> None:
    _, stop = one(max_restarts=1, stop_timeout_s=30.0).fail("a")
    assert isinstance(stop, m.Stop)
    assert stop.grace_s == 30.0


def test_several_failures_in_one_round_use_one_restart() -> None:
    job = running("a", "b", min_nodes=2, max_restarts=3)
    job.fail("a", "x")
    assert job.fail("b", "y") == []
    assert job.policy.restarts_used == 1
    assert job.stop("a") == []  # b still has processes of round 0
    assert len(of(m.Start, job.stop("b"))) == 2


def test_finished_means_all_nodes() -> None:
    job = running("a", "b", min_nodes=2)
    assert job.finish("a") == []
    assert len(of(m.Stop, job.finish("b"))) == 2
    job.stop("a", "b", all_ok=True)
    assert job.outcomes == {"a": "finished", "b": "finished"}
    assert job.ends["a"].reason == "every rank exited with 0"


def test_ranks_that_others_went_on_without_are_not_passed_over() -> None:
    job = running("a", "b", min_nodes=2)
    job.feed(m.NodeFinished("a", 0, lost=1), m.NodeFinished("b", 0, lost=2))
    job.stop("a", "b", all_ok=True)
    assert job.ends["a"].reason == "every rank exited with 0, but for 3 lost ones"


def test_a_node_that_is_lost_after_it_finished_is_not_missed() -> None:
    job = running("a", "b", min_nodes=2, max_restarts=3)
    job.finish("a")
    assert job.lose("a") == []
    job.finish("b")
    job.stop("b", all_ok=True)
    assert job.outcomes == {"b": "finished"}


def test_ranks_that_a_node_stops_by_itself_have_failed() -> None:
    job = running("a", "b", min_nodes=2, max_restarts=1)
    decided, *_ = job.stop("b", verdict="rank 3: killed by its launcher")
    assert isinstance(decided, m.Decided)
    assert decided.reason == "node b: rank 3: killed by its launcher"
    assert {stop.node for stop in of(m.Stop, job.said)} == {"a"}


def test_a_node_that_stopped_with_every_rank_done_has_finished() -> None:
    job = running("a", "b", min_nodes=2)
    assert job.stop("a", all_ok=True) == []
    assert of(m.Stop, job.finish("b"))


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (m.ShutdownRequested("a", 0, "done early"), "no_restart"),
        (m.ExclusionRequested("a", 0, "bad GPU"), "excluded"),
    ],
)
def test_a_control_request_ends_the_job_although_restarts_are_left(
    event: m.ShutdownRequested | m.ExclusionRequested, outcome: str
) -> None:
    job = one(max_restarts=5)
    _, stop = job.feed(event)
    assert isinstance(stop, m.Stop)
    assert stop.grace_s == GRACE_ON_REQUEST_S
    job.stop("a")
    assert job.outcomes == {"a": outcome}
    assert job.ends["a"].reason.endswith(event.description)


def test_a_control_request_while_a_round_is_stopped_prevents_the_restart() -> None:
    job = one(max_restarts=5)
    job.fail("a", "x")
    shutdown = m.ShutdownRequested("a", 0, "enough", by="an operator")
    reason = "an operator on node a asked for a shutdown: enough"
    assert job.feed(shutdown) == [m.Decided(0, "end", reason, restarts_left=5)]
    assert job.feed(shutdown) == []
    job.stop("a")
    assert job.outcomes == {"a": "no_restart"}


class TestProgress:
    def failed_rounds(self, job: Driver, rounds: int, last: int) -> list[m.Command]:
        commands: list[m.Command] = []
        for _ in range(rounds):
            job.fail("a", "x")
            commands = job.stop("a", iterations=Iterations(40, last))
        return commands

    def test_a_job_that_does_not_advance_ends_with_93_although_restarts_are_left(self) -> None:
        job = one(max_restarts=10)
        _, decided, end = self.failed_rounds(job, 3, last=40)
        assert isinstance(decided, m.Decided)
        assert (decided.action, decided.round, decided.restarts_left) == ("end", 2, 8)
        assert isinstance(end, m.End)
        assert end.outcome is m.Outcome.NO_RESTART
        assert end.outcome.exit_code == 93
        assert "no progress in 3 rounds" in end.reason
        assert job.stop("a") == []

    def test_a_budget_that_is_used_up_first_is_a_failure(self) -> None:
        job = one(max_restarts=2)
        self.failed_rounds(job, 3, last=40)
        assert job.outcomes == {"a": "failed"}

    def test_without_iterations_every_restart_is_taken_and_it_is_said_once(self) -> None:
        job = one(max_restarts=20)
        for _ in range(21):
            job.fail("a", "x")
            job.stop("a")
        assert job.outcomes == {"a": "failed"}
        assert len(of(m.Say, job.said)) == 1

    def test_the_settings_reach_the_tracker(self) -> None:
        job = one(max_restarts=10, max_no_progress_cycles=1, min_progress_iterations=5)
        self.failed_rounds(job, 1, last=44)
        assert job.outcomes == {"a": "no_restart"}
        off = one(max_restarts=10, max_no_progress_cycles=0)
        assert len(of(m.Start, self.failed_rounds(off, 9, last=40))) == 1
        assert off.policy.tracker.known == (40, ())

    def test_a_job_that_is_told_to_stop_is_not_judged(self) -> None:
        job = one(max_restarts=10, max_no_progress_cycles=1)
        job.fail("a", "x")
        job.signal("a")
        job.stop("a", iterations=Iterations(4, 4))
        assert job.outcomes == {"a": "preempted"}


class TestPreemption:
    def test_passes_the_signal_on_and_grants_the_long_grace(self) -> None:
        job = one(max_restarts=5, term_timeout_s=77.0)
        decided, stop = job.feed(m.Preempted("a", 2, "SIGINT"))
        reason = "the launcher on node a received SIGINT"
        assert decided == m.Decided(0, "end", reason, restarts_left=5)
        assert stop == m.Stop("a", 0, reason, 77.0, 2, "preempted")
        (end,) = job.stop("a")
        assert end == m.End("a", m.Outcome.PREEMPTED, reason)

    def test_ranks_that_all_exit_with_0_have_finished(self) -> None:
        job = one()
        job.signal("a")
        (end,) = job.stop("a", all_ok=True)
        assert isinstance(end, m.End)
        assert end.outcome is m.Outcome.FINISHED
        assert end.reason.endswith("received SIGTERM, and every rank exited with 0")

    def test_while_a_round_is_stopped_for_a_restart_there_is_no_restart(self) -> None:
        job = one(max_restarts=5)
        job.fail("a", "x")
        assert job.signal("a") == []
        job.stop("a")
        assert job.outcomes == {"a": "preempted"}

    def test_another_signal_is_passed_on_while_the_round_is_stopped(self) -> None:
        job = one(max_restarts=5, term_timeout_s=9.0)
        job.fail("a", "x")
        (stop,) = job.feed(m.Preempted("a", 2, "SIGINT"))
        assert isinstance(stop, m.Stop)
        assert (stop.signal, stop.grace_s) == (2, 9.0)
        assert job.feed(m.Preempted("a", 2, "SIGINT")) == []

    def test_does_not_hide_a_job_that_has_failed_already(self) -> None:
        job = one()
        job.fail("a", "x")
        job.signal("a")
        job.stop("a")
        assert job.outcomes == {"a": "failed"}

    def test_before_any_node_has_joined_ends_the_job_for_its_node(self) -> None:
        job = Driver()
        job.signal("a")
        assert job.outcomes == {"a": "preempted"}
        assert job.policy.ended


class TestUnhealthy:
    REASON = "node a is unhealthy: the GPU check failed"

    @staticmethod
    def unhealthy(number: int) -> m.NodeUnhealthy:
        return m.NodeUnhealthy("a", number, "the GPU check failed")

    def test_a_node_that_cannot_join_ends_the_job(self) -> None:
        job = Driver()
        assert job.feed(self.unhealthy(-1)) == [m.End("a", m.Outcome.EXCLUDED, self.REASON)]
        assert job.policy.ended

    def test_in_a_round_it_stops_the_round(self) -> None:
        job = one(max_restarts=3)
        decided, stop = job.feed(self.unhealthy(0))
        assert decided == m.Decided(0, "end", self.REASON, restarts_left=3)
        assert stop == m.Stop("a", 0, self.REASON, GRACE_AFTER_FAILURE_S)
        _, end = job.stop("a")
        assert end == m.End("a", m.Outcome.EXCLUDED, self.REASON)

    def test_before_a_restart_it_takes_the_restart_back(self) -> None:
        job = one(max_restarts=1)
        job.fail("a", "x")
        assert job.feed(self.unhealthy(0)) == [m.Decided(0, "end", self.REASON, restarts_left=1)]
        assert job.feed(self.unhealthy(0)) == []
        job.stop("a")
        assert job.outcomes == {"a": "excluded"}
        assert job.policy.restarts_used == 0

    def test_does_not_hide_what_has_ended_the_job_already(self) -> None:
        job = one()
        job.fail("a", "x")
        assert job.feed(self.unhealthy(0)) == []
        job.stop("a")
        assert job.outcomes == {"a": "failed"}

    def test_of_a_round_that_is_over_is_stale(self) -> None:
        job = one(max_restarts=1)
        job.fail("a", "x")
        job.stop("a")
        assert job.feed(self.unhealthy(0)) == []


def test_stale_and_foreign_events_are_ignored() -> None:
    job = one(max_restarts=3)
    job.fail("a", "x")
    job.stop("a")
    assert job.policy.round == 1
    for event in (
        m.NodeFailed("a", 0, "late"),
        m.NodeStopped("a", 0),
        m.NodeFinished("a", 0),
        m.NodeFailed("stranger", 1, "x"),
        m.NodeLost("stranger", "x"),
        m.TableAccepted(1, "", 0),
        m.TimerFired("stop", 0),
        m.TimerFired("of a later build", 1),
    ):
        assert job.feed(event) == []
    assert job.policy.restarts_used == 1


def test_who_joins_after_the_end_is_told_the_outcome() -> None:
    job = one()
    job.fail("a", "x")
    job.stop("a")
    assert job.lose("a") == []
    (end,) = job.join("late")
    assert end == m.End("late", m.Outcome.FAILED, "x; --max-restarts is 0")


def test_a_rank_that_the_signal_to_stop_has_ended_is_no_cause() -> None:
    job = running("a", "b", min_nodes=2)
    job.signal("a")
    hurried = job.fail("b", "rank 1: killed by SIGTERM", by_signal=True)
    assert {stop.node for stop in of(m.Stop, hurried)} == {"a", "b"}
    job.stop("a", "b")
    assert not of(m.Blamed, job.said)
    assert job.ends["a"].reason == "the launcher on node a received SIGTERM"
