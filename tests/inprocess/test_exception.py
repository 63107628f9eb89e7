from __future__ import annotations

import builtins

import pytest

from undaunted.inprocess import exception


@pytest.mark.parametrize("name", ["HealthCheckError", "InternalError", "TimeoutError"])
def test_errors_have_one_base(name: str) -> None:
    assert issubclass(getattr(exception, name), exception.RestartError)
    assert issubclass(exception.RestartError, Exception)


def test_an_abort_is_not_caught_by_chance() -> None:
    assert not issubclass(exception.RestartAbort, Exception)


def test_timeouts_are_caught_as_such() -> None:
    with pytest.raises(builtins.TimeoutError, match="10 s"):
        raise exception.TimeoutError("10 s are over")
