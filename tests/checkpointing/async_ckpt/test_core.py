"""Asynchronous requests of one process; of several: test_core_ranks.py."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.checkpointing.async_ckpt import core
from undaunted.checkpointing.async_ckpt.core import (
    AsyncCallsQueue,
    AsyncRequest,
    PersistentAsyncCaller,
    TemporalAsyncCaller,
    abort_nvrx_checkpoint,
)
from undaunted.checkpointing.errors import SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
pytestmark = pytest.mark.torch

DEADLINE_S = 30.0


@pytest.fixture
def queue() -> Iterator[AsyncCallsQueue]:
    made = AsyncCallsQueue()
    yield made
    made.close(abort=True)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


def wait_for(gate: threading.Event, *_: Any) -> None:
    assert gate.wait(DEADLINE_S)


def fails(*_: Any) -> None:
    raise FileNotFoundError(2, "No such file or directory", "/missing/x.pt")


def test_fields_of_a_request_are_in_the_known_order() -> None:
    assert AsyncRequest._fields == (
        "async_fn",
        "async_fn_args",
        "finalize_fns",
        "async_fn_kwargs",
        "preload_fn",
        "is_frozen",
        "call_idx",
    )
    assert AsyncRequest(print, (), []) == (print, (), [], None, None, False, 0)


def test_nothing_is_added_to_a_frozen_request() -> None:
    request = AsyncRequest(print, (), [])
    request.add_finalize_fn(print)
    with pytest.raises(RuntimeError, match="scheduled"):
        request.freeze().add_finalize_fn(print)
    assert len(request.finalize_fns) == 1


def test_a_request_is_done_here_and_now() -> None:
    seen: list[Any] = []
    AsyncRequest(
        lambda *args, **kwargs: seen.append((args, kwargs)),
        (1, None),
        [partial(seen.append, "end")],
        {"a": 2},
        preload_fn=lambda: "loaded",
    ).execute_sync()
    assert seen == [((1, "loaded"), {"a": 2}), "end"]


def test_a_request_that_fails_here_and_now_says_where() -> None:
    seen: list[Any] = []
    with pytest.raises(SaveError, match=r"rank 0 .*/missing/x\.pt") as caught:
        AsyncRequest(fails, (), [partial(seen.append, "end")]).execute_sync()
    assert (caught.value.ranks, caught.value.errno, seen) == ((0,), 2, [])


def test_saves_are_finalized_in_order_up_to_the_first_that_is_not_done(
    queue: AsyncCallsQueue, gate: threading.Event
) -> None:
    ends: list[int] = []
    for number in range(2):
        assert (
            queue.schedule_async_request(
                AsyncRequest(lambda: None, (), [partial(ends.append, number)])
            )
            == number
        )
    assert queue.maybe_finalize_async_calls(blocking=True) == [0, 1]
    queue.schedule_async_request(AsyncRequest(wait_for, (gate,), [partial(ends.append, 2)]))
    queue.schedule_async_request(AsyncRequest(None, (), [partial(ends.append, 3)]))
    assert queue.maybe_finalize_async_calls() == []
    assert queue.get_num_unfinalized_calls() == 2
    gate.set()
    assert queue.maybe_finalize_async_calls(blocking=True) == [2, 3]
    assert ends == [0, 1, 2, 3]


def test_content_is_fixed_when_a_save_is_scheduled(
    queue: AsyncCallsQueue, gate: threading.Event
) -> None:
    base = torch.arange(10.0)
    state = {
        "w": base,
        "view": base[::3],
        "tied": base.detach(),
        "step": torch.tensor(1.0),
        "array": np.ones(3),
        "list": [torch.ones(2), 1],
    }
    seen: list[Any] = []

    def save(gate: threading.Event, state: Any, *, named: Any) -> None:
        wait_for(gate)
        seen.extend((state, named))

    queue.schedule_async_request(AsyncRequest(save, (gate, state), [], {"named": base}))
    base.fill_(-1)
    state["step"].fill_(-1)
    state["array"][:] = -1
    state["list"][0].fill_(-1)
    state["list"].append("later")
    del state["w"]
    gate.set()
    queue.maybe_finalize_async_calls(blocking=True)
    saved, named = seen
    assert torch.equal(saved["w"], torch.arange(10.0))
    assert torch.equal(saved["view"], torch.arange(10.0)[::3])
    assert saved["tied"].data_ptr() == saved["w"].data_ptr()
    assert saved["step"].item() == 1.0
    assert np.array_equal(saved["array"], np.ones(3))
    assert torch.equal(saved["list"][0], torch.ones(2))
    assert len(saved["list"]) == 2
    assert torch.equal(named, torch.arange(10.0))


def test_a_failed_save_names_rank_path_and_errno_and_the_next_one_works(
    queue: AsyncCallsQueue,
) -> None:
    ends: list[int] = []
    queue.schedule_async_request(AsyncRequest(fails, (), [partial(ends.append, 0)]))
    queue.schedule_async_request(AsyncRequest(lambda: None, (), [partial(ends.append, 1)]))
    with pytest.raises(SaveError, match=r"save 0 .*rank 0 .*/missing/x\.pt") as caught:
        queue.maybe_finalize_async_calls(blocking=True)
    assert (caught.value.ranks, caught.value.errno) == ((0,), 2)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert queue.maybe_finalize_async_calls(blocking=True) == [1]
    assert ends == [1]


def test_what_fails_while_scheduling_is_raised_where_saves_are_finalized(
    queue: AsyncCallsQueue,
) -> None:
    queue.schedule_async_request(AsyncRequest(print, (0, None), [], None, preload_fn=fails))
    with pytest.raises(SaveError, match="/missing"):
        queue.maybe_finalize_async_calls(blocking=True)


def test_a_save_that_is_not_done_in_time_has_failed(
    queue: AsyncCallsQueue, gate: threading.Event
) -> None:
    queue.schedule_async_request(AsyncRequest(wait_for, (gate,), []))
    with pytest.raises(SaveError, match=r"not done within 0\.01 s"):
        queue.maybe_finalize_async_calls(blocking=True, timeout=0.01)
    assert queue.get_num_unfinalized_calls() == 0


def test_closing_finalizes_what_is_left_and_raises_the_first_failure() -> None:
    ends: list[int] = []
    queue = AsyncCallsQueue()
    queue.schedule_async_request(AsyncRequest(lambda: None, (), [partial(ends.append, 0)]))
    queue.schedule_async_request(AsyncRequest(fails, (), [partial(ends.append, 1)]))
    queue.schedule_async_request(AsyncRequest(lambda: None, (), [partial(ends.append, 2)]))
    with pytest.raises(SaveError, match="save 1"):
        queue.close()
    assert ends == [0, 2]
    assert queue.schedule_async_request(AsyncRequest(lambda: None, (), [])) == 0
    queue.close()


def test_an_abort_drops_what_waits_and_the_queue_works_again(
    queue: AsyncCallsQueue, gate: threading.Event
) -> None:
    ends: list[int] = []
    for _ in range(2):
        queue.schedule_async_request(AsyncRequest(wait_for, (gate,), [partial(ends.append, 0)]))
    abort_nvrx_checkpoint()
    assert queue.get_num_unfinalized_calls() == 0
    assert queue.maybe_finalize_async_calls(blocking=True) == []
    # The function of the old save still runs: it does not stand in the way.
    assert queue.schedule_async_request(AsyncRequest(None, (), [partial(ends.append, 1)])) == 0
    assert queue.maybe_finalize_async_calls(blocking=True) == [0]
    assert ends == [1]


def test_several_queues_do_not_mix_their_saves() -> None:
    one, other = AsyncCallsQueue(), AsyncCallsQueue()
    assert {one, other} <= set(AsyncCallsQueue.get_instances())
    ends: list[str] = []
    one.schedule_async_request(AsyncRequest(fails, (), []))
    other.schedule_async_request(AsyncRequest(lambda: None, (), [partial(ends.append, "other")]))
    assert other.maybe_finalize_async_calls(blocking=True, no_dist=True) == [0]
    with pytest.raises(SaveError):
        one.close()
    other.close()
    assert ends == ["other"]


def test_requests_of_older_programs_have_fewer_fields(queue: AsyncCallsQueue) -> None:
    ends: list[int] = []
    queue.schedule_async_request((print, (), [partial(ends.append, 0)]))  # type: ignore[arg-type]
    queue.close()
    assert ends == [0]


def test_kwargs_of_one_request_are_not_those_of_another() -> None:
    assert AsyncRequest(print, (), []).async_fn_kwargs is None


class Big:
    """What a save holds; copies leave it alone."""


def test_the_content_of_a_save_is_released_when_it_is_written(queue: AsyncCallsQueue) -> None:
    content, begun = Big(), threading.Event()
    there = weakref.ref(content)
    queue.schedule_async_request(AsyncRequest(lambda _: None, (content,), []))
    queue.schedule_async_request(AsyncRequest(begun.set, (), []))
    del content
    assert begun.wait(DEADLINE_S)
    gc.collect()
    assert there() is None
    assert queue.get_num_unfinalized_calls() == 2


class Stays:
    """A function that runs until it is let go; it can be cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()
        self.cancelled = 0

    def __call__(self) -> None:
        self.begun.set()
        assert self.free.wait(DEADLINE_S)

    def cancel(self) -> None:
        self.cancelled += 1
        self.free.set()


