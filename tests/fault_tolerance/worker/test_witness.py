"""What a rank says of its own work when it is asked."""

from __future__ import annotations

import gc
import itertools
import signal
import time
from functools import partial

import msgspec
import pytest

from undaunted.attribution.flight.recorder import Calls
from undaunted.fault_tolerance.slow_ranks.own_times import OwnTimes
from undaunted.fault_tolerance.worker import witness
from undaunted.progress import writer


class Rank:
    """Steps, and calls a collective in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page = writer.NullWriter("a test")
        self.calls: list[int] = [time.time_ns() - 1_000_000]
        self.dumps = 0
        monkeypatch.setattr(writer, "current", self.page)
        monkeypatch.setattr(witness, "calls", self._dump)

    def _dump(self) -> Calls:
        self.dumps += 1
        return Calls(self.calls, waited=True)

    def step(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            self.page.step(number)
            self.calls.append(time.time_ns() + 50_000)  # more than clocks are compared to
            while time.time_ns() < self.calls[-1]:
                pass


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def told(times: witness.Times) -> OwnTimes:
    return msgspec.msgpack.decode(times.answer(), type=OwnTimes)


def test_steps_are_told_once(rank: Rank) -> None:
    times = witness.Times()
    rank.step(0, 12)
    assert len(told(times).chunks) == 2
    rank.step(12, 5)
    (chunk,) = told(times).chunks
    assert chunk.collectives == 1


def test_torch_dumps_nothing_while_no_chunk_is_whole(rank: Rank) -> None:
    times = witness.Times()
    rank.step(0, writer.CHUNK)
    assert times.answer() == b""
    assert rank.dumps == 0
    rank.step(writer.CHUNK, 1)
    assert times.answer()
    assert times.answer() == b"", "nothing is new"
    assert rank.dumps == 1


def test_a_program_that_does_not_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "current", object())
    assert witness.Times().answer() == b""


def test_whatever_goes_wrong_is_no_answer(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    rank.step(0, 20)
    monkeypatch.setattr(witness, "calls", lambda: Calls(["no number"]))  # type: ignore[list-item]
    assert witness.Times().answer() == b""


def test_how_long_the_garbage_collector_ran(rank: Rank) -> None:
    times = witness.Times()
    times.collections.note("stop", {})  # it ran when this began
    for _ in range(2):
        times.collections.note("start", {})
        until = time.monotonic_ns() + 2_000_000
        while time.monotonic_ns() < until:
            pass
        times.collections.note("stop", {})
    rank.step(0, 12)
    assert told(times).gc_us >= 4000
    rank.step(12, 12)
    assert told(times).gc_us == 0


class Stop(BaseException):
    pass


def test_what_a_signal_raises_while_the_garbage_collector_runs_is_not_lost() -> None:
    """What it raises in Python code that the collector calls is printed, and then forgotten."""

    def stop(*_: object) -> None:
        raise Stop

    # A long callback in C, in which the signal comes.
    works = property(partial(next, map(sum, itertools.repeat(range(2_000_000)))))
    worker = type("Worker", (), {"start": works, "stop": None})()
    before = signal.signal(signal.SIGVTALRM, stop)
    gc.collect()  # what others have left may have code in Python that is called with it
    others = gc.callbacks[:]  # of the tests' own tools
    gc.callbacks[:] = [partial(getattr, worker), witness.Times().collections.note]
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.01)
        with pytest.raises(Stop):
            gc.collect()
    finally:
        gc.callbacks[:] = others
        signal.signal(signal.SIGVTALRM, before)


def test_the_clocks_are_compared_in_a_moment_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = iter([0, 9_000, 0, 0, 7_000_000, 0, 0, 10, 0] + [5_000] * 6)
    now = 1_000_000

    def tick() -> int:
        nonlocal now
        now += next(pauses)
        return now

    monkeypatch.setattr(time, "monotonic_ns", tick)
    monkeypatch.setattr(time, "time_ns", lambda: tick() + 77_000_000)
    assert witness._wall_ahead_ns() == pytest.approx(77_000_000, abs=10)


def test_the_main_thread_is_looked_at_only_while_times_are_asked_for(rank: Rank) -> None:
    times = witness.Times()
    times.look()
    rank.step(0, 12)
    assert told(times).looks == 0
    times.look()
    rank.step(12, 24)
    assert told(times).looks == 1


def test_the_lines_of_the_main_thread_are_told(rank: Rank) -> None:
    times = witness.Times()
    rank.step(0, 12)
    times.answer()
    for _ in range(3):
        times.look()
    rank.step(12, 24)
    said = told(times)
    assert said.looks == 3
    assert any("test_the_lines_of_the_main_thread_are_told" in line for line in said.lines)
