"""Batches of a step come once more."""

from __future__ import annotations

import pytest

from undaunted.training.rerun.batches import RerunDataIterator


def test_a_step_and_its_repetition():
    batches = RerunDataIterator(range(10))
    assert [next(batches), next(batches)] == [0, 1]
    batches.rewind()
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(AssertionError, match="No more batches to replay"):
        next(batches)
    batches.advance()
    assert next(batches) == 2


def test_what_the_program_puts_into_a_batch_is_not_kept():
    batches = RerunDataIterator([{"x": 1}])
    for _ in range(3):
        batch = next(batches)
        assert batch == {"x": 1}
        batch.pop("x")
        batches.rewind()


def test_nothing_is_kept_where_nothing_is_run_again():
    batches = RerunDataIterator(range(10))
    batches.keeps = False
    next(batches)
    assert batches.state_dict()["saved_microbatches"] == []


def test_another_process_goes_on():
    first = RerunDataIterator(range(10))
    next(first), next(first)
    first.rewind()
    next(first)
    second = RerunDataIterator(range(10))
    second.load_state_dict(first.state_dict())
    assert next(second) == 1
    second.advance()
    assert next(second) == 0  # the source has begun anew


def test_a_source_that_repeats_the_unfinished_step():
    first = RerunDataIterator(range(10))
    next(first), next(first)
    first.rewind()
    second = RerunDataIterator(range(10), source_repeats=True)
    second.load_state_dict(first.state_dict())
    assert [next(second), next(second)] == [0, 1]
    second.advance()
    assert list(second) == list(range(2, 10))
