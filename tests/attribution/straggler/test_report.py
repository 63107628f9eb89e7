"""Scores of made-up ranks."""

from __future__ import annotations

import math
import re
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.straggler.report import (
    OwnBest,
    RankTimes,
    Report,
    Statistic,
    StragglerId,
    decode,
    encode,
    gathered,
    gpu_score,
    kernel_summary,
    of_one_rank,
    relative_scores,
    section_summary,
)

nan = math.nan


def ranks(*sections: dict[str, float], roles: str = "") -> list[RankTimes]:
    return [
        RankTimes(
            rank=number,
            node=f"node{number // 2}",
            role=roles[number : number + 1],
            sections=one,
            kernels={name: (1e3 * median, 1e4 * median) for name, median in one.items()},
            gpu_individual=1.0,
            sections_individual=dict.fromkeys(one, 0.5),
        )
        for number, one in enumerate(sections)
    ]


def test_statistics_of_sections_and_kernels() -> None:
    section, kernel = section_summary([4.0, 1.0, 3.0, 2.0]), kernel_summary([4.0, 1.0, 3.0, 2.0])
    assert section[Statistic.MED] == 2.0
    assert kernel[Statistic.MED] == 2.5
    assert section[Statistic.STD] == pytest.approx(statistics.stdev([1, 2, 3, 4]))
    assert kernel[Statistic.STD] == pytest.approx(statistics.pstdev([1, 2, 3, 4]))
    for one in (section, kernel):
        assert {each.name: value for each, value in one.items() if each.name[0] in "MAN"} == {
            "MIN": 1.0,
            "MAX": 4.0,
            "MED": one[Statistic.MED],
            "AVG": 2.5,
            "NUM": 4,
        }


def test_the_spread_of_one_time() -> None:
    assert math.isnan(section_summary([1.0])[Statistic.STD])
    assert kernel_summary([1.0])[Statistic.STD] == 0


def test_a_slow_rank_has_the_ratio_to_the_best_as_its_score() -> None:
    gpu, sections = relative_scores(ranks({"a": 10}, {"a": 20}, {"a": 10}), "best")
    assert gpu == {0: 1.0, 1: 0.5, 2: 1.0}
    assert sections == {"a": {0: 1.0, 1: 0.5, 2: 1.0}}


def test_one_lucky_rank_lowers_nobody_among_peers() -> None:
    times = ranks({"a": 5}, {"a": 10}, {"a": 10}, {"a": 20})
    assert relative_scores(times, "best")[1]["a"] == {0: 1.0, 1: 0.5, 2: 0.5, 3: 0.25}
    assert relative_scores(times, "peers")[1]["a"] == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.5}


def test_two_peers_are_compared_with_each_other() -> None:
    assert relative_scores(ranks({"a": 10}, {"a": 20}), "peers")[1]["a"] == {0: 1.0, 1: 0.5}


def test_a_section_that_a_rank_lacks_is_compared_among_peers_only() -> None:
    times = ranks({"a": 10, "b": 1}, {"a": 20, "b": 1}, {"b": 2})
    gpu, sections = relative_scores(times, "best")
    assert all(math.isnan(score) for score in sections["a"].values())
    assert gpu == {0: 1.0, 1: 1.0, 2: 0.5}, "others count"
    gpu, sections = relative_scores(times, "peers")
    assert [sections["a"][0], sections["a"][1], gpu[2]] == [1.0, 0.5, 0.5]
    assert math.isnan(sections["a"][2])


@pytest.mark.parametrize("reference", ["best", "peers"])
def test_nothing_in_common_is_nan(reference: Any) -> None:
    gpu, sections = relative_scores(ranks({"a": 1}, {"b": 2}, {}), reference)
    assert all(math.isnan(score) for score in gpu.values())
    assert all(math.isnan(score) for one in sections.values() for score in one.values())
    assert not any(report_of(gpu, sections).identify_stragglers().values())


def test_a_time_of_zero_is_not_compared() -> None:
    assert relative_scores(ranks({"a": 0.0}, {"a": 2.0}, {"a": 4.0}), "peers")[0][2] == 0.5
    gpu, _ = relative_scores(ranks({"a": 0.0}, {"a": 2.0}), "best")
    assert all(math.isnan(score) for score in gpu.values())


def test_ranks_of_another_role_are_no_peers() -> None:
    times = ranks({"a": 10}, {"a": 10}, {"a": 30}, {"a": 60, "b": 1}, roles="0011")
    gpu, sections = relative_scores(times, "best")
    assert gpu == {0: 1.0, 1: 1.0, 2: 1.0, 3: 0.5}
    assert sections["a"] == gpu
    assert math.isnan(sections["b"][3])


def test_scores_of_the_device_are_weighted_by_total_time() -> None:
    kernels = {"long": (20.0, 300.0), "short": (10.0, 100.0), "unknown": (5.0, 1e9)}
    assert gpu_score(kernels, {"long": 10.0, "short": 10.0, "unknown": nan}) == pytest.approx(0.625)
    assert math.isnan(gpu_score({}, {}))


