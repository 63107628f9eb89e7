from __future__ import annotations

import msgspec
import pytest

from tests.progress import test_samples, workloads
from tests.progress.test_observer import page
from tests.progress.test_samples import samples
from undaunted.progress import learning
from undaunted.progress.learning import after_kill, learn, limits_for
from undaunted.progress.limits import FLOOR_S, Limits
from undaunted.progress.samples import OUT_OF_SECTION, Samples
from undaunted.progress.timeouts import Expired

S = 10**9
LONG = round(learning.OBSERVED_S * S)
GIVEN = Limits()


def known(*arguments, observed_ns=LONG, others=None, **sections):
    knowledge = test_samples.known(*arguments, observed_ns=observed_ns, **sections)
    return msgspec.structs.replace(knowledge, samples={**knowledge.samples, **(others or {})})


# --- what has to hold -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))]
)
def test_workloads_are_never_ended_and_their_hangs_are_found(part):
    """200 programs. The floor of a minute apart, a hang is found within twice the longest time."""
    for seed in range(25 * part, 25 * (part + 1)):
        result = workloads.simulate(workloads.ordinary(seed))
        assert result.false_kills == [], f"seed {seed}"
        assert "heartbeat" in result.found, f"seed {seed} never learned"
        for key, found in result.found.items():
            assert found.limit_s <= bound(found), f"seed {seed}: {key}: {found}"


def bound(found):
    factor = learning.FACTOR if found.count >= learning.MANY else learning.FACTOR_OF_FEW
    return max(factor * found.longest_s, FLOOR_S) + 0.1


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


def test_a_limit_is_a_factor_times_the_longest_and_says_so():
    learned = learn(known(samples((10, 990), (50, 5000))), GIVEN)
    limit = learned["heartbeat"]
    assert limit.limit_s == learning.FACTOR * 50
    assert limit.source == "learned from 5990 samples, longest 50.0 s"
    assert learning.is_learned(limit.source)


@pytest.mark.parametrize(
    ("heartbeat", "expected"),
    [
        (samples((1, 5000)), FLOOR_S),
        (samples((50, 5000), (85, 1)), 2 * 85),
        (samples((50, 5000), raised_s=900), 900),
        (samples((50, 1000)), 2 * 50),
        (samples((50, 999)), None),
        (Samples(), None),
    ],
)
def test_limits_of_heartbeats(heartbeat, expected):
    limit = learn(known(heartbeat), GIVEN).get("heartbeat")
    assert (limit and limit.limit_s) == expected


def test_few_samples_of_a_section_give_a_generous_limit():
    limits = [
        learn(known(a=samples((40, count))), GIVEN).get("section:a")
        for count in (29, 30, 999, 1000)
    ]
    assert [limit and limit.limit_s for limit in limits] == [None, 200.0, 200.0, 80.0]


def test_the_time_outside_sections_is_learned():
    others = {OUT_OF_SECTION: samples((50, 5000))}
    limit = learn(known(others=others), GIVEN)[OUT_OF_SECTION]
    assert limit.limit_s == 2 * 50
    assert limits_for(page([], outside=[(1, 5)]), GIVEN, {OUT_OF_SECTION: limit}) == (
        msgspec.structs.replace(
            GIVEN, out_of_section_s=100.0, sources={OUT_OF_SECTION: limit.source}
        )
    )
    assert learn(known(others=others), Limits(sections={"a": 1.0})) == {}
    assert learn(known(others=others), Limits(sources={OUT_OF_SECTION: "--flag"})) == {}


def test_nothing_is_learned_where_that_is_switched_off():
    assert learn(known(samples((50, 5000))), Limits(learn=False)) == {}


def test_the_user_may_want_shorter_limits():
    assert learn(known(samples((1, 5000))), Limits(floor_s=0))["heartbeat"].limit_s == 2


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


def test_the_ceiling_is_not_below_the_limit_for_later():
    learned = learn(known(samples((2000, 5000))), GIVEN)
    assert limits_for(page([(1, 4)]), GIVEN, learned).heartbeat_s == 4000.0


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
    ("watch", "name", "key"),
    [
        ("heartbeat", "", "heartbeat"),
        ("section", "a", "section:a"),
        ("outside sections", "", OUT_OF_SECTION),
    ],
)
def test_what_is_raised_is_the_limit_that_was_passed(watch, name, key):
    after = after_kill(known(), expired(watch, 700.0, "learned from 5", name))
    assert {kind: of.raised_s for kind, of in after.samples.items() if of.raised_s} == {key: 1400.0}


def test_other_limits_are_not_raised():
    assert after_kill(known(), expired("heartbeat", 9.0, "--ft-rank-heartbeat-timeout")) == known()


# --- words ----------------------------------------------------------------------------------------


def test_what_was_seen_in_words():
    seen = page([(1, 990), (50, 10)], sections={"step": [(2, 1)]}, outside=[(2, 1)])
    heartbeat = expired("heartbeat", 9.0, "")
    assert learning.distribution(seen, heartbeat) == (
        "gaps between heartbeats in this round: 1000, longest 50.0 s"
    )
    text = learning.distribution(seen, expired("section", 9.0, "", "step"))
    assert text == "times section 'step' was open in this round: 1, longest 2.0 s"
    for nothing in (
        expired("section", 9.0, "", "other"),
        expired("initial heartbeat", 9.0, ""),
    ):
        assert learning.distribution(seen, nothing) == ""
    outside = learning.distribution(seen, expired("outside sections", 9.0, ""))
    assert outside == "times outside all sections in this round: 1, longest 2.0 s"
    assert learning.distribution(page([]), heartbeat) == (
        "gaps between heartbeats in this round: this is the first one"
    )
