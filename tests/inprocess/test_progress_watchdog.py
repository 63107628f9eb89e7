"""What a rank shows of its progress, as its function sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.inprocess.rank.calls import call
from undaunted.inprocess.core.reading import Phase
from undaunted.inprocess.progress_watchdog import ProgressWatchdog, Timestamp
from undaunted.inprocess.rank import guard_link
from undaunted.inprocess.rank.page import Page
from undaunted.inprocess.wrap import CallWrapper  # noqa: TC001 - looked up at run time

if TYPE_CHECKING:
    from tests.inprocess.rank.fake_guard import FakeGuard


def test_times_are_those_of_the_page() -> None:
    page = Page()
    try:
        before = time.monotonic()
        page.turned()
        shown = ProgressWatchdog(page).timestamp
        assert shown.manual is None
        assert shown.auto is not None
        assert before <= shown.auto <= time.monotonic()
    finally:
        page.close()
    assert ProgressWatchdog(page).timestamp == Timestamp()  # nothing is seen any more


def test_the_function_sees_and_resets_what_its_guard_sees(guard: FakeGuard) -> None:
    def train(wrapper: CallWrapper) -> list[Timestamp]:
        watchdog = wrapper.progress_watchdog
        seen = [watchdog.timestamp]
        watchdog.ping()
        assert guard.read_page().pings == 1
        assert guard.read_page().ping_ns
        seen.append(watchdog.timestamp)
        watchdog.reset()
        assert (guard.read_page().ping_ns, guard.read_page().phase) == (0, Phase.RUNNING)
        return [*seen, watchdog.timestamp]

    first, pinged, reset = call(train, None)
    assert first.auto is not None
    assert (first.manual, reset.manual) == (None, None)
    assert pinged.manual is not None
    assert pinged.manual >= first.auto
    assert reset.auto is not None
    assert reset.auto >= pinged.manual


def test_nothing_is_disturbed_after_the_call(guard: FakeGuard) -> None:
    def itself(wrapper: CallWrapper) -> CallWrapper:
        return wrapper

    watchdog = call(itself, None).progress_watchdog
    watchdog.reset()
    assert guard.read_page().phase is Phase.OUTSIDE
    guard_link.close()
    watchdog.ping()
    watchdog.reset()
    assert watchdog.timestamp.auto is not None
