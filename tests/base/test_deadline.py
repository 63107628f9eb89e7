"""Calls that may never return."""

from __future__ import annotations

import threading

import pytest

from undaunted.base.deadline import within


def test_the_result_of_a_call_that_is_in_time() -> None:
    assert within(10.0, lambda: 7, 0) == 7


def test_an_exception_counts_as_no_result() -> None:
    def fail() -> int:
        raise OSError("gone")

    assert within(10.0, fail, 3) == 3


@pytest.mark.leaves("threads")
def test_a_call_that_hangs_is_left_behind() -> None:
    release = threading.Event()
    try:
        assert within(0.01, release.wait, None) is None
    finally:
        release.set()
