from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.inprocess.rank.calls import call
from tests.leaks import count_fds
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.inprocess.core.messages import (
    Completed,
    Dismissed,
    End,
    Enter,
    Evidence,
    Fault,
    Join,
    Leave,
    Record,
)
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.exception import (
    BarrierTimeout,
    HealthCheckError,
    InternalError,
    RankShouldRestart,
    RestartAbort,
)
from undaunted.inprocess.rank import guard_link
from undaunted.inprocess.rank_assignment import RankDiscarded
from undaunted.inprocess.state import FrozenState, Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.inprocess.rank.fake_guard import FakeGuard
    from undaunted.inprocess.wrap import CallWrapper


def fail_once(wrapper: CallWrapper) -> int:
    if wrapper.iteration == 0:
        raise RuntimeError("fault 0")
    return wrapper.iteration


# --- what is said ---------------------------------------------------------------------------------


def test_a_function_that_returns(guard: FakeGuard) -> None:
    assert call(lambda: 5) == 5
    assert [type(message) for message in guard.said()] == [Enter, Join, Completed]


def test_a_function_that_raises_is_called_again(guard: FakeGuard) -> None:
    seen = []

    def train(wrapper: CallWrapper) -> int:
        seen.append(wrapper.iteration)
        if wrapper.iteration < 2:
            raise RuntimeError(f"fault {wrapper.iteration}")
        return wrapper.iteration

    assert call(train, None) == 2
    assert seen == [0, 1, 2]
    faults = [message for message in guard.said() if isinstance(message, Fault)]
    assert [fault.epoch for fault in faults] == [0, 1]
    assert [fault.reason.kind for fault in faults] == ["EXCEPTION"] * 2
    assert "fault 0" in faults[0].reason.text
    assert faults[0].reason.fingerprint == faults[1].reason.fingerprint
    assert "RuntimeError" in faults[0].reason.fingerprint


