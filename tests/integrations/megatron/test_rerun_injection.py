"""Odd results for tests."""

from __future__ import annotations

import math

import pytest

from undaunted.integrations.megatron.rerun_injection import RerunErrorInjector
from undaunted.training.rerun.difference import difference
from undaunted.training.rerun.table import RerunDiagnostic, RerunState

IN_PLACE, FROM_CHECKPOINT = RerunState.RERUNNING_IN_PLACE, RerunState.RERUNNING_FROM_CHECKPOINT


def test_none():
    injector = RerunErrorInjector()
    assert not any(injector.maybe_inject() for _ in range(100))
    assert injector.maybe_miscompare(difference, 1.0, 2.0, IN_PLACE) == difference(1.0, 2.0)


def test_one_at_a_time():
    injector = RerunErrorInjector(1)
    assert injector.maybe_inject()
    assert not injector.maybe_inject()
    assert injector.maybe_miscompare(difference, 1.0, 1.0, IN_PLACE) == math.inf
    assert injector.maybe_inject()


def test_one_of_so_many():
    injector = RerunErrorInjector(10)
    times = 0
    for _ in range(2000):
        times += injector.maybe_inject(rank=3)
        injector.injected_error_type = None
    assert 100 < times < 320


@pytest.mark.parametrize(
    ("kind", "in_place", "elsewhere"),
    [
        (RerunDiagnostic.TRANSIENT_ERROR, math.inf, None),
        (RerunDiagnostic.PERSISTENT_ERROR, 0.0, math.inf),
        (RerunDiagnostic.CORRECT_RESULT, 0.0, 0.0),
    ],
)
def test_kinds(kind, in_place, elsewhere, caplog):
    caplog.set_level("INFO")
    injector = RerunErrorInjector(1, kind)
    injector.maybe_inject()
    assert injector.maybe_miscompare(difference, 1.0, 2.0, IN_PLACE) == in_place
    later = RerunErrorInjector(1, kind)
    later.load_state_dict(injector.state_dict())
    if elsewhere is not None:
        assert later.maybe_miscompare(difference, 1.0, 2.0, FROM_CHECKPOINT) == elsewhere
    assert later.injected_error_type is None
    names = {"transient_error": "Transient error", "persistent_error": "Persistent error"}
    assert f"Injecting error type {names.get(kind.value, 'Expected result')}" in caplog.text


def test_a_bad_rate():
    with pytest.raises(ValueError, match="-1"):
        RerunErrorInjector(-1)
