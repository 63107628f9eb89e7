"""The watch on a real event loop, with real pages and a rank in this process."""

from __future__ import annotations

import asyncio
import time

import pytest

from undaunted.fault_tolerance.agent import watch as watch_module
from undaunted.fault_tolerance.agent.watch import Callbacks, PageWatch
from undaunted.progress import timeouts
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea
from undaunted.progress.learning import Learned
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import Phase
from undaunted.progress.writer import PageWriter

DEADLINE_S = 20


class Told:
    """Keeps what the watch says; `wait` waits for one kind of it."""

    def __init__(self):
        self.heard = []
        self._changed = asyncio.Event()

    def callbacks(self):
        return Callbacks(*(self._of(kind) for kind in Callbacks.__slots__))

    def _of(self, kind):
        def tell(*args):
            self.heard.append((kind, args))
            self._changed.set()

        return tell

    def of(self, kind):
        return [args for heard, args in self.heard if heard == kind]

    async def wait(self, kind):
        async with asyncio.timeout(DEADLINE_S):
            while not self.of(kind):
                self._changed.clear()
                await self._changed.wait()
        return self.of(kind)[0]


@pytest.fixture
def watched():
    """Runs a coroutine function with an area, an open watch, a rank on page 0, and what is told."""

    def run(test, limits):
        async def body():
            with PageArea.create(2) as area:
                told = Told()
                watch = PageWatch(area, limits, told.callbacks())
                watch.open()
                writer = PageWriter.attach(area.env_value(0))
                try:
                    await test(watch, writer, told)
                finally:
                    watch.close()
                    writer.detach()
                    writer_module.current = writer_module._NotYet()

        asyncio.run(body())

    return run


def test_a_limit_that_is_passed(watched):
    async def test(watch, writer, told):
        writer.heartbeat()
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        index, expired = await told.wait("limit_passed")
        assert (index, expired.watch, expired.limit_s) == (0, "heartbeat", 0.05)
        assert len(told.of("limit_passed")) == 1

    watched(test, Limits(heartbeat_s=0.05))


HEARTBEAT_GIVEN = {"heartbeat": "--ft-rank-heartbeat-timeout"}


def test_a_limit_that_was_given_and_that_no_rank_feeds_is_told(watched):
    async def test(watch, writer, told):
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        await told.wait("no_heartbeats")
        assert not told.of("limit_passed")

    watched(test, Limits(heartbeat_s=0.05, sources=HEARTBEAT_GIVEN))


@pytest.mark.parametrize(
    ("limits", "beats"),
    [
        (Limits(heartbeat_s=0.05), False),
        (Limits(heartbeat_s=0.05, sources=HEARTBEAT_GIVEN), True),
        (
            Limits(
                heartbeat_s=0.05,
                initial_heartbeat_s=600,
                sources=HEARTBEAT_GIVEN | {"initial_heartbeat": "--ft-initial-..."},
            ),
            False,
        ),
    ],
)
def test_where_there_is_nothing_to_tell_of_missing_heartbeats(watched, limits, beats):
    async def test(watch, writer, told):
        if beats:
            writer.heartbeat()
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.1, done.set_result, None)  # after the limit
        await done
        assert not told.of("no_heartbeats")

    watched(test, limits)


def test_a_section_opened_after_the_look(watched):
    async def test(watch, writer, told):
        watch.hold_to_limits([time.monotonic_ns()])
        writer.open_section("a")
        _, expired = await told.wait("limit_passed")
        assert (expired.watch, expired.name) == ("section", "a")

    watched(test, Limits(sections={"a": 0.05}))


def test_other_limits_hold_at_once(watched):
    async def test(watch, writer, told):
        for _ in range(8):
            writer.heartbeat()
        watch.hold_to_limits([time.monotonic_ns()])
        watch.apply(watch.limits, {"heartbeat": Learned(0.05, "learned from this test")})
        _, expired = await told.wait("limit_passed")
        assert expired.source == "learned from this test"

    watched(test, Limits())


def test_events_are_read_now_and_then_without_a_kick(watched, monkeypatch):
    monkeypatch.setattr(watch_module, "_TICK_S", 0.01)

    async def test(watch, writer, told):
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        watch.area.drain_kick()
        writer.event("hello", "text")
        index, events, lost = await told.wait("ring_events")
        assert (index, [event.name for event in events], lost) == (0, ["hello"], 0)

    watched(test, Limits())


@pytest.mark.parametrize("kicks", [True, False])
def test_events_of_ranks_that_are_being_stopped_are_read(watched, monkeypatch, kicks):
    monkeypatch.setattr(watch_module, "_TICK_S", 0.01 if kicks else 3600.0)
    monkeypatch.setattr(watch_module, "_KICKLESS_S", 0.01)

    async def test(watch, writer, told):
        if not kicks:
            writer._words[2] = 1  # KICKLESS
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        watch.release()
        writer.event("saves")
        await told.wait("ring_events")
        watch.end()
        assert told.of("limit_passed") == []

    watched(test, Limits(heartbeat_s=1e-6, initial_heartbeat_s=None))


