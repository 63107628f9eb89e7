from __future__ import annotations

import pytest

import undaunted
from undaunted.coordinator import epoch


@pytest.mark.parametrize(("text", "number"), [("123", 123), ("", 0), ("-1", 0), ("x", 0)])
def test_the_epoch_is_in_the_environment(monkeypatch, text, number):
    monkeypatch.setenv(epoch.VARIABLE, text)
    assert undaunted.round_epoch() == number


def test_without_a_launcher_it_is_0(monkeypatch):
    monkeypatch.delenv(epoch.VARIABLE, raising=False)
    assert undaunted.round_epoch() == 0


def test_it_rises_with_rounds_and_leaders():
    numbers = [epoch.number(0, 0), epoch.number(0, 1), epoch.number(7, 0), epoch.number(7, 9)]
    assert numbers == sorted(set(numbers))
    assert epoch.number(8, 0) > epoch.number(7, 10_000)


def test_it_rises_with_the_starts_of_a_job_of_one_node():
    starts = [epoch.of_start(now_s) for now_s in (0.0, 1.8e9, 1.8e9 + 0.1, 3.8e9)]
    assert starts == sorted(set(starts))
    assert starts[0] > 0, "also where the clock is wrong"
    assert epoch.number(starts[1], 10_000) < epoch.number(starts[2], 0)
    assert epoch.number(starts[3], 0) < 1 << 63
