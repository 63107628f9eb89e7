from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.progress import workloads
from undaunted.progress import learning
from undaunted.progress.histogram import BUCKETS, bucket
from undaunted.progress.learning import Knowledge, Observer, Samples, after_kill, learn, limits_for
from undaunted.progress.limits import Limits
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot
from undaunted.progress.timeouts import Expired

S = 10**9
LONG = round(learning.OBSERVED_S * S)
GIVEN = Limits()


def samples(*groups, raised_s=0.0):
    """Samples of (seconds, how many)."""
    counts: dict[int, int] = {}
    for seconds, number in groups:
        index = bucket(round(seconds * S))
        counts[index] = counts.get(index, 0) + number
    return Samples(counts, round(max(s for s, _ in groups) * S), raised_s)


def known(heartbeat=Samples(), observed_ns=LONG, **sections):  # noqa: B008 - frozen
    return Knowledge(world_size=2, observed_ns=observed_ns, heartbeat=heartbeat, sections=sections)


def histogram(*groups):
    counts = samples(*groups).counts
    return tuple(counts.get(index, 0) for index in range(BUCKETS))


def page(beats, *, longest_s=None, at_s=1.0, sections=(), **others):
    """A page with gaps of (seconds, how many)."""
    return PageSnapshot(
        phase=Phase.STEPPING,
        heartbeat_count=1 + sum(number for _, number in beats),
        heartbeat_ns=round(at_s * S),
        heartbeat_histogram=histogram(*beats) if beats else (0,) * BUCKETS,
        heartbeat_max_ns=round((longest_s or max((s for s, _ in beats), default=0)) * S),
        sections={
            name: SectionSnapshot(
                name, None, sum(n for _, n in times), 0,
                round(max(s for s, _ in times) * S), histogram(*times),
            )
            for name, times in dict(sections).items()
        },
        **others,
    )  # fmt: skip


# --- what has to hold -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(8))
def test_workloads_are_never_ended_and_their_hangs_are_found(part):
    """200 programs. The floor of a minute apart, a hang is found within 3 x the 99.9 % quantile."""
    for seed in range(25 * part, 25 * (part + 1)):
        result = workloads.simulate(workloads.ordinary(seed))
        assert result.false_kills == [], f"seed {seed}"
        assert "heartbeat" in result.found, f"seed {seed} never learned"
        for key, (found_s, quantile_s, count) in result.found.items():
            times = 3.0 if count >= learning.MANY else 1.25 * learning.FACTOR_OF_SOME
            bound = max(times * quantile_s, learning.FLOOR_S + 0.1)
            assert found_s <= bound, f"seed {seed}: {key} found after {found_s}, {bound} allowed"


@pytest.mark.parametrize("part", range(2))
def test_programs_with_rare_long_silences_are_never_ended_either(part):
    for seed in range(10 * part, 10 * (part + 1)):
        assert workloads.simulate(workloads.rare(seed)).false_kills == [], f"seed {seed}"


# --- limits ---------------------------------------------------------------------------------------


def test_a_limit_is_a_factor_times_the_quantile_and_says_so():
    learned = learn(known(samples((10, 990), (50, 5000))), GIVEN)
    limit = learned["heartbeat"]
    assert 3 * 50 >= limit.limit_s >= learning.FACTOR * 50
    assert limit.source == "learned from 5990 samples, q99.9 = 50.0 s, longest 50.0 s"
    assert learning.is_learned(limit.source)


@pytest.mark.parametrize(
    ("heartbeat", "expected"),
    [
        (samples((1, 5000)), learning.FLOOR_S),
        (samples((50, 5000), (85, 1)), 1.5 * 85),
        (samples((50, 5000), (200, 1)), 3 * 200),
        (samples((50, 5000), raised_s=900), 900),
        (samples((50, 999)), None),
        (Samples(), None),
    ],
)
def test_limits_of_heartbeats(heartbeat, expected):
    limit = learn(known(heartbeat), GIVEN).get("heartbeat")
    assert (limit and limit.limit_s) == expected


