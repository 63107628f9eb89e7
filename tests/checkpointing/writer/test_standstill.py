"""Whether a writer stands still."""

from __future__ import annotations

from undaunted.checkpointing.writer.standstill import CONFIRM_S, Standstill


def test_nothing_is_heard_from_the_start() -> None:
    judge = Standstill(60.0)
    judge.begin(1000.0)
    assert judge.patience_s(1000.0, 0.0) == 60.0
    assert judge.judge(1059.0, 0.0) is None
    assert judge.judge(1060.0, 0.0) is None  # asked twice
    assert judge.patience_s(1060.0, 0.0) == CONFIRM_S
    assert judge.judge(1060.5, 0.0) is None
    assert judge.judge(1061.0, 0.0) == 61.0


def test_progress_counts_whenever_it_is_looked_at() -> None:
    judge = Standstill(60.0)
    judge.begin(1000.0)
    assert judge.judge(5000.0, 4990.0) is None
    assert judge.patience_s(5000.0, 4990.0) == 50.0
    assert judge.patience_s(9000.0, 4990.0) == 0.0


def test_one_that_goes_on_was_stopped_with_the_trainer() -> None:
    """A scheduler may stop a whole job: when it goes on, the trainer may look first."""
    judge = Standstill(60.0)
    judge.begin(1000.0)
    assert judge.judge(9000.0, 1001.0) is None
    assert judge.judge(9001.0, 9000.2) is None
    assert judge.judge(9060.5, 9000.2) is None  # from the beginning
    assert judge.judge(9061.5, 9000.2) is not None


def test_an_answer_and_something_new_to_do_count_as_well() -> None:
    judge = Standstill(60.0)
    judge.begin(1000.0)
    judge.judge(1060.0, 0.0)
    judge.answered()
    assert judge.judge(1061.0, 0.0) is None
    judge.begin(1062.0)
    assert judge.judge(1100.0, 0.0) is None
