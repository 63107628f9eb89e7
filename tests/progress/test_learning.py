from __future__ import annotations

import msgspec
import pytest

from tests.progress import test_samples, workloads
from tests.progress.test_observer import page
from tests.progress.test_samples import samples
from undaunted.progress import learning
from undaunted.progress.learning import after_kill, learn, limits_for
from undaunted.progress.limits import FLOOR_S, Limits
from undaunted.progress.samples import OUT_OF_SECTION, START, WARMUP, Samples
from undaunted.progress.timeouts import Expired

S = 10**9
LONG = round(learning.OBSERVED_S * S)
GIVEN = Limits()


def known(*arguments, observed_ns=LONG, others=None, **sections):
    knowledge = test_samples.known(*arguments, observed_ns=observed_ns, **sections)
    return msgspec.structs.replace(knowledge, samples={**knowledge.samples, **(others or {})})


# --- what has to hold -----------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(8))
def test_workloads_are_never_ended_and_their_hangs_are_found(part):
    """200 programs. The floor of a minute apart, a hang is found within 3 x the 99.9 % quantile.

    Unless the longest was twice the quantile, as far as buckets tell: then within 3 x that.
    """
    for seed in range(25 * part, 25 * (part + 1)):
        result = workloads.simulate(workloads.ordinary(seed))
        assert result.false_kills == [], f"seed {seed}"
        assert "heartbeat" in result.found, f"seed {seed} never learned"
        for key, found in result.found.items():
            assert found.limit_s <= bound(found), f"seed {seed}: {key}: {found}"


def bound(found):
    """Limits of sections come down to 3 x the quantile with 640 samples."""
    while_few = max(1.0, min(5.1, 2.5 * (learning.MANY / found.count) ** 0.5) / 3)
    heavy_tail = found.longest_s >= 1.55 * found.quantile_s and found.count >= learning.MANY
    return max(
        3.0 * while_few * found.quantile_s + 0.1,
        3.75 * found.longest_s + 0.1 if heavy_tail else 0.0,
        FLOOR_S + 0.1,
    )


@pytest.mark.parametrize("seed", range(2))
def test_long_programs_are_never_ended_and_hangs_in_all_sections_are_found(seed):
    result = workloads.simulate(workloads.long(seed))
    assert result.false_kills == []
    for key, found in result.found.items():
        assert found.count >= 700
        assert found.limit_s <= bound(found), f"{key}: {found}"


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
        (samples((1, 5000)), FLOOR_S),
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


def test_the_limit_of_a_section_comes_down_with_every_sample():
    limits = [
        learn(known(a=samples((100, count))), GIVEN)["section:a"].limit_s
        for count in (30, 230, 640, 999, 1000)
    ]
    assert limits == sorted(limits, reverse=True)
    assert limits == pytest.approx([500, 500, 300, 240, 240], rel=0.01)


def test_the_time_outside_sections_is_learned():
    others = {OUT_OF_SECTION: samples((50, 5000))}
    limit = learn(known(others=others), GIVEN)[OUT_OF_SECTION]
    assert limit.limit_s == 2.4 * 50
    assert limits_for(page([], outside=[(1, 5)]), GIVEN, {OUT_OF_SECTION: limit}) == (
        msgspec.structs.replace(
            GIVEN, out_of_section_s=120.0, sources={OUT_OF_SECTION: limit.source}
        )
    )
    assert learn(known(others=others), Limits(sections={"a": 1.0})) == {}
    assert learn(known(others=others), Limits(sources={OUT_OF_SECTION: "--flag"})) == {}


def test_nothing_is_learned_where_that_is_switched_off():
    assert learn(known(samples((50, 5000))), Limits(learn=False)) == {}


def test_the_user_may_want_shorter_limits():
    assert learn(known(samples((1, 5000))), Limits(floor_s=0))["heartbeat"].limit_s == 2.4


# --- the start of a round -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        (samples((30, 3)), 600.0),
        (samples((30, 2), (400, 1)), 2000.0),
        (samples((30, 2), (1000, 1)), 3600.0),
        (samples((30, 2), (2000, 1)), 4000.0),
        (samples((30, 2)), None),
        (samples((30, 3), raised_s=1200), 1200.0),
    ],
)
def test_limits_of_the_first_heartbeat(starts, expected):
    limit = learn(known(others={START: starts}), GIVEN).get(START)
    assert (limit and limit.limit_s) == expected
    if limit is not None:
        held_to = limits_for(page([]), GIVEN, {START: limit})
        assert held_to.initial_heartbeat_s == expected
        assert held_to.sources[START].startswith("learned from the starts of rounds: 3 samples")


@pytest.mark.parametrize(
    "limits",
    [
        Limits(initial_heartbeat_s=None),
        Limits(sources={START: "--ft-initial-rank-heartbeat-timeout"}),
    ],
)
def test_a_given_limit_of_the_first_heartbeat_is_not_learned(limits):
    assert learn(known(others={START: samples((30, 9))}), limits) == {}


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
    assert cold.sources["section:step"] == "default while a new process warms up"
    warm = limits_for(page([(1, 5)], sections={"step": [(1, 5)]}), GIVEN, learned)
    assert warm.heartbeat_s == learned["heartbeat"].limit_s
    assert warm.sections == {"step": learned["section:step"].limit_s}
    assert warm.sources["heartbeat"] == learned["heartbeat"].source
    assert warm.initial_heartbeat_s == 3600.0


def test_warm_up_is_held_to_what_it_took_in_other_rounds():
    others = {WARMUP + "heartbeat": samples((300, 3)), WARMUP + "section:step": samples((30, 3))}
    learned = learn(known(samples((50, 5000)), step=samples((300, 5000)), others=others), GIVEN)
    cold = limits_for(page([(1, 4)], sections={"step": [(1, 4)]}), GIVEN, learned)
    assert cold.heartbeat_s == 1500.0
    assert cold.sources["heartbeat"].startswith("learned from the starts of rounds: 3 samples")
    assert cold.sections == {"step": learned["section:step"].limit_s} == {"step": 720.0}


def test_a_rank_says_how_long_it_warms_up():
    learned = learn(known(samples((50, 5000))), GIVEN)
    patient = page([(1, 20)], warmup_iterations=50)
    assert limits_for(patient, GIVEN, learned).heartbeat_s == 2700.0


def test_nothing_learned_changes_nothing():
    assert limits_for(page([]), GIVEN, {}) is GIVEN


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


@pytest.mark.parametrize(
    ("watch", "name", "of_start", "key"),
    [
        ("heartbeat", "", True, WARMUP + "heartbeat"),
        ("section", "a", True, WARMUP + "section:a"),
        ("initial heartbeat", "", True, START),
        ("outside sections", "", False, OUT_OF_SECTION),
        ("outside sections", "", True, WARMUP + OUT_OF_SECTION),
    ],
)
def test_what_is_raised_is_the_limit_that_was_passed(watch, name, of_start, key):
    source = "learned from the starts of rounds: 3" if of_start else "learned from 5"
    after = after_kill(known(), expired(watch, 700.0, source, name))
    assert {kind: of.raised_s for kind, of in after.samples.items() if of.raised_s} == {key: 1400.0}


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
        expired("initial heartbeat", 9.0, ""),
    ):
        assert learning.distribution(seen, nothing) == ""
    outside = learning.distribution(
        page([], outside=[(2, 1)]), expired("outside sections", 9.0, "")
    )
    assert outside.startswith("times outside all sections in this round: 1, half within 2.0 s")
    assert learning.distribution(page([]), heartbeat) == (
        "gaps between heartbeats in this round: this is the first one"
    )
