from __future__ import annotations

import logging
import os
import threading
import time
import timeit
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Optional, Union

import pytest

from tests.inprocess.rank.calls import call
from tests.leaks import count_fds
from undaunted import inprocess
from undaunted.base import threads
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.exception import RestartAbort
from undaunted.inprocess.rank import guard_link
from undaunted.inprocess.wrap import CallWrapper

if TYPE_CHECKING:
    from tests.inprocess.rank.fake_guard import FakeGuard

pytest.importorskip("torch")


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
        guard_link.close()


def test_the_function_gets_it_by_annotation(guard: FakeGuard) -> None:
    def plain(a: int, wrapper: CallWrapper) -> Any:
        return a, wrapper

    def optional(a: int, wrapper: Optional[CallWrapper] = None) -> Any:  # noqa: UP045
        return a, wrapper

    def union(a: int, wrapper: Union[int, CallWrapper] = 0) -> Any:  # noqa: UP007
        return a, wrapper

    def text(a: int, wrapper: "CallWrapper | None" = None) -> Any:  # noqa: UP037
        return a, wrapper

    for function in (plain, optional, union, text):
        a, wrapper = call(function, 5)
        assert a == 5
        assert isinstance(wrapper, CallWrapper)


def test_a_fresh_one_for_every_call(guard: FakeGuard) -> None:
    def itself(wrapper: CallWrapper) -> CallWrapper:
        return wrapper

    first, second = call(itself, None), call(itself, None)
    assert first is not second
    assert (first.iteration, second.iteration) == (0, 0)


def test_ping_is_cheap(guard: FakeGuard) -> None:
    """The bound is far above what it takes, 0.3 us on an idle machine."""

    def measure(wrapper: CallWrapper) -> float:
        return min(timeit.repeat(wrapper.ping, number=1000, repeat=50)) / 1000

    assert call(measure, None) < 10e-6


def test_ping_after_the_call_does_no_harm(guard: FakeGuard) -> None:
    def itself(wrapper: CallWrapper) -> CallWrapper:
        return wrapper

    wrapper = call(itself, None)
    wrapper.ping()
    assert guard.read_page().phase == Phase.OUTSIDE
    guard_link.close()
    wrapper.ping()


def test_hang_protection_is_off_until_the_last_one_wants_it(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> list[int]:
        depths = []
        with wrapper.disable_hang_protection():
            depths.append(guard.read_page().unguarded)
            with wrapper.disable_hang_protection():
                depths.append(guard.read_page().unguarded)
            depths.append(guard.read_page().unguarded)
        depths.append(guard.read_page().unguarded)
        return depths

    assert call(train, None) == [1, 2, 1, 0]


def test_a_fault_without_hang_protection(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        assert guard.read_page().unguarded == 0
        with wrapper.disable_hang_protection():
            if wrapper.iteration == 0:
                guard.stop(0, 0)
                time.sleep(60)
        return wrapper.iteration

    assert call(train, None) == 1


def test_a_fault_within_the_switch_of_hang_protection(guard: FakeGuard) -> None:
    """The interruption comes when it is off already, and nothing says so yet to the function."""

    def train(wrapper: CallWrapper) -> tuple[int, int]:
        if wrapper.iteration == 0:
            wrapper.disable_hang_protection().acquire()
            guard.stop(0, 0)
            time.sleep(60)
        return wrapper.iteration, guard.read_page().unguarded

    assert call(train, None) == (1, 0)


def test_torch_must_not_be_initialized(guard: FakeGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = pytest.importorskip("torch.distributed")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"torch\.distributed is initialized already"):
        call(lambda: 5)


def test_the_beginning_and_the_end_of_a_call_can_be_logged(
    guard: FakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "undaunted")
    assert call(lambda: logging.getLogger("undaunted").debug("inside")) is None
    begins, inside, ends = [each.getMessage() for each in caplog.records]
    assert "rank 0: call 0 begins" in begins
    assert f"pid={os.getpid()}, monitor_process=" in begins
    assert inside == "inside"
    assert "rank 0: call 0 ends" in ends


def test_threads_that_release_something_have_ended_when_the_call_returns(guard: FakeGuard) -> None:
    def release() -> None:
        threading.Event().wait(0.3)

    started = call(lambda: threads.start(release, "release"))
    assert not started.is_alive()


def test_what_the_store_of_a_user_raises_reaches_the_caller(guard: FakeGuard) -> None:
    def make(**_: Any) -> Any:
        raise OSError("no store")

    with pytest.raises(OSError, match="no store"):
        CallWrapper(inprocess.Wrapper(store_factory=make))


def test_a_call_that_cannot_begin_leaves_nothing(
    guard: FakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "no number")
    threads_before, fds_before = set(threading.enumerate()), count_fds()
    with pytest.raises(ValueError, match="RANK"):
        call(lambda: 5)
    assert set(threading.enumerate()) <= threads_before  # one of before may end meanwhile
    assert count_fds() <= fds_before


def test_a_rank_assignment_that_gives_ranks_only(guard: FakeGuard) -> None:
    from undaunted.inprocess.rank_assignment import ShiftRanks

    assert call(lambda: os.environ["RANK"], rank_assignment=ShiftRanks()) == "0"


def test_a_function_that_nobody_would_call(guard: FakeGuard) -> None:
    from undaunted.inprocess.rank_assignment import ActiveWorldSizeDivisibleBy

    with pytest.raises(RestartAbort, match="no rank is active"):
        call(lambda: None, rank_assignment=ActiveWorldSizeDivisibleBy(2))


def test_a_call_inside_of_a_call(guard: FakeGuard) -> None:
    with pytest.raises(RestartAbort, match="inside of another"):
        call(lambda: call(lambda: None))
    assert call(lambda: 1) == 1


def test_hang_protection_by_the_names_of_nvrx(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> list[int]:
        depths = []
        for change in (wrapper._disable_hang_protection, wrapper._enable_hang_protection):
            change()
            depths.append(guard.read_page().unguarded)
        return depths

    assert call(train, None) == [1, 0]


def test_atomic_parts_by_a_lock(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> list[int]:
        lock = wrapper.atomic_lock
        depths = []
        if lock.acquire():
            with wrapper.atomic_lock:
                depths.append(guard.read_page().atomic)
            lock.release()
        return [*depths, guard.read_page().atomic]

    assert call(train, None) == [2, 0]


def test_a_fault_waits_for_the_release_of_the_lock(guard: FakeGuard) -> None:
    finished: list[str] = []

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            wrapper.atomic_lock.acquire()
            guard.stop(0, 0)
            deadline = time.monotonic() + 0.05
            while time.monotonic() < deadline:
                pass
            finished.append("the part")
            wrapper.atomic_lock.release()
            time.sleep(60)
        return wrapper.iteration

    assert call(train, None) == 1
    assert finished == ["the part"]
