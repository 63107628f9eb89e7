from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.progress.test_samples import known, samples
from undaunted.progress import learning
from undaunted.progress.histogram import BUCKETS
from undaunted.progress.limits import Limits
from undaunted.progress.observer import Observer
from undaunted.progress.samples import (
    HEARTBEAT,
    OUT_OF_SECTION,
    START,
    WARMUP,
    Knowledge,
    Samples,
    merge,
)
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot
from undaunted.progress.timeouts import Expired

S = 10**9


def histogram(*groups):
    counts = samples(*groups).counts if groups else {}
    return tuple(counts.get(index, 0) for index in range(BUCKETS))


def longest_ns(groups):
    return round(max((seconds for seconds, _ in groups), default=0) * S)


def page(beats, *, at_s=1.0, sections=(), outside=(), **others):
    """A page with gaps of (seconds, how many)."""
    return PageSnapshot(
        phase=Phase.STEPPING,
        heartbeat_count=1 + sum(number for _, number in beats),
        heartbeat_ns=round(at_s * S),
        heartbeat_histogram=histogram(*beats),
        heartbeat_max_ns=longest_ns(beats),
        outside_histogram=histogram(*outside),
        outside_max_ns=longest_ns(outside),
        sections={
            name: SectionSnapshot(
                name, None, sum(n for _, n in times), 0, longest_ns(times), histogram(*times)
            )
            for name, times in dict(sections).items()
        },
        **others,
    )


def looked(*pages, began_ns=0):
    observer = Observer(2, began_ns, counts_start=True)
    for each in pages:
        observer.look(0, each, 5)
    return observer.seen()


def test_warm_up_is_no_sample():
    seen = looked(page([(600, 1), (1, 4)]), page([(600, 1), (1, 50)], at_s=50))
    assert (seen.of(HEARTBEAT).total, seen.observed_ns) == (46, 49 * S)
    assert S <= seen.of(HEARTBEAT).longest_ns <= 1.25 * S


def test_every_kind_is_counted():
    few, more = [(1, 5)], [(1, 5), (3, 2)]
    seen = looked(
        page(few, sections={"a": few}, outside=few), page(more, sections={"a": more}, outside=more)
    )
    for kind in (HEARTBEAT, OUT_OF_SECTION, "section:a"):
        assert seen.of(kind) == samples((3, 2))


def test_what_one_rank_does_counts_in_full():
    observer = Observer(8, 0, counts_start=False)
    for index in range(8):
        observer.look(index, page([(1, 5)]), 5)
    for index in range(8):
        slow = [(30, 2)] if index == 3 else []
        observer.look(index, page([(1, 105), *slow], at_s=9), 5)
    seen = observer.seen()
    assert seen.of(HEARTBEAT) == samples((1, 100), (30, 2))
    assert seen.world_size == 8


def test_sections_are_known_by_name_before_they_are_warm():
    assert looked(page([], sections={"a": [(1, 1)]})).samples == {"section:a": Samples()}


def test_a_new_process_on_the_page_begins_anew():
    seen = looked(page([(1, 10)]), page([(1, 100)]), page([(1, 7)]), page([(1, 9)]))
    assert seen.of(HEARTBEAT).total == 2


def test_damaged_pages_are_left_out():
    assert looked(PageSnapshot(problem="damaged", heartbeat_count=99)) == Knowledge(world_size=2)


# --- the start of a round -------------------------------------------------------------------------


def test_a_round_shows_one_start_that_of_its_last_rank():
    observer = Observer(2, 100 * S, counts_start=True)
    for index, seconds in ((0, 130), (1, 150), (0, 900)):  # rank 0 initialised once more
        observer.look(index, page([(1, 1)], first_heartbeat_ns=seconds * S), 5)
    assert observer.seen().samples == {START: samples((50, 1))}


def test_a_round_shows_the_longest_of_its_warm_up_once():
    observer = Observer(2, 0, counts_start=True)
    for index, seconds in ((0, 300), (1, 200)):
        slow = [(seconds, 1), (1, 4)]
        observer.look(index, page(slow, sections={"step": slow}, outside=slow), 5)
        observer.look(index, page([*slow, (900, 1)]), 5)
    seen = observer.seen()
    for kind in (HEARTBEAT, "section:step", OUT_OF_SECTION):
        assert seen.of(WARMUP + kind) == samples((300, 1))


def test_the_start_of_a_program_that_is_not_known_is_kept_but_no_sample():
    """It may have nothing to load; but it has filled the caches from which the next ones live."""
    observer = Observer(2, 0, counts_start=False)
    observer.look(0, page([(300, 1), (1, 9)], first_heartbeat_ns=20 * S), 5)
    seen = observer.seen()
    assert seen.of(START) == Samples({}, 20 * S)
    assert seen.of(WARMUP + HEARTBEAT) == Samples({}, 300 * S)
    later = merge(seen, looked(page([(1, 9)], first_heartbeat_ns=30 * S)))
    assert later.of(WARMUP + HEARTBEAT) == Samples(samples((1, 1)).counts, 300 * S)


def test_a_heartbeat_before_the_round_is_of_another_process():
    assert looked(page([], first_heartbeat_ns=S), began_ns=2 * S).samples == {}


words = st.integers(0, 2**64 - 1)


@given(st.lists(words, min_size=BUCKETS, max_size=BUCKETS), words, words)
def test_garbage_in_a_page_yields_something_that_can_be_kept(counts, count, time):
    given_ = Limits()
    section = SectionSnapshot("a", time, count, time, time, tuple(counts))
    garbage = PageSnapshot(
        phase=Phase.STEPPING,
        heartbeat_count=count,
        heartbeat_ns=time,
        first_heartbeat_ns=time,
        heartbeat_max_ns=time,
        heartbeat_histogram=tuple(counts),
        outside_max_ns=time,
        outside_histogram=tuple(counts),
        sections={"a": section},
    )
    observer = Observer(2, 7, counts_start=True)
    observer.look(0, page([(1, 5)], sections={"a": [(1, 5)]}), 5)
    observer.look(0, garbage, 5)
    kept = merge(known(observed_ns=10**15), observer.seen())
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Knowledge) == kept
    learning.limits_for(garbage, given_, learning.learn(kept, given_))
    for watch in ("heartbeat", "outside sections"):
        learning.distribution(garbage, Expired(watch, "", 0, 0, 1.0, 1.0, ""))