def test_limits_are_not_applied_to_nobody(watched):
    async def test(watch, writer, told):
        writer.heartbeat()
        watch.apply(Limits(heartbeat_s=1e-6), {})
        assert told.of("limit_passed") == []
        assert len(watch.expired_now([time.monotonic_ns()])[0]) == 1

    watched(test, Limits())


def test_limits_that_began_anew_have_when_evidence_is_gathered(watched):
    async def test(watch, writer, told):
        writer.heartbeat()
        began = [time.monotonic_ns()] * 2
        soon_ns = began[0] + DEADLINE_S * 10**9
        watch.hold_to_limits(began, anew_ns=soon_ns)
        watch.release()  # another rank has passed one
        assert watch.expired_now(began) == [(), ()]
        watch.hold_to_limits(began)  # the next round
        await told.wait("limit_passed")

    watched(test, Limits(heartbeat_s=1e-6))


def test_a_rank_found_to_have_ended_does_not_end_the_watch_over_the_others(watched):
    """On a busy machine, word of a rank's end may come after its limit."""

    async def test(watch, writer, told):
        note = watch.callbacks.limit_passed

        def limit_passed(index, expired):
            if index == 0:
                watch.rank_ended(0)
            note(index, expired)

        watch.callbacks.limit_passed = limit_passed
        now = time.monotonic_ns()
        watch.hold_to_limits([now, now + 50_000_000])
        await told.wait("limit_passed")
        told.heard.clear()
        index, _ = await told.wait("limit_passed")
        assert index == 1
        assert len(told.of("limit_passed")) == 1

    by_hand = {"initial_heartbeat": "command line"}
    watched(test, Limits(initial_heartbeat_s=0.05, sources=by_hand))


def test_a_kick_brings_news(watched):
    async def test(watch, writer, told):
        writer.event("hello", "text")
        writer.milestone("first_line")
        index, page = await told.wait("page_changed")
        assert (index, page.phase) == (0, Phase.STARTING)
        ((_, events, lost),) = told.of("ring_events")
        assert ([event.name for event in events], lost) == (["hello"], 0)

    watched(test, Limits())


def test_a_rank_that_cannot_kick_is_looked_at(watched, monkeypatch):
    monkeypatch.setattr(watch_module, "_KICKLESS_S", 0.01)

    async def test(watch, writer, told):
        writer._words[2] = 1  # KICKLESS
        writer._attachment = None
        watch.area.drain_kick()
        watch.hold_to_limits([time.monotonic_ns()])
        told.heard.clear()
        writer.event("quiet")
        await told.wait("ring_events")

    watched(test, Limits())


def test_a_pause_of_our_own_moves_the_deadlines(watched, monkeypatch):
    monkeypatch.setattr(watch_module, "_TICK_S", 0.02)
    monkeypatch.setattr(watch_module, "_PAUSE_S", 0.1)

    async def test(watch, writer, told):
        writer.heartbeat()
        watch.hold_to_limits([time.monotonic_ns()])
        began = time.monotonic()
        while time.monotonic() < began + 0.3:
            pass  # the loop does not run, as if this process was stopped
        (seconds,) = await told.wait("paused")
        assert seconds > 0.2
        assert told.of("limit_passed") == []
        _, expired = await told.wait("limit_passed")
        assert expired.age_s > 0.2 + seconds

    watched(test, Limits(heartbeat_s=0.2))


@pytest.fixture
def soon(monkeypatch):
    """Ranks are looked at a quarter into a limit, however short that is."""
    monkeypatch.setattr(timeouts, "SOFT_LEAST_S", 0.0)


def test_a_quarter_of_a_limit_is_told_once_for_all_ranks_that_are_silent(watched, soon):
    async def test(watch, writer, told):
        writer.heartbeat()
        other = PageWriter.attach(watch.area.env_value(1))
        other.heartbeat()
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        index, silent = await told.wait("silent")
        assert (index, silent.watch, silent.limit_s) == (0, "heartbeat", 0.8)
        assert not told.of("limit_passed"), "at a quarter of it"
        await told.wait("limit_passed")
        assert len(told.of("silent")) == 1
        other.detach()

    watched(test, Limits(heartbeat_s=0.8))


def test_another_silence_is_told_again_up_to_a_number(watched, soon, monkeypatch):
    monkeypatch.setattr(watch_module, "_MOST_LOOKS", 2)

    async def test(watch, writer, told):
        watch.hold_to_limits([time.monotonic_ns()] * 2)
        for silences in (1, 2, 2):
            writer.heartbeat()
            before = watch._silent.copy()
            watch._check_limits()
            assert watch._silent == {}, before
            page = watch.area.snapshot(0)
            at_ns = page.heartbeat_ns + 30 * 10**9
            monkeypatch.setattr(watch_module.time, "monotonic_ns", lambda at=at_ns: at)
            watch._last_tick_ns = at_ns
            watch._check_limits()
            watch._check_limits()
            monkeypatch.undo()
            monkeypatch.setattr(timeouts, "SOFT_LEAST_S", 0.0)
            assert len(told.of("silent")) == silences

    watched(test, Limits(heartbeat_s=100.0))
