from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.progress.test_samples import known, samples
from undaunted.progress import learning
from undaunted.progress.limits import Limits
from undaunted.progress.observer import Observer
from undaunted.progress.samples import (
    HEARTBEAT,
    OUT_OF_SECTION,
    Knowledge,
    Samples,
    merge,
)
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot
from undaunted.progress.timeouts import Expired

S = 10**9


WARMUP = 5


def durations(groups):
    """How many, the longest, and the longest after the warm-up, of (seconds, how many)."""
    each = [round(seconds * S) for seconds, number in groups for _ in range(number)]
    return len(each), max(each, default=0), max(each[WARMUP:], default=0)


def page(beats, *, at_s=1.0, sections=(), outside=(), **others):
    """A page with gaps of (seconds, how many)."""
    gaps, longest_ns, warm_ns = durations(beats)
    between, outside_ns, outside_warm_ns = durations(outside)
    names = {name: durations(times) for name, times in dict(sections).items()}
    return PageSnapshot(
        phase=Phase.STEPPING,
        heartbeat_count=1 + gaps,
        heartbeat_ns=round(at_s * S),
        heartbeat_max_ns=longest_ns,
        heartbeat_warm_max_ns=warm_ns,
        outside_count=between,
        outside_max_ns=outside_ns,
        outside_warm_max_ns=outside_warm_ns,
        sections={
            name: SectionSnapshot(name, None, count, 0, most_ns, later_ns)
            for name, (count, most_ns, later_ns) in names.items()
        },
        **others,
    )


def looked(*pages):
    observer = Observer(2)
    for each in pages:
        observer.look(0, each, WARMUP)
    return observer.seen()


def test_warm_up_is_no_sample():
    seen = looked(page([(600, 1), (1, 4)]), page([(600, 1), (1, 50)], at_s=50))
    assert (seen.of(HEARTBEAT), seen.observed_ns) == (Samples(46, S, 600 * S), 49 * S)


def test_every_kind_is_counted():
    more = [(1, 5), (3, 2)]
    seen = looked(page(more, sections={"a": more}, outside=more))
    for kind in (HEARTBEAT, OUT_OF_SECTION, "section:a"):
        assert seen.of(kind) == samples((3, 2))


def test_what_one_rank_does_counts_in_full():
    observer = Observer(8)
    for index in range(8):
        slow = [(30, 2)] if index == 3 else []
        observer.look(index, page([(1, 105), *slow], at_s=9), WARMUP)
    seen = observer.seen()
    assert seen.of(HEARTBEAT) == samples((1, 100), (30, 2))
    assert seen.world_size == 8


def test_sections_are_known_by_name_before_they_are_warm():
    assert looked(page([], sections={"a": [(1, 1)]})).samples == {"section:a": Samples(0, 0, S)}


def test_a_new_process_on_the_page_takes_nothing_away():
    seen = looked(page([(1, 10)]), page([(1, 100)]), page([(1, 7), (3, 1)]))
    assert seen.of(HEARTBEAT) == samples((1, 94), (3, 1))


def test_damaged_pages_are_left_out():
    assert looked(PageSnapshot(problem="damaged", heartbeat_count=99)) == Knowledge(world_size=2)


words = st.integers(0, 2**64 - 1)


@given(words, words)
def test_garbage_in_a_page_yields_something_that_can_be_kept(count, time):
    given_ = Limits()
    section = SectionSnapshot("a", time, count, time, time, time)
    garbage = PageSnapshot(
        phase=Phase.STEPPING,
        heartbeat_count=count,
        heartbeat_ns=time,
        first_heartbeat_ns=time,
        heartbeat_max_ns=time,
        heartbeat_warm_max_ns=time,
        outside_max_ns=time,
        outside_count=count,
        outside_warm_max_ns=time,
        sections={"a": section},
    )
    observer = Observer(2)
    observer.look(0, page([(1, 5)], sections={"a": [(1, 5)]}), WARMUP)
    observer.look(0, garbage, WARMUP)
    kept = merge(known(observed_ns=10**15), observer.seen())
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Knowledge) == kept
    learning.limits_for(garbage, given_, learning.learn(kept, given_))
    for watch in ("heartbeat", "outside sections"):
        learning.distribution(garbage, Expired(watch, "", 0, 0, 1.0, 1.0, ""))
