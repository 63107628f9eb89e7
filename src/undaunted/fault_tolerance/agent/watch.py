"""Looks at the pages: at limits when the next one could be passed, at all else when a rank kicks.

Nothing is scanned at a fixed rate: the timeout engine says when the next limit could be passed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.progress.learning import Learned, limits_for
from undaunted.progress.snapshot import PageSnapshot, Phase
from undaunted.progress.timeouts import Check, Expired, check

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from undaunted.progress.area import MailboxRequest, PageArea
    from undaunted.progress.limits import Limits
    from undaunted.progress.reader import RingEvent

_NS = 1_000_000_000
_NOT_BY_HAND = ("default", "calculated")
_TICK_S = 1.0
# A tick this late means that the agent itself did not run (SIGSTOP, frozen virtual machine).
_PAUSE_S = 0.5
# How often a page is looked at whose rank cannot kick.
_KICKLESS_S = 0.25
# In one round ranks are not looked at more often because they are silent.
_MOST_LOOKS = 5


@dataclass(slots=True)
class Callbacks:
    """The calls of the watch when it has seen something; on the event loop, with local ranks."""

    limit_passed: Callable[[int, Expired], None]
    silent: Callable[[int, Expired], None]  # for the soft part of a limit; once for all that are
    page_changed: Callable[[int, PageSnapshot], None]
    ring_events: Callable[[int, list[RingEvent], int], None]
    request: Callable[[int, MailboxRequest], None]
    paused: Callable[[float], None]
    no_heartbeats: Callable[
        [], None
    ]  # no rank has sent a heartbeat within the limit that was given


@dataclass(slots=True)
class PageWatch:
    """Watches the pages of one round after another.

    Attributes:
        limits: as configured, or as calculated by the ranks, which counts from their
            initialisation on.
        learned: limits learned from earlier rounds, in the place of defaults.
        configured: as configured, for ranks that are starting.
    """

    area: PageArea
    limits: Limits
    callbacks: Callbacks
    learned: dict[str, Learned] = field(default_factory=dict)
    configured: Limits = field(init=False)
    pauses: list[tuple[int, int]] = field(default_factory=list)  # (end, length), nanoseconds
    _started_ns: list[int] = field(default_factory=list)
    _anew_ns: int = 0
    _ended: set[int] = field(default_factory=set)
    _deadline_timer: asyncio.TimerHandle | None = None
    _tick_timer: asyncio.TimerHandle | None = None
    _kickless_timer: asyncio.TimerHandle | None = None
    _heartbeat_timer: asyncio.TimerHandle | None = None
    _last_tick_ns: int = 0
    _api_seen: bool = False
    _silent: dict[int, int] = field(default_factory=dict)  # local ranks: since when
    _looks_left: int = _MOST_LOOKS

    def __post_init__(self) -> None:
        self.configured = self.limits

    def open(self) -> None:
        """Begin to listen for kicks."""
        asyncio.get_running_loop().add_reader(self.area.kick_fd, self._kicked)

    def close(self) -> None:
        """Stop everything."""
        asyncio.get_running_loop().remove_reader(self.area.kick_fd)
        self.end()

    def end(self) -> None:
        """No rank runs any more: look again when ranks are held to limits."""
        self.release()
        for timer in (self._tick_timer, self._kickless_timer):
            if timer is not None:
                timer.cancel()
        self._tick_timer = self._kickless_timer = None

    def release(self) -> None:
        """Apply the limits to no rank; what ranks did is still judged by them."""
        self._started_ns = []
        for timer in (self._deadline_timer, self._heartbeat_timer):
            if timer is not None:
                timer.cancel()
        self._deadline_timer = self._heartbeat_timer = None

    def hold_to_limits(
        self, started_ns: list[int], ended: Collection[int] = (), *, anew_ns: int = 0
    ) -> None:
        """Apply the limits to the local ranks.

        From the first time on, until `end`, their events are read, too: ranks that are being
        stopped may save for long.

        Args:
            started_ns: when each local rank was started.
            ended: local ranks whose processes have ended already.
            anew_ns: what ranks did before then is not held against them.
        """
        self.release()
        self._started_ns, self._ended, self._anew_ns = started_ns, set(ended), anew_ns
        self.pauses.clear()
        self._silent.clear()
        self._looks_left = self._looks_left if anew_ns else _MOST_LOOKS
        if self._tick_timer is None:
            self._last_tick_ns = time.monotonic_ns()
            self._schedule_tick()
            self._look_at_kickless()
        self._expect_heartbeats()
        self._check_limits()

    def apply(self, limits: Limits, learned: dict[str, Learned]) -> None:
        """Hold ranks to these from now on, if they are held to limits at all."""
        self.limits, self.learned = limits, learned
        if self._started_ns:
            self._check_limits()

    def configure(self, limits: Limits) -> None:
        """Hold ranks that are starting to these from now on."""
        self.configured = limits

    def rank_ended(self, local_rank: int) -> None:
        """Hold this rank to nothing in this round any more: what it owes is its exit code."""
        self._ended.add(local_rank)

    def rank_replaced(self, local_rank: int, started_ns: int) -> None:
        """Another process is this rank: hold it to the limits, if there are any."""
        self._ended.discard(local_rank)
        if self._started_ns:
            self._started_ns[local_rank] = started_ns
            self._check_limits()

    def expired_now(self, started_ns: list[int]) -> list[tuple[Expired, ...]]:
        """For each local rank, started at these times, the limits it has passed by now."""
        return [self._check(index, begun).expired for index, begun in enumerate(started_ns)]

    def read_pages(self) -> None:
        """Look at every page now: records, events, requests."""
        self.read_events()
        for index in range(self.area.ranks):
            if (request := self.area.take_request(index)) is not None:
                self.callbacks.request(index, request)
            self.callbacks.page_changed(index, self.area.snapshot(index))

    def read_events(self) -> None:
        """Take the events of every page."""
        for index in range(self.area.ranks):
            events, lost = self.area.drain_events(index)
            if events or lost:
                self.callbacks.ring_events(index, events, lost)

    # --- timers ---------------------------------------------------------------------------------

    def _kicked(self) -> None:
        self.area.drain_kick()
        self.read_pages()
        if self._started_ns:
            self._check_limits()

    def _check_limits(self) -> None:
        self._note_pause()
        looks: list[int] = []
        silent: dict[int, Expired] = {}
        for index, started_ns in enumerate(self._started_ns):
            result = self._check(index, started_ns)
            if result.expired:
                self.callbacks.limit_passed(index, result.expired[0])
                # It may have been found to have ended; the others are held to their limits.
                if index not in self._ended or not self._started_ns:
                    return
                continue
            if result.next_ns is not None:
                looks.append(result.next_ns)
            if result.silent is not None:
                silent[index] = result.silent
        if looks:
            self._schedule_check(min(looks))
        self._note_silence(silent)

    def _note_silence(self, silent: dict[int, Expired]) -> None:
        """Tell of ranks that are silent, once: those that fall silent meanwhile wait for them."""
        known = self._silent
        goes_on = any(known.get(index) == each.since_ns for index, each in silent.items())
        self._silent = {index: each.since_ns for index, each in silent.items()}
        if silent and not goes_on and self._looks_left > 0:
            self._looks_left -= 1
            first = min(silent, key=lambda index: silent[index].deadline_ns)
            self.callbacks.silent(first, silent[first])

    def _check(self, index: int, started_ns: int) -> Check:
        if index in self._ended:
            return Check((), None)
        page = self.area.snapshot(index)
        self._api_seen |= page.phase in (Phase.INITIALIZED, Phase.STEPPING)
        return check(
            page,
            self.limits_for(page),
            now_ns=time.monotonic_ns(),
            started_ns=started_ns,
            anew_ns=self._anew_ns,
            pauses=self.pauses,
            siblings_monitored=self._api_seen or self._initial_limit_given,
        )

    @property
    def _initial_limit_given(self) -> bool:
        """A user who sets this limit by hand expects heartbeats of all ranks, also of the first."""
        return self._given("initial_heartbeat")

    def _given(self, key: str) -> bool:
        return self.limits.sources.get(key, "default") not in _NOT_BY_HAND

    def _expect_heartbeats(self) -> None:
        """A limit that was given, and that nothing feeds, would be silent for ever."""
        limit_s = self.configured.heartbeat_s
        if self._api_seen or limit_s is None or not self._given("heartbeat"):
            return
        if self.configured.initial_heartbeat_s is not None and self._initial_limit_given:
            return  # that limit ends ranks without heartbeats
        self._heartbeat_timer = asyncio.get_running_loop().call_later(
            limit_s, self._look_for_heartbeats
        )

    def _look_for_heartbeats(self) -> None:
        self._check_limits()
        if self._started_ns and not self._api_seen:
            self._api_seen = any(self.area.snapshot(index).heartbeat_ns for index in self._ended)
        if self._started_ns and not self._api_seen:
            self.callbacks.no_heartbeats()

    def limits_for(self, page: PageSnapshot) -> Limits:
        """Return what the rank of a page is held to now."""
        if page.phase in (Phase.EMPTY, Phase.STARTING):
            # Calculated limits were measured from the initialisation on, not from the start.
            return limits_for(page, self.configured, self.learned)
        return limits_for(page, self.limits, self.learned)

    def _schedule_check(self, at_ns: int) -> None:
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        loop = asyncio.get_running_loop()
        # asyncio's clock is CLOCK_MONOTONIC; a millisecond more, so that one look is enough.
        self._deadline_timer = loop.call_at(at_ns / _NS + 0.001, self._check_limits)

    def _schedule_tick(self) -> None:
        self._tick_timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._note_pause()
        self.read_events()  # an event does not kick, and the ring is small
        self._schedule_tick()

    def _note_pause(self) -> None:
        now = time.monotonic_ns()
        late_ns = now - self._last_tick_ns - int(_TICK_S * _NS)
        self._last_tick_ns = now
        if late_ns > _PAUSE_S * _NS:
            self.pauses.append((now, late_ns))
            self.callbacks.paused(late_ns / _NS)

    def _look_at_kickless(self) -> None:
        if any(self.area.kickless(index) for index in range(self.area.ranks)):
            self.read_pages()
            if self._started_ns:
                self._check_limits()
            delay = _KICKLESS_S
        else:
            delay = _TICK_S
        loop = asyncio.get_running_loop()
        self._kickless_timer = loop.call_later(delay, self._look_at_kickless)