def test_a_restart_that_the_user_asks_for(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            raise RankShouldRestart
        return wrapper.iteration

    assert call(train, None) == 1


def test_a_stop_interrupts(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            guard.stop(0, 0)
            time.sleep(60)
        return wrapper.iteration

    begun = time.monotonic()
    assert call(train, None) == 1
    assert time.monotonic() - begun < 30
    assert not [message for message in guard.said() if isinstance(message, Fault)]


def test_a_rank_says_what_it_does_when_another_one_hangs(guard: FakeGuard) -> None:
    inside = threading.Event()

    def sleep(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            inside.set()
            time.sleep(60)
        return wrapper.iteration

    def hang() -> None:
        inside.wait()
        guard.stop(0, 0, "SOFT_TIMEOUT")

    thread = threading.Thread(target=hang)
    thread.start()
    assert call(sleep) == 1
    thread.join()
    evidence = guard.wait_for(Evidence)
    seen = msgspec.msgpack.decode(evidence.seen, type=RankObservation)
    assert (seen.rank, seen.pid, seen.standing) == (evidence.job_rank, os.getpid(), Standing.BUSY)
    assert seen.frame.startswith("sleep (test_iterations.py:")


def test_a_stop_after_the_function_has_returned(guard: FakeGuard) -> None:
    guard.silent = {Completed}

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration:
            guard.silent = set()
        return wrapper.iteration

    stopper = threading.Thread(target=lambda: (guard.wait_for(Completed), guard.stop(0, 0)))
    stopper.start()
    assert call(train, None) == 1
    stopper.join()


def test_calls_are_counted(guard: FakeGuard) -> None:
    assert [call(fail_once, None) for _ in range(3)] == [1, 1, 1]
    said = guard.said()
    assert [message.call for message in said if isinstance(message, Enter)] == [0, 1, 2]
    assert [m.epoch for m in said if isinstance(m, Join)] == [0, 1] * 3


def test_the_page_shows_where_the_rank_is(guard: FakeGuard) -> None:
    seen: list[Any] = []

    def look(state: FrozenState) -> FrozenState:
        seen.append(guard.read_page())
        return state

    def train(wrapper: CallWrapper) -> int:
        wrapper.ping()
        seen.append(guard.read_page())
        return fail_once(wrapper)

    call(train, None, initialize=look, finalize=look)
    assert [page.phase for page in seen] == [
        Phase.RUNNING,
        Phase.RUNNING,
        Phase.RECOVERING,
        Phase.RUNNING,
        Phase.RUNNING,
    ]
    assert [page.ping_ns > 0 for page in seen] == [False, True, False, False, True]
    assert seen[-1].pings == 2
    assert (seen[-1].call, seen[-1].epoch, seen[-1].rank) == (0, 1, 0)
    assert guard.read_page().phase == Phase.OUTSIDE
    assert seen[-1].auto_ns >= seen[0].auto_ns > 0


def test_that_the_interpreter_turns_is_shown(guard: FakeGuard) -> None:
    def train() -> bool:
        first = guard.read_page().auto_ns
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if guard.read_page().auto_ns > first:
                return True
        return False

    assert call(train)


# --- plug-ins -------------------------------------------------------------------------------------


def noting(order: list[str], name: str) -> Callable[[FrozenState], FrozenState]:
    def note(state: FrozenState) -> FrozenState:
        order.append(f"{name} {state.iteration}")
        return state

    return note


def test_the_order_of_plug_ins(guard: FakeGuard) -> None:
    order: list[str] = []
    names = ("initialize", "health_check", "abort", "finalize", "completion", "terminate")

    def train(wrapper: CallWrapper) -> None:
        order.append("function")
        fail_once(wrapper)

    plug_ins = {name: noting(order, name) for name in names}
    call(train, None, check=noting(order, "restart check"), **plug_ins)
    assert order == [
        "initialize 0",
        "health_check 0",
        "function",
        "abort 0",
        "finalize 0",
        "restart check 0",
        "initialize 1",
        "health_check 1",
        "function",
        "completion 1",
    ]


def test_finalize_is_told_what_the_function_has_raised(guard: FakeGuard) -> None:
    seen = []
    call(fail_once, None, finalize=lambda state: seen.append(repr(state.fn_exception)))
    assert seen == ["RuntimeError('fault 0')"]


def test_finalize_is_told_nothing_of_faults_of_others(guard: FakeGuard) -> None:
    seen = []

    def train(wrapper: CallWrapper) -> None:
        if wrapper.iteration == 0:
            guard.stop(0, 0)
            time.sleep(60)

    call(train, None, finalize=lambda state: seen.append(state.fn_exception))
    assert seen == [None]


@pytest.mark.parametrize("name", ["initialize", "health_check"])
def test_what_runs_before_the_function_may_fail_once(guard: FakeGuard, name: str) -> None:
    def fail(state: FrozenState) -> None:
        if state.iteration == 0:
            raise RuntimeError

    assert call(lambda: 5, **{name: fail}) == 5


@pytest.mark.parametrize(
    ("name", "error"),
    [("finalize", RuntimeError), ("check", HealthCheckError), ("rank_assignment", RuntimeError)],
)
def test_what_fails_in_recovery_is_fatal(
    guard: FakeGuard, name: str, error: type[Exception]
) -> None:
    ended = []

    def fail(given: Any) -> Any:
        if name != "rank_assignment" or given.state.iteration:
            raise RuntimeError("in recovery")
        given.state.mode = Mode.ACTIVE
        given.state.active_rank, given.state.active_world_size = 0, 1
        return given

    with pytest.raises(error, match="in recovery"):
        call(fail_once, None, **{name: fail}, terminate=lambda state: ended.append(state.mode))
    assert ended == [Mode.TERMINATED]
    leave = guard.wait_for(Leave)
    assert leave.reason.kind == "BASE_EXCEPTION"
    assert not leave.discarded


def test_a_rank_that_is_discarded(guard: FakeGuard) -> None:
    def discard(given: Any) -> Any:
        raise RankDiscarded("not this one")

    with pytest.raises(RankDiscarded):
        call(lambda: 5, rank_assignment=discard)
    assert guard.wait_for(Leave).discarded


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RestartAbort])
def test_what_is_no_error_is_fatal(guard: FakeGuard, error: type[BaseException]) -> None:
    def leave() -> None:
        raise error

    with pytest.raises(error):
        call(leave)
    assert isinstance(guard.wait_for(Leave), Leave)


def test_an_error_of_terminate_takes_the_place(guard: FakeGuard) -> None:
    def fail(state: FrozenState) -> None:
        raise ValueError("in terminate")

    def leave() -> None:
        raise RestartAbort("first")

    with pytest.raises(ValueError, match="in terminate") as caught:
        call(leave, terminate=fail)
    assert isinstance(caught.value.__context__, RestartAbort)


@pytest.mark.parametrize("name", ["abort", "completion"])
def test_what_may_fail(guard: FakeGuard, name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(state: FrozenState) -> None:
        raise RuntimeError("not important")

    assert call(fail_once, None, **{name: fail}) == 1
    assert f"rank=0 {name}_ex: RuntimeError('not important')" in caplog.text


def test_a_reserve_waits(guard: FakeGuard) -> None:
    def rest(given: Any) -> Any:
        given.state.mode = Mode.INACTIVE
        return given

    assert call(lambda: pytest.fail("it is a reserve"), rank_assignment=rest) is None
    assert guard.wait_for(Completed).reserve


def test_the_environment_has_the_rank(guard: FakeGuard) -> None:
    assert call(lambda: (os.environ["RANK"], os.environ["WORLD_SIZE"])) == ("0", "1")


def test_a_rank_that_is_lost_is_closed_up_on(
    guard: FakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    guard.silent = {Join}
    seen = []

    def answer() -> None:
        guard.wait_for(Join)
        guard.tell(Record(0, 0, (0, 2, 3), 4, terminated=(1,)))

    def train(wrapper: CallWrapper) -> None:
        seen.append((os.environ["RANK"], os.environ["WORLD_SIZE"], wrapper.state.initial_rank))

    thread = threading.Thread(target=answer)
    thread.start()
    call(train, None)
    thread.join()
    assert seen == [("1", "3", 2)]
    guard.silent = set()
    call(lambda: None)
    enter, join = guard.wait_for(Enter), guard.wait_for(Join)
    assert (enter.job_rank, enter.world_size) == (2, 4)
    assert (join.rank, join.world_size) == (1, 3)


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("abort", RestartAbort),
        ("mismatch", ValueError),
        ("barrier", BarrierTimeout),
    ],
)
@pytest.mark.parametrize("running", [False, True])
def test_the_call_is_given_up(
    guard: FakeGuard, kind: str, error: type[BaseException], running: bool
) -> None:
    def train() -> None:
        guard.tell(End(0, kind, "because"))
        time.sleep(60)

    def answer() -> None:
        guard.wait_for(Join)
        guard.tell(End(0, kind, "because"))

    guard.silent = set() if running else {Join}
    thread = threading.Thread(target=(lambda: None) if running else answer)
    thread.start()
    with pytest.raises(error, match="because"):
        call(train)
    thread.join()
    assert not [message for message in guard.said() if isinstance(message, Leave)]


def test_a_rank_that_is_dismissed(guard: FakeGuard) -> None:
    def train() -> None:
        guard.tell(Dismissed(0, 0, "too late"))
        time.sleep(60)

    with pytest.raises(InternalError, match="too late"):
        call(train)


def hang_up(guard: FakeGuard) -> None:
    guard.hang_up()


def say_garbage(guard: FakeGuard) -> None:
    guard.send_bytes(b"\0\0\0\x04abcd")


def announce_much(guard: FakeGuard) -> None:
    guard.send_bytes(b"\xff\xff\xff\xff")


@pytest.mark.parametrize("end", [hang_up, say_garbage, announce_much])
def test_a_rank_whose_guard_fails_leaves(
    guard: FakeGuard, end: Callable[[FakeGuard], None]
) -> None:
    def train() -> None:
        end(guard)
        time.sleep(60)

    with pytest.raises(InternalError, match="guard"):
        call(train)


def test_a_guard_that_is_gone_between_two_calls(guard: FakeGuard) -> None:
    call(lambda: 5)
    guard.hang_up()
    with pytest.raises(Exception, match="guard"):
        call(lambda: 5)


def test_what_is_about_other_calls_is_not_listened_to(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            guard.stop(7, 0)
            guard.tell(End(7, "abort", "of another call"))
            guard.stop(0, 5)
            guard.stop(0, 0, kind="EXCEPTION")
            time.sleep(60)
        return wrapper.iteration

    assert call(train, None) == 1


# --- nothing is left ------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_left_of_a_hundred_restarts(guard: FakeGuard) -> None:
    class Model:
        pass

    alive: weakref.WeakSet[Model] = weakref.WeakSet()
    counts: list[tuple[int, int, int]] = []
    traced: list[int] = []

    def train(wrapper: CallWrapper) -> None:
        model = Model()
        model.itself = model  # type: ignore[attr-defined]
        alive.add(model)
        counts.append((len(alive), threading.active_count(), len(os.listdir("/proc/self/fd"))))
        traced.append(tracemalloc.get_traced_memory()[0])
        if wrapper.iteration < 100:
            if wrapper.iteration % 2:
                guard.stop(0, wrapper.iteration)
                time.sleep(60)
            raise RuntimeError

    gc.collect()  # what earlier tests left must not be freed meanwhile
    frozen = gc.get_freeze_count()  # by tests before this one
    tracemalloc.start()
    try:
        call(train, None)
    finally:
        tracemalloc.stop()
    assert len(counts) == 101
    assert {alive for alive, _, _ in counts} == {1}
    assert max(threads for _, threads, _ in counts) <= counts[0][1] + 1  # an abort that is ending
    assert {fds for _, _, fds in counts} == {counts[0][2]}
    # What pytest and the fake guard keep for each restart: lines that were logged, and messages.
    assert traced[100] - traced[50] < 300_000
    assert gc.get_freeze_count() == frozen


def test_a_process_keeps_only_the_connection(guard: FakeGuard) -> None:
    call(fail_once, None)
    threads = set(threading.enumerate())
    before = count_fds()
    for _ in range(5):
        call(fail_once, None)
    for thread in set(threading.enumerate()) - threads:
        thread.join(20)  # some end a moment after the call
        assert not thread.is_alive(), thread
    assert count_fds() <= before
    guard_link.close()
    assert guard.wait_for(Enter).call == 0


# --- in the place of a lost process ---------------------------------------------------------------


def test_a_process_that_rejoins_takes_up_the_call_of_the_others(
    guard: FakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDAUNTED_INPROCESS_REJOIN", "1")
    guard.silent.add(Join)
    seen: list[tuple[int, str]] = []

    def train(wrapper: CallWrapper) -> int:
        seen.append((wrapper.iteration, os.environ["RANK"]))
        return fail_once(wrapper)

    def record() -> None:
        join = guard.wait_for(Join)
        assert (join.call, join.epoch, join.rank) == (0, 0, -1)
        job_rank = join.job_rank
        guard.tell(Record(2, 5, (job_rank,), 1, joined={job_rank: 0}, store=join.store))

    telling = threading.Thread(target=record)
    telling.start()
    assert call(train) == 5
    telling.join()
    assert seen == [(5, "0")]
    assert guard.read_page().call == 2
    guard.silent.clear()
    assert call(lambda: 7) == 7
    enters = [message for message in guard.said() if isinstance(message, Enter)]
    assert [(each.call, each.rejoin) for each in enters] == [(3, False)]


def test_a_process_that_comes_when_the_others_have_finished_ends_as_they_did(
    guard: FakeGuard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("UNDAUNTED_INPROCESS_REJOIN", "1")
    guard.silent.add(Join)
    ended: list[FrozenState] = []

    def dismiss() -> None:
        guard.wait_for(Join)
        guard.tell(Dismissed(0, 0, "finished", finished=True))

    telling = threading.Thread(target=dismiss)
    telling.start()
    with pytest.raises(SystemExit) as leaving:
        call(lambda: None, terminate=ended.append)
    telling.join()
    assert leaving.value.code == 0
    assert [state.mode for state in ended] == [Mode.TERMINATED]
    assert [(line.levelname, line.message.count("\n")) for line in caplog.records] == [
        ("WARNING", 0)
    ]
    assert not [message for message in guard.said() if isinstance(message, Leave)]
