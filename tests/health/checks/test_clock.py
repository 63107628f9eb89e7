from __future__ import annotations

import pytest

from undaunted.health.check import Settings
from undaunted.health.checks import clock
from undaunted.health.checks.clock import Clock, kernel_clock


@pytest.mark.parametrize(
    ("error_s", "is_set", "wrong", "told"),
    [(0.01, True, False, False), (0.2, True, True, True), (16.0, False, False, True)],
)
def test_how_wrong_it_may_be(error_s: float, is_set: bool, wrong: bool, told: bool) -> None:
    found = Clock(0.1, lambda: (error_s, is_set)).run({})
    assert (found is not None) is told
    assert found is None or found.failed is wrong


def test_a_kernel_that_does_not_tell() -> None:
    def ask() -> tuple[float, bool]:
        raise OSError(1, "Operation not permitted")

    found = Clock(0.1, ask).run({})
    assert found is not None
    assert not found.failed


def test_the_kernel_tells() -> None:
    error_s, _ = kernel_clock()
    assert 0 <= error_s < 3600


def test_it_is_asked_for() -> None:
    assert clock.checks(Settings()) == []
    assert len(clock.checks(Settings(clock_s=0.1))) == 1