def test_few_samples_of_a_section_give_a_generous_limit():
    limits = learn(known(checkpoint=samples((40, 30)), other=samples((40, 29))), GIVEN)
    assert {key: limit.limit_s for key, limit in limits.items()} == {"section:checkpoint": 200.0}


def test_nothing_is_learned_before_the_program_was_watched_for_long():
    assert learn(known(samples((50, 5000)), observed_ns=LONG - 1), GIVEN) == {}


@pytest.mark.parametrize(
    "limits",
    [
        Limits(heartbeat_s=None),
        Limits(heartbeat_s=100.0, sources={"heartbeat": "--ft-rank-heartbeat-timeout"}),
        Limits(heartbeat_s=100.0, sources={"heartbeat": "calculated"}),
    ],
)
def test_given_limits_of_heartbeats_are_not_learned(limits):
    learned = learn(known(samples((50, 5000)), step=samples((9, 5000))), limits)
    assert learned.keys() == {"section:step"}


def test_given_limits_of_sections_are_all_there_are():
    knowledge = known(samples((50, 5000)), step=samples((9, 5000)))
    assert learn(knowledge, Limits(sections={"other": 3.0})).keys() == {"heartbeat"}


# --- warm-up --------------------------------------------------------------------------------------


def test_the_ceiling_holds_while_a_process_warms_up():
    learned = learn(known(samples((50, 5000)), step=samples((100, 5000))), GIVEN)
    cold = limits_for(page([(1, 4)], sections={"step": [(1, 4)]}), GIVEN, learned)
    assert (cold.heartbeat_s, cold.sections) == (2700.0, {"step": 2700.0})
    assert cold.sources["section:step"] == "warm-up"
    warm = limits_for(page([(1, 5)], sections={"step": [(1, 5)]}), GIVEN, learned)
    assert warm.heartbeat_s == learned["heartbeat"].limit_s
    assert warm.sections == {"step": learned["section:step"].limit_s}
    assert warm.sources["heartbeat"] == learned["heartbeat"].source
    assert warm.initial_heartbeat_s == 3600.0


def test_a_rank_says_how_long_it_warms_up():
    learned = learn(known(samples((50, 5000))), GIVEN)
    patient = page([(1, 20)], warmup_iterations=50)
    assert limits_for(patient, GIVEN, learned).heartbeat_s == 2700.0


def test_nothing_learned_changes_nothing():
    assert limits_for(page([]), GIVEN, {}) is GIVEN


def test_warm_up_is_no_sample():
    observer = Observer(2)
    observer.look(0, page([(600, 1), (1, 4)]), 5)
    observer.look(0, page([(600, 1), (1, 50)], at_s=50), 5)
    seen = observer.seen()
    assert (seen.heartbeat.total, seen.observed_ns) == (46, 49 * S)
    assert S <= seen.heartbeat.longest_ns <= 1.25 * S


# --- collecting -----------------------------------------------------------------------------------


def test_what_one_rank_does_counts_in_full():
    observer = Observer(8)
    for index in range(8):
        observer.look(index, page([(1, 5)]), 5)
    for index in range(8):
        slow = [(30, 2)] if index == 3 else []
        observer.look(index, page([(1, 105), *slow], at_s=9), 5)
    seen = observer.seen()
    assert seen.heartbeat == samples((1, 100), (30, 2))
    assert seen.world_size == 8


def test_sections_are_known_by_name_before_they_are_warm():
    observer = Observer(1)
    observer.look(0, page([], sections={"a": [(1, 1)]}), 5)
    seen = observer.seen()
    assert seen.sections == {"a": Samples()}
    assert seen.fits(["a"])
    assert not seen.fits(["a", "b"])


