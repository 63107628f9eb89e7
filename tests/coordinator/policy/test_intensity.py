"""Restarts that are long ago do not count, and those that are not are taken with growing pauses."""

from __future__ import annotations

import pytest

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.budget import LONGEST_PAUSE_S, Intensity
from undaunted.coordinator.policy.policy import PolicyState
from undaunted.coordinator.policy.verdict import Advice, Attempt


def job_of(*names: str, limit: tuple[int, float] | None = (3, 600.0), **config: object) -> Driver:
    return running(
        *names, max_restarts=100, restart_intensity=limit, min_nodes=len(names), **config
    )


def fail_all(job: Driver, *names: str) -> list[m.Command]:
    job.fail(names[0])
    return job.stop(*names)


@pytest.mark.parametrize(
    ("recent", "pause_s"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (9, LONGEST_PAUSE_S)]
)
def test_pauses_grow_up_to_a_bound(recent: int, pause_s: float) -> None:
    assert Intensity((9, 600.0), set(range(recent))).pause_s == pause_s
    assert Intensity((9999, 600.0), set(range(9999))).pause_s == LONGEST_PAUSE_S


def test_the_first_restart_comes_at_once_and_the_next_one_after_a_pause() -> None:
    job = job_of("a")
    assert of(m.Start, fail_all(job, "a"))
    commands = fail_all(job, "a")
    assert not of(m.Start, commands)
    assert job.policy.state is PolicyState.FORMING
    assert job.timers["pause"] == m.SetTimer("pause", 2, 1.0)
    (start,) = job.fire("pause")
    assert isinstance(start, m.Start)
    assert start.round == 2


def test_too_many_restarts_within_the_time_end_the_job() -> None:
    job = job_of("a", limit=(2, 600.0))
    fail_all(job, "a")
    fail_all(job, "a")
    job.fire("pause")
    fail_all(job, "a")
    assert job.outcomes == {"a": "failed"}
    assert "2 of 2 restarts within 10 min 00 s" in job.ends["a"].reason
    assert job.policy.restarts_used == 2


def test_a_restart_that_is_long_ago_does_not_count() -> None:
    job = job_of("a", limit=(1, 600.0))
    for number in range(5):
        assert of(m.Start, fail_all(job, "a")), "without a pause"
        assert job.timers[f"forget {number}"] == m.SetTimer(f"forget {number}", number, 600.0)
        job.fire(f"forget {number}")
    assert job.policy.restarts_used == 5


def test_without_a_limit_nothing_pauses_and_no_timer_is_set() -> None:
    job = job_of("a", limit=None)
    for _ in range(20):
        assert of(m.Start, fail_all(job, "a"))
    assert set(job.timers) <= {"prepare", "stop"}


def test_the_whole_budget_counts_as_well() -> None:
    job = running("a", max_restarts=1, restart_intensity=(9, 600.0))
    fail_all(job, "a")
    fail_all(job, "a")
    assert job.ends["a"].reason.endswith("no restart is left of 1")


def test_a_restart_that_is_called_off_does_not_count() -> None:
    job = job_of("a", limit=(1, 600.0))
    job.fail("a")
    job.feed(m.ShutdownRequested("a", 0, "enough"))
    assert job.policy.intensity.recent == set()
    assert job.policy.restarts_used == 0


class TestDuringThePause:
    def paused(self) -> Driver:
        job = job_of("a", "b")
        fail_all(job, "a", "b")
        fail_all(job, "a", "b")
        assert job.policy.state is PolicyState.FORMING
        return job

    def test_nodes_that_come_or_go_do_not_end_it(self) -> None:
        job = self.paused()
        job.lose("b")
        assert not of(m.Start, job.join("b", "c"))
        starts = job.fire("pause")
        assert {start.node for start in of(m.Start, starts)} == {"a", "b"}

    def test_a_node_that_leaves_is_let_go_at_once(self) -> None:
        job = self.paused()
        assert of(m.End, job.signal("b"))
        job.fire("pause")
        assert job.outcomes == {"a": "preempted", "b": "preempted"}

    def test_others_are_waited_for_after_it(self) -> None:
        job = self.paused()
        job.lose("b")
        job.timers.pop("join", None)
        job.fire("pause")
        assert job.policy.state is PolicyState.FORMING
        assert "join" in job.timers

    def test_a_quorum_that_is_lost_still_holds_up_the_round(self) -> None:
        job = self.paused()
        job.feed(m.QuorumLost("nobody answers"))
        assert not of(m.Start, job.fire("pause"))
        assert of(m.Start, job.feed(m.QuorumRegained()))

    def test_a_quorum_that_comes_back_does_not_end_it(self) -> None:
        job = self.paused()
        job.feed(m.QuorumLost("nobody answers"))
        assert job.feed(m.QuorumRegained()) == []
        assert of(m.Start, job.fire("pause"))


def test_a_pause_of_a_leader_before_means_nothing() -> None:
    job = job_of("a")
    fail_all(job, "a")
    assert job.feed(m.TimerFired("pause", 1)) == []
    assert job.policy.running


def test_no_pause_where_the_restart_is_free() -> None:
    """Of nodes that join an elastic job."""
    job = running("a", min_nodes=1, max_nodes=2, elastic=True, max_restarts=9,
                  restart_intensity=(3, 600.0))  # fmt: skip
    fail_all(job, "a")
    job.join("b")
    job.fire("joined")
    assert {start.node for start in of(m.Start, job.stop("a"))} == {"a", "b"}


class TestTheSameFailureAgain:
    """Nothing tells that the next restart will do better than those before."""

    def job(self, repeats: list[int], **config: object) -> Driver:
        """A job whose rounds fail so often in the same way, one after the other."""
        counts = iter(repeats)

        def advise(history: bytes, attempt: Attempt) -> Advice:
            del attempt
            return Advice(None, history, repeats=next(counts))

        return job_of("a", advise=advise, **{"limit": None, **config})

    def test_the_first_restarts_come_at_once_then_pauses_grow(self) -> None:
        job = self.job([1, 2, 3, 4, 5, 6])
        for _ in range(3):
            assert of(m.Start, fail_all(job, "a"))
        for number, pause_s in enumerate([1.0, 2.0, 4.0], 4):
            assert not of(m.Start, fail_all(job, "a"))
            assert job.timers["pause"] == m.SetTimer("pause", number, pause_s)
            assert of(m.Start, job.fire("pause"))

    def test_no_pause_is_longer_than_the_longest(self) -> None:
        job = self.job([32])
        fail_all(job, "a")
        assert job.timers["pause"].delay_s == LONGEST_PAUSE_S

    def test_no_pause_after_progress_or_another_failure(self) -> None:
        job = self.job([4, 1, 0, 2])
        fail_all(job, "a")
        job.fire("pause")
        for _ in range(3):
            assert of(m.Start, fail_all(job, "a"))

    def test_somebody_who_orders_a_restart_does_not_wait(self) -> None:
        job = self.job([9])
        fail_all(job, "a")
        assert of(m.Start, job.feed(m.RestartOrdered("a", 0, "ben")))

    def test_the_longer_pause_counts(self) -> None:
        job = self.job([1, 9], limit=(3, 600.0))
        fail_all(job, "a")
        fail_all(job, "a")
        assert job.timers["pause"].delay_s == 32.0


def test_the_line_about_a_pause_says_how_long_it_is() -> None:
    job = job_of("a", limit=(9, 600.0))
    fail_all(job, "a")
    told = [one.pause_s for one in of(m.Say, fail_all(job, "a"))]
    assert told == [1.0]
