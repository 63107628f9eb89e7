"""When restarts stop being worth it, and that nothing unknown is held against a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.policy.budget import ProgressTracker
from undaunted.coordinator.policy.messages import Iterations

UNKNOWN = Iterations(problem="latest.txt: no such file")
NO_STEP = Iterations()


def ended_after(tracker: ProgressTracker, *rounds: Iterations) -> tuple[int | None, str]:
    """The round after which the job ends, and why."""
    for number, seen in enumerate(rounds):
        if reason := tracker.round_over(number, [seen]):
            return number, reason
    return None, ""


def stepped(first: int, last: int) -> Iterations:
    return Iterations(first, last)


def test_rounds_that_advance_go_on_for_ever() -> None:
    rounds = [stepped(10 * n, 10 * n + 11) for n in range(50)]
    assert ended_after(ProgressTracker(), *rounds) == (None, "")


def test_three_rounds_at_the_same_place_end_the_job_round_0_included() -> None:
    number, reason = ended_after(ProgressTracker(), *[stepped(40, 40)] * 9)
    assert number == 2
    assert reason == (
        "no progress in 3 rounds in a row: the job was at iteration 40, then round 0 reached 40, "
        "round 1 reached 40, round 2 reached 40; restarts go on only if a round advances by at "
        "least 1 (--ft-max-no-progress-cycles 3, 0 = off)"
    )


def test_a_round_that_advances_begins_the_count_anew() -> None:
    stuck = stepped(40, 50)
    rounds = [stuck, stuck, stuck, stepped(40, 51), stuck, stuck, stuck]
    assert ended_after(ProgressTracker(), *rounds)[0] == 6


def test_to_recover_what_was_lost_is_no_progress() -> None:
    rounds = [stepped(0, 50), stepped(0, 20), stepped(0, 50), stepped(0, 45)]
    number, reason = ended_after(ProgressTracker(), *rounds)
    assert number == 3
    assert "was at iteration 50, then round 1 reached 20, round 2 reached 50, round 3" in reason


def test_a_round_without_any_iteration_counts_once_the_job_is_known_to_report_them() -> None:
    number, reason = ended_after(ProgressTracker(), stepped(0, 5), NO_STEP, NO_STEP, NO_STEP)
    assert number == 3
    assert "round 3 began no iteration" in reason


def test_a_job_that_never_reports_iterations_is_never_ended() -> None:
    assert ended_after(ProgressTracker(), *[NO_STEP] * 200) == (None, "")


def test_the_unknown_neither_counts_nor_resets() -> None:
    stuck = stepped(40, 40)
    assert ended_after(ProgressTracker(), *[UNKNOWN] * 50) == (None, "")
    assert ended_after(ProgressTracker(), stuck, stuck, *[UNKNOWN] * 9, stuck)[0] == 11


def test_a_first_checkpoint_is_progress() -> None:
    saved = Iterations(None, 100)
    assert ended_after(ProgressTracker(), UNKNOWN, saved, saved, saved, saved)[0] == 4


def test_the_least_progress_asked_for() -> None:
    slow = [stepped(5 * n, 5 * n + 5) for n in range(9)]
    assert ended_after(ProgressTracker(min_iterations=5), *slow)[0] is None
    assert ended_after(ProgressTracker(min_iterations=6), *slow)[0] == 2


@pytest.mark.parametrize("off", [0, -1])
def test_off(off: int) -> None:
    tracker = ProgressTracker(max_rounds=off, max_restarts=100)
    assert ended_after(tracker, *[stepped(0, 0)] * 50) == (None, "")
    assert tracker.to_say([NO_STEP]) == ""


def test_one_node_that_knows_is_enough() -> None:
    tracker = ProgressTracker(max_rounds=1)
    assert tracker.round_over(0, [UNKNOWN, stepped(0, 7), stepped(2, 5)]) == ""
    reason = tracker.round_over(1, [stepped(0, 6), UNKNOWN])
    assert "in 1 round: the job was at iteration 7, then round 1 reached 6" in reason


def test_a_long_count_names_the_last_rounds_only() -> None:
    _, reason = ended_after(ProgressTracker(max_rounds=100), *[stepped(0, 0)] * 200)
    assert "then ..., round 95 reached 0" in reason
    assert len(reason) < 350


class TestRemark:
    def test_says_once_why_nothing_is_known(self) -> None:
        tracker = ProgressTracker(max_restarts=10)
        tracker.round_over(0, [NO_STEP])
        assert "no rank has called undaunted.step" in tracker.to_say([NO_STEP])
        assert tracker.to_say([NO_STEP]) == ""

    def test_names_the_file(self) -> None:
        tracker = ProgressTracker(max_restarts=10)
        tracker.round_over(0, [stepped(0, 5)])
        assert tracker.to_say([stepped(0, 5)]) == ""
        assert "latest.txt: no such file" in tracker.to_say([UNKNOWN])

    def test_is_left_out_where_the_budget_ends_the_job_first(self) -> None:
        assert ProgressTracker(max_restarts=2).to_say([NO_STEP]) == ""


SEEN = st.one_of(
    st.just(NO_STEP),
    st.just(UNKNOWN),
    st.builds(
        lambda first, more: stepped(first, first + more), st.integers(0, 9), st.integers(0, 9)
    ),
)


@given(st.lists(SEEN, max_size=30), st.integers(1, 4))
def test_whatever_is_seen(rounds: list[Iterations], limit: int) -> None:
    """An end is preceded by enough known rounds none of which set a new mark."""
    number, _ = ended_after(ProgressTracker(max_rounds=limit), *rounds)
    known = [seen for seen in rounds[: (number or 0) + 1] if not seen.problem]
    if number is None:
        return
    stuck, before = known[-limit:], known[:-limit]
    assert len(stuck) == limit
    first = next(seen.first for seen in known if seen.first is not None)
    mark = max([first, *(seen.last for seen in before if seen.last is not None)])
    assert all(seen.last is None or seen.last <= mark for seen in stuck)


def test_rounds_that_begin_with_an_older_checkpoint_are_counted_anew() -> None:
    job = ProgressTracker(max_rounds=3)
    assert ended_after(job, *[stepped(90, 91)] * 2, *[stepped(60, 61)] * 2)[0] is None
    assert ended_after(job, stepped(60, 61))[0] is not None
    job = ProgressTracker(max_rounds=3)  # not the other way round
    assert ended_after(job, *[stepped(60, 61)] * 3, stepped(61, 61))[0] == 3


def test_who_has_not_seen_the_ranks_says_nothing_about_them() -> None:
    tracker = ProgressTracker(max_restarts=5)
    assert "no rank has called" in tracker.to_say([NO_STEP])
    successor = ProgressTracker(max_restarts=5)
    successor.restore(*tracker.known)
    assert successor.to_say([NO_STEP]) == ""