def test_an_abort_cancels_what_runs_and_what_waits(queue: AsyncCallsQueue) -> None:
    running, waiting = Stays(), Stays()
    queue.schedule_async_request(AsyncRequest(running, (), []))
    assert running.begun.wait(DEADLINE_S)
    queue.schedule_async_request(AsyncRequest(waiting, (), []))
    queue.close(abort=True)
    assert (running.cancelled, waiting.cancelled) == (1, 1)
    assert not waiting.begun.is_set()


def test_a_save_that_is_not_done_in_time_is_cancelled(queue: AsyncCallsQueue) -> None:
    stays = Stays()
    queue.schedule_async_request(AsyncRequest(stays, (), []))
    assert stays.begun.wait(DEADLINE_S)
    with pytest.raises(SaveError):
        queue.maybe_finalize_async_calls(blocking=True, timeout=0.01)
    assert stays.cancelled == 1


def test_a_full_queue_waits_and_then_fails_where_saves_are_finalized(
    queue: AsyncCallsQueue, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "WAITING_AT_MOST", 1)
    stays = Stays()
    queue.schedule_async_request(AsyncRequest(stays, (), []))
    assert stays.begun.wait(DEADLINE_S)
    queue.schedule_async_request(AsyncRequest(lambda: None, (), []))
    monkeypatch.setattr(core, "TIMEOUT_S", 0.01)
    queue.schedule_async_request(AsyncRequest(lambda: None, (), []))
    monkeypatch.undo()
    stays.free.set()
    with pytest.raises(SaveError, match=r"save 2 .*1 saves wait to be written"):
        queue.maybe_finalize_async_calls(blocking=True)


