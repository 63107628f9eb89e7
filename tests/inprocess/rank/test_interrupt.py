"""What the user's code does when it is interrupted, in the test's own process."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from tests.inprocess.rank.calls import call
from undaunted.base import threads
from undaunted.inprocess.exception import RankShouldRestart
from undaunted.inprocess.rank.epoch_store import EpochStore
from undaunted.inprocess.rank.interrupt import SIGNAL, Gate
from undaunted.inprocess.rank.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.inprocess.rank.fake_guard import FakeGuard
    from undaunted.inprocess.wrap import CallWrapper

LONG_S = 60.0


def sleep() -> None:
    time.sleep(LONG_S)


def wait_for_an_event() -> None:
    threading.Event().wait(LONG_S)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire(timeout=LONG_S)


def wait_for_a_queue() -> None:
    queue.Queue[int]().get(timeout=LONG_S)


def select_nothing() -> None:
    select.select([], [], [], LONG_S)


def turn() -> None:
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        pass


def log_all_the_time() -> None:
    logger = logging.getLogger("undaunted-test-interrupt")
    logger.addHandler(logging.NullHandler())
    until = time.monotonic() + LONG_S
    while time.monotonic() < until:
        logger.debug("line")


def nest_deeply(depth: int = 500) -> None:
    if depth:
        nest_deeply(depth - 1)
    time.sleep(LONG_S)


BLOCKERS = [
    sleep,
    wait_for_an_event,
    wait_for_a_lock,
    wait_for_a_queue,
    select_nothing,
    turn,
    log_all_the_time,
    nest_deeply,
]


def interrupt(
    guard: FakeGuard, block: Callable[..., Any], *, late: bool = False, **changes: Any
) -> Any:
    """Stop the first iteration while it blocks; return what the second one returns.

    Args:
        late: ``block`` gets what stops it, and calls it when it is ready.
    """

    def stop() -> None:
        guard.stop(0, 0)

    def train(wrapper: CallWrapper) -> Any:
        if wrapper.iteration:
            return "again"
        if late:
            return block(stop)
        stop()
        return block()

    begun = time.monotonic()
    result = call(train, None, **changes)
    assert time.monotonic() - begun < LONG_S / 2
    return result


@pytest.mark.parametrize("block", BLOCKERS)
def test_what_blocks_is_interrupted(guard: FakeGuard, block: Callable[[], None]) -> None:
    assert interrupt(guard, block) == "again"


def test_waiting_for_a_process_is_interrupted(guard: FakeGuard) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert interrupt(guard, process.wait) == "again"
        process.kill()


def test_waiting_for_a_socket_is_interrupted(guard: FakeGuard) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert interrupt(guard, lambda: here.recv(1)) == "again"


def test_the_interruption_says_why(guard: FakeGuard) -> None:
    said = []

    def block(stop: Callable[[], None]) -> None:
        try:
            stop()
            sleep()
        except RankShouldRestart as error:
            said.append(str(error))
            raise

    interrupt(guard, block, late=True)
    assert said == ["Interruption.TERMINATED affecting ranks {3}"]


def test_code_that_catches_errors_does_not_catch_it(guard: FakeGuard) -> None:
    def block(stop: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):
            stop()
            sleep()
        pytest.fail("it was caught")

    assert interrupt(guard, block, late=True) == "again"


@pytest.mark.parametrize("times", [1, 3])
def test_code_that_swallows_it_is_interrupted_again_and_named(
    guard: FakeGuard, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    def swallow(stop: Callable[[], None]) -> None:
        for _ in range(times):
            with contextlib.suppress(BaseException):
                stop()
                sleep()
        sleep()

    assert interrupt(guard, swallow, late=True) == "again"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings
    assert "swallow" in warnings[0]
    assert __file__ in warnings[0]


@pytest.mark.parametrize("how", ["__del__", "weakref"])
def test_a_finalizer_is_not_interrupted(
    guard: FakeGuard, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []

    class Loader:
        """Such as a data loader that ends its workers."""

    def end_workers(stop: Callable[[], None]) -> None:
        stop()
        threading.Event().wait(0.1)  # longer than it takes to interrupt again
        ended.append(True)

    class Deleted(Loader):
        def __init__(self, stop: Callable[[], None]) -> None:
            self.stop = stop

        def __del__(self) -> None:
            end_workers(self.stop)

    def block(stop: Callable[[], None]) -> None:
        if how == "__del__":
            Deleted(stop)
        else:
            weakref.finalize(Loader(), end_workers, stop)
        sleep()

    assert interrupt(guard, block, late=True) == "again"
    assert ended == [True]
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]


def test_it_is_lost_in_a_finalizer_that_hangs_and_comes_again(
    guard: FakeGuard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest's reads source files, and may be interrupted itself.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    class Slow:
        def __init__(self, stop: Callable[[], None]) -> None:
            self.stop = stop

        def __del__(self) -> None:
            self.stop()
            sleep()

    def block(stop: Callable[[], None]) -> None:
        Slow(stop)
        sleep()

    assert interrupt(guard, block, late=True) == "again"
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [each.split()[0] for each in warnings] == ["__del__"]


def test_a_generator_cleans_up(guard: FakeGuard) -> None:
    cleaned = []

    def numbers(stop: Callable[[], None]) -> Iterator[int]:
        try:
            stop()
            for number in range(10):
                yield number
                sleep()
        finally:
            cleaned.append(True)

    assert interrupt(guard, lambda stop: list(numbers(stop)), late=True) == "again"
    assert cleaned == [True]


def test_cleaning_up_is_not_interrupted(guard: FakeGuard) -> None:
    cleaned = []

    def block(stop: Callable[[], None]) -> None:
        try:
            stop()
            sleep()
        finally:
            threading.Event().wait(0.1)  # longer than it takes to interrupt again
            cleaned.append(True)

    assert interrupt(guard, block, late=True) == "again"
    assert cleaned == [True]


def test_an_import_is_not_left_in_the_middle(
    guard: FakeGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import threading\nthreading.stop_test()\nfor _ in range(50):\n"
    text += "    threading.Event().wait(0.005)\nready = True\n"
    (tmp_path / "slow_to_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def block(stop: Callable[[], None]) -> None:
        monkeypatch.setattr(threading, "stop_test", stop, raising=False)
        import slow_to_import  # type: ignore[import-not-found]

        imported.append(slow_to_import.ready)
        sleep()

    try:
        assert interrupt(guard, block, late=True) == "again"
        assert imported in ([True], [])
        assert sys.modules["slow_to_import"].ready
    finally:
        sys.modules.pop("slow_to_import", None)


@pytest.mark.parametrize("module", ["logging", "queue", "subprocess", "threading"])
def test_code_that_would_leave_something_behind_is_left_alone_at_first(module: str) -> None:
    page = Page()
    gate = Gate(page, lambda: None)
    gate.reset()

    def may_raise(module: str) -> bool:
        """Ask from a frame of that module, at one of its instructions after the other."""
        code: dict[str, Any] = {"__name__": module, "may_raise": gate.may_raise, "sys": sys}
        exec("def ask():\n    return may_raise(sys._getframe(), None)", code)
        return bool(code["ask"]())

    def body() -> list[bool]:
        assert gate.terminate("over")
        gate.let_raise()
        return [may_raise(module), may_raise("train")]

    assert gate.run(body, lambda: None) == [False, True]
    page.close()


def test_cleaning_up_that_hangs_is_interrupted(guard: FakeGuard) -> None:
    def block(stop: Callable[[], None]) -> None:
        try:
            stop()
            sleep()
        finally:
            sleep()

    assert interrupt(guard, block, late=True) == "again"


def test_not_in_the_main_thread(guard: FakeGuard) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(interrupt(guard, turn)))
    thread.start()
    thread.join(LONG_S)
    assert results == ["again"]


def test_another_thread_that_cannot_be_interrupted_yet_is_not_accused(
    guard: FakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    def block(stop: Callable[[], None]) -> None:
        stop()
        time.sleep(0.3)  # no code of Python runs here, while it is tried again
        turn()

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(interrupt(guard, block, late=True)))
    thread.start()
    thread.join(LONG_S)
    assert results == ["again"]
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]


def test_another_thread_that_swallows_it_is_accused(
    guard: FakeGuard, caplog: pytest.LogCaptureFixture
) -> None:
    def swallow(stop: Callable[[], None]) -> None:
        with contextlib.suppress(BaseException):
            stop()
            turn()
        turn()

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(interrupt(guard, swallow, late=True)))
    thread.start()
    thread.join(LONG_S)
    assert results == ["again"]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [each.split()[0] for each in warnings] == ["swallow"]


def test_the_signal_is_given_back(guard: FakeGuard) -> None:
    def mine(number: int, frame: object) -> None:
        raise AssertionError

    before = signal.signal(SIGNAL, mine)
    try:
        assert interrupt(guard, sleep) == "again"
        assert signal.getsignal(SIGNAL) is mine
    finally:
        signal.signal(SIGNAL, before)


def test_user_code_that_takes_the_signal_is_interrupted_otherwise(guard: FakeGuard) -> None:
    def block(stop: Callable[[], None]) -> None:
        signal.signal(SIGNAL, signal.SIG_IGN)
        stop()
        turn()

    try:
        assert interrupt(guard, block, late=True) == "again"
        assert signal.getsignal(SIGNAL) is signal.SIG_IGN
    finally:
        signal.signal(SIGNAL, signal.SIG_DFL)


def test_it_does_not_come_late(guard: FakeGuard) -> None:
    """The function ends at about the moment when it is interrupted, again and again."""

    def finalize(state: Any) -> None:
        spin(0.002)

    def train(wrapper: CallWrapper) -> None:
        if wrapper.iteration < 30:
            guard.stop(0, wrapper.iteration)
            spin(0.0001 * (wrapper.iteration % 10))
            raise RuntimeError

    call(train, None, finalize=finalize)


def spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


# --- atomic ---------------------------------------------------------------------------------------


def test_atomic_is_not_interrupted(guard: FakeGuard) -> None:
    seen = []
    order = []

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration:
            return wrapper.iteration
        with wrapper.atomic(), wrapper.atomic():
            guard.stop(0, 0)
            threading.Event().wait(0.2)
            seen.append(guard.read_page().atomic)
            order.append("atomic")
        order.append("not reached")
        return -1

    assert call(train, None, abort=lambda state: order.append("abort")) == 1
    assert seen == [2]
    assert order == ["atomic", "abort"]
    assert guard.read_page().atomic == 0


def test_a_rank_that_does_not_come_may_have_begun_to_wait_in_the_store(
    guard: FakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    insisted = threading.Event()

    def break_off(store: EpochStore, *, surely: bool = False) -> None:
        if surely:
            insisted.set()

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            guard.stop(0, 0)
        while wrapper.iteration == 0 and not insisted.is_set():
            with contextlib.suppress(RankShouldRestart):
                insisted.wait(LONG_S)
        return wrapper.iteration

    monkeypatch.setattr(EpochStore, "break_off", break_off)
    assert call(train, None) == 1


def test_atomic_is_not_entered_when_it_is_over(guard: FakeGuard) -> None:
    aborting, aborted = threading.Event(), threading.Event()

    def abort(state: Any) -> None:
        aborting.set()
        aborted.wait(LONG_S)

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration:
            return wrapper.iteration
        guard.stop(0, 0)
        assert aborting.wait(LONG_S)
        threading.Timer(0.05, aborted.set).start()
        with wrapper.atomic():
            raise AssertionError("entered")

    assert call(train, None, abort=abort) == 1


def test_nothing_is_begun_while_communication_is_aborted(guard: FakeGuard) -> None:
    """What the function would begin then, such as a group, the abort has not seen."""
    aborting, called = threading.Event(), threading.Event()
    iterations = []

    def assign(context: Any) -> Any:
        if context.state.iteration == 0:
            guard.stop(0, 0)
            assert aborting.wait(LONG_S)
        return context

    def abort(state: Any) -> None:
        aborting.set()
        called.wait(0.05)

    def train(wrapper: CallWrapper) -> int:
        called.set()
        iterations.append(wrapper.iteration)
        return wrapper.iteration

    call(train, None, abort=abort, rank_assignment=assign)
    assert iterations == [1]


def test_an_error_in_atomic_leaves_it(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            with wrapper.atomic():
                raise RuntimeError
        return wrapper.iteration

    assert call(train, None) == 1


def test_atomic_that_is_never_left(guard: FakeGuard) -> None:
    kept = []

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            section = wrapper.atomic()
            section.__enter__()
            kept.append(section)
            raise RuntimeError
        return wrapper.iteration

    assert call(train, None) == 1


def test_an_error_elsewhere_waits_for_a_thread_in_atomic(guard: FakeGuard) -> None:
    """As where a thread writes a checkpoint while the main thread trains."""
    saving = threading.Event()
    order: list[str] = []

    def save(wrapper: CallWrapper) -> None:
        with wrapper.atomic():
            saving.set()
            threading.Event().wait(0.2)
            order.append("saved")

    def train(wrapper: CallWrapper) -> int:
        if wrapper.iteration == 0:
            threads.start(lambda: save(wrapper), "test")
            assert saving.wait(LONG_S)
            raise RuntimeError
        order.append("again")
        return guard.read_page().atomic

    assert call(train, None, abort=lambda state: order.append("abort")) == 0
    assert order == ["saved", "abort", "again"]


# --- forks ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_is_not_a_rank(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(3):
                    wrapper.ping()
                with wrapper.atomic():
                    pass
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        return guard.read_page().pings

    assert call(train, None) == 0