def test_a_new_process_on_the_page_begins_anew():
    observer = Observer(1)
    observer.look(0, page([(1, 10)]), 5)
    observer.look(0, page([(1, 100)]), 5)
    observer.look(0, page([(1, 7)]), 5)
    observer.look(0, page([(1, 9)]), 5)
    assert observer.seen().heartbeat.total == 2


def test_damaged_pages_are_left_out():
    observer = Observer(1)
    observer.look(0, PageSnapshot(problem="damaged", heartbeat_count=99), 5)
    assert observer.seen() == Knowledge(world_size=1)


def test_merged_knowledge_adds_up():
    both = learning.merge(
        known(samples((1, 5)), a=samples((2, 1))),
        known(samples((1, 2), (9, 1)), b=samples((3, 1), raised_s=7)),
    )
    assert both.observed_ns == 2 * LONG
    assert both.heartbeat == samples((1, 7), (9, 1))
    assert both.sections == {"a": samples((2, 1)), "b": samples((3, 1), raised_s=7)}


words = st.integers(0, 2**64 - 1)


@given(st.lists(words, min_size=BUCKETS, max_size=BUCKETS), words, words)
def test_garbage_in_a_page_yields_something_that_can_be_kept(counts, count, time):
    section = SectionSnapshot("a", time, count, time, time, tuple(counts))
    garbage = PageSnapshot(
        phase=Phase.STEPPING,
        heartbeat_count=count,
        heartbeat_ns=time,
        heartbeat_max_ns=time,
        heartbeat_histogram=tuple(counts),
        sections={"a": section},
    )
    observer = Observer(2)
    observer.look(0, page([(1, 5)], sections={"a": [(1, 5)]}), 5)
    observer.look(0, garbage, 5)
    kept = learning.merge(known(), observer.seen())
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Knowledge) == kept
    limits_for(garbage, GIVEN, learn(kept, GIVEN))
    learning.distribution(garbage, Expired("heartbeat", "", 0, 0, 1.0, 1.0, ""))


# --- after a kill ---------------------------------------------------------------------------------


def expired(watch, limit_s, source, name=""):
    return Expired(watch, name, 0, 0, limit_s, limit_s, source)


def test_a_learned_limit_that_ended_a_rank_is_raised():
    knowledge = known(samples((50, 5000)), step=samples((50, 5000)))
    learned = learn(knowledge, GIVEN)
    before = learned["heartbeat"].limit_s
    after = after_kill(knowledge, expired("heartbeat", before, learned["heartbeat"].source))
    limits = learn(after, GIVEN)
    assert limits["heartbeat"].limit_s == 2 * before
    assert "raised since it ended a rank" in limits["heartbeat"].source
    assert limits["section:step"] == learned["section:step"]
    source = learned["section:step"].source
    after = after_kill(knowledge, expired("section", before, source, "step"))
    assert learn(after, GIVEN)["section:step"].limit_s == 2 * before


def test_other_limits_are_not_raised():
    assert after_kill(known(), expired("heartbeat", 9.0, "--ft-rank-heartbeat-timeout")) == known()


# --- words ----------------------------------------------------------------------------------------


def test_the_distribution_seen_in_words():
    seen = page([(1, 990), (50, 10)], sections={"step": [(2, 1)]})
    heartbeat = expired("heartbeat", 9.0, "")
    assert learning.distribution(seen, heartbeat) == (
        "gaps between heartbeats in this round: 1000, half within 1.1 s, 99 % 1.1 s, "
        "99.9 % 50.0 s, longest 50.0 s"
    )
    text = learning.distribution(seen, expired("section", 9.0, "", "step"))
    assert text.startswith("times section 'step' was open in this round: 1, half within 2.0 s")
    for nothing in (
        expired("section", 9.0, "", "other"),
        expired("outside sections", 9.0, ""),
        expired("initial heartbeat", 9.0, ""),
    ):
        assert learning.distribution(seen, nothing) == ""
    assert learning.distribution(page([]), heartbeat) == ""
