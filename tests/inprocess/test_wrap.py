from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from undaunted import inprocess
from undaunted.inprocess.rank import connection

if TYPE_CHECKING:
    from tests.inprocess.rank.fake_guard import FakeGuard

pytestmark = pytest.mark.torch


def test_as_a_decorator(guard: FakeGuard) -> None:
    @inprocess.Wrapper()
    def train(number: int, *, name: str = "x") -> Any:
        """Trains."""
        return number, name

    assert train(3, name="y") == (3, "y")
    assert (train.__name__, train.__doc__) == ("train", "Trains.")


def test_a_wrapper_may_be_used_for_several_functions(guard: FakeGuard) -> None:
    wrapper = inprocess.Wrapper()
    assert wrapper(lambda: 1)() == 1
    assert wrapper(lambda: 2)() == 2


def test_one_that_is_not_enabled_returns_the_function() -> None:
    def train() -> None: ...

    assert inprocess.Wrapper(enabled=False)(train) is train


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="soft_timeout"):
        inprocess.Wrapper(soft_timeout=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="soft_timeout < hard_timeout"):
        inprocess.Wrapper(soft_timeout=timedelta(seconds=100))


def test_checks_of_the_device_are_added_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(state: Any) -> Any:
        return state

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert inprocess.Wrapper(health_check=mine).restart_health_check is mine
    monkeypatch.setenv("LOCAL_RANK", "2")
    check: Any = inprocess.Wrapper(health_check=inprocess.Compose(mine, mine)).restart_health_check
    names = [type(one).__name__ for one in check.instances[2:]]
    assert check.instances[:2] == (mine, mine)
    assert names == ["ChainedGPUHealthCheck", "ChainedNVLHealthCheck", "ChainedNicHealthCheck"]


def test_limits_of_restarts(guard: FakeGuard) -> None:
    def train() -> None:
        raise RuntimeError

    wrapper = inprocess.Wrapper(initialize=inprocess.initialize.RetryController(max_iterations=3))
    with pytest.raises(inprocess.exception.RestartAbort, match="iteration=3"):
        wrapper(train)()


@pytest.mark.e2e
@pytest.mark.parametrize("calls", [1, 2])
def test_one_process_with_a_guard_of_its_own(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "UNDAUNTED_INPROCESS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def train(call: inprocess.CallWrapper) -> int:
        assert call.store.add("count", 1) == 1
        if call.iteration < 2:
            raise RuntimeError
        return call.iteration

    try:
        for _ in range(calls):
            assert inprocess.Wrapper()(train)(None) == 2
    finally:
        connection.close()