def test_the_own_best_is_kept() -> None:
    best = OwnBest()
    assert best.references({"a": 3.0}) == {"a": 3.0}
    assert best.references({"a": 2.0, "b": 1.0}) == {"a": 2.0, "b": 1.0}
    assert best.references({"a": 4.0}) == {"a": 2.0}
    assert math.isnan(best.references({"c": 0.0})["c"])


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6)), min_size=1, max_size=6),
    st.sampled_from(["best", "peers"]),
)
def test_scores_are_from_0_to_1_and_the_median_of_peers_is_that_of_the_others(
    sections: list[dict[str, float]], reference: Any
) -> None:
    times = ranks(*sections)
    gpu, scores = relative_scores(times, reference)
    assert list(gpu) == list(range(len(times)))
    for by_rank in [gpu, *scores.values()]:
        assert all(math.isnan(score) or 0 <= score <= 1 for score in by_rank.values())
    for name, by_rank in scores.items():
        assert list(by_rank) == list(gpu)
        if reference == "peers":
            for rank, score in by_rank.items():
                own = times[rank].sections.get(name, 0)
                others = [
                    other
                    for one in times
                    if one.rank != rank
                    if (other := one.sections.get(name, 0)) > 0
                ]
                if own > 0 and others:
                    assert score == pytest.approx(min(1, statistics.median(others) / own))
                else:
                    assert math.isnan(score)


def report_of(
    gpu: dict[int, float], sections: dict[str, dict[int, float]], **others: Any
) -> Report:
    fields: dict[str, Any] = {
        "gpu_relative_perf_scores": gpu,
        "section_relative_perf_scores": sections,
        "gpu_individual_perf_scores": {},
        "section_individual_perf_scores": {},
        "rank_to_node": {rank: f"node{rank}" for rank in range(4)},
        "local_section_summaries": {},
        "local_kernel_summaries": {},
        "generate_report_elapsed_time": 1.0,
        "gather_on_rank0": True,
        "rank": 0,
    }
    return Report(**{**fields, **others})


def test_a_straggler_has_a_score_below_the_threshold() -> None:
    report = report_of(
        {0: 0.75, 1: 0.74, 2: nan},
        {"a": {0: 0.1, 1: 1.0}, "b": {0: 0.9, 1: 1.0}},
        gpu_individual_perf_scores={0: 0.6, 1: 0.8},
        section_individual_perf_scores={"a": {0: 1.0}},
    )
    found = report.identify_stragglers()
    assert found == {
        "straggler_gpus_relative": {StragglerId(1, "node1")},
        "straggler_gpus_individual": {StragglerId(rank=0, node="node0")},
        "straggler_sections_relative": {"a": {StragglerId(0, "node0")}},
        "straggler_sections_individual": {},
    }
    found = report.identify_stragglers(
        gpu_rel_threshold=0.8,
        section_rel_threshold=0.95,
        gpu_indiv_threshold=0.1,
        section_indiv_threshold=1.1,
    )
    assert len(found["straggler_gpus_relative"]) == 2
    assert set(found["straggler_sections_relative"]) == {"a", "b"}
    assert not found["straggler_gpus_individual"]
    assert found["straggler_sections_individual"] == {"a": {StragglerId(0, "node0")}}


@pytest.mark.parametrize("kind", ["gpu_rel", "section_rel", "gpu_indiv", "section_indiv"])
@pytest.mark.parametrize("bad", ["x", None, nan, [], True])
def test_a_threshold_that_is_no_number_is_named(kind: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{kind}_threshold is {bad!r}")):
        report_of({}, {}).identify_stragglers(**{f"{kind}_threshold": bad})


def test_a_report_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        report_of({}, {}).rank = 1  # type: ignore[misc]


def test_only_the_scores_that_are_wanted() -> None:
    times = ranks({"a": 10}, {"a": 20})
    both = gathered(times, "best", relative=True, individual=True)
    assert both["gpu_individual_perf_scores"] == {0: 1.0, 1: 1.0}
    assert both["section_individual_perf_scores"] == {"a": {0: 0.5, 1: 0.5}}
    assert both["rank_to_node"] == {0: "node0", 1: "node0"}
    alone = gathered(times, "best", relative=True, individual=False)
    assert not alone["gpu_individual_perf_scores"]
    assert not alone["section_individual_perf_scores"]
    alone = gathered(times, "best", relative=False, individual=True)
    assert not alone["gpu_relative_perf_scores"]
    assert not alone["section_relative_perf_scores"]


def test_what_is_said_of_one_rank() -> None:
    both = gathered(ranks({"a": 10}, {"a": 20}), "best", relative=True, individual=True)
    own = of_one_rank(both, 1)
    assert own["gpu_relative_perf_scores"] == {1: 0.5}
    assert own["section_relative_perf_scores"] == {"a": {1: 0.5}}
    assert own["gpu_individual_perf_scores"] == {1: 1.0}
    assert own["section_individual_perf_scores"] == {"a": {1: 0.5}}
    assert own["rank_to_node"] == {0: "node0", 1: "node0"}


def test_what_ranks_send() -> None:
    times = [*ranks({"a": 10}, {}), RankTimes(rank=2, node="n")]
    received = decode(map(encode, times))
    assert received[:2] == times[:2]
    assert math.isnan(received[2].gpu_individual)
