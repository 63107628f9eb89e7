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