def test_the_thread_ends_when_nothing_is_left(queue: AsyncCallsQueue) -> None:
    threads: list[threading.Thread] = []
    queue.schedule_async_request(
        AsyncRequest(lambda: threads.append(threading.current_thread()), (), [])
    )
    queue.maybe_finalize_async_calls(blocking=True)
    threads[0].join(DEADLINE_S)
    assert not threads[0].is_alive()
    queue.schedule_async_request(AsyncRequest(lambda: None, (), []))
    assert queue.maybe_finalize_async_calls(blocking=True) == [1]


def test_the_interpreter_ends_though_a_function_does_not() -> None:
    code = """
import threading
from undaunted.checkpointing.async_ckpt import core
core.EXIT_GRACE_S = 0.1
begun = threading.Event()
def forever():
    begun.set()
    threading.Event().wait()
queue = core.AsyncCallsQueue()
queue.schedule_async_request(core.AsyncRequest(forever, (), []))
queue.schedule_async_request(core.AsyncRequest(print, ("never",), []))
begun.wait(30)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == ""
    assert "2 asynchronous saves were not finalized" in ended.stderr


def test_forking_callers_are_deprecated_and_do_not_fork(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="does not fork"):
        queue = AsyncCallsQueue(persistent=False)
    seen: list[int] = []
    queue.schedule_async_request(AsyncRequest(seen.append, (1,), []))
    queue.close()
    assert seen == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(TemporalAsyncCaller(), PersistentAsyncCaller)


def test_a_caller_says_when_its_last_call_is_done(gate: threading.Event) -> None:
    caller = PersistentAsyncCaller()
    caller.schedule_async_call(AsyncRequest(wait_for, (gate,), [], call_idx=3))
    assert not caller.is_current_async_call_done()
    gate.set()
    assert caller.is_current_async_call_done(blocking=True)
    assert caller.sync_all_async_calls(0)
    assert not caller.sync_all_async_calls(1)
    caller.close()


def test_names_of_the_module() -> None:
    assert all(hasattr(core, name) for name in core.__all__)
