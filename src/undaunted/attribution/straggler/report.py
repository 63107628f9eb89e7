"""Scores of ranks, out of the times of their sections. Pure.

A score is a reference time divided by the rank's own median, from 0 to 1; 1 is best, NaN is "not
compared". A relative score compares a rank with its peers, an individual one with its own best.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Reference = Literal["best", "peers"]
"""The reference of a rank's median: the best of all ranks, or the median of the others."""


def is_number(value: object) -> bool:
    """Return whether it is a number, not NaN."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value  # noqa: PLR0124


def is_whole(value: object) -> bool:
    """Return whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def check(name: str, value: object, fits: bool, give: str) -> None:
    """Refuse an argument that does not fit, and say what to give instead.

    Raises:
        ValueError: it does not fit.
    """
    if not fits:
        raise ValueError(f"{name} is {value!r}: give {give}")


class Statistic(Enum):
    """The figures of a summary of times. Times of sections are in ms, of the device in µs."""

    MIN = "MIN"
    MAX = "MAX"
    MED = "MED"
    AVG = "AVG"
    STD = "STD"
    NUM = "NUM"


Summary = dict[Statistic, float]


def section_summary(times: Sequence[float]) -> Summary:
    """Summarize at least one time: the lower median; STD is that of a sample, NaN for one time."""
    return _summary(times, statistics.median_low(times), len(times) - 1)


def kernel_summary(times: Sequence[float]) -> Summary:
    """Summarize at least one time: the mean of the two middle ones is MED; STD is that of all."""
    return _summary(times, statistics.median(times), len(times))


def _summary(times: Sequence[float], median: float, degrees: int) -> Summary:
    average = math.fsum(times) / len(times)
    squares = math.fsum((time - average) ** 2 for time in times)
    return {
        Statistic.MIN: min(times),
        Statistic.MAX: max(times),
        Statistic.MED: median,
        Statistic.AVG: average,
        Statistic.STD: math.sqrt(squares / degrees) if degrees else math.nan,
        Statistic.NUM: len(times),
    }


class RankTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times that a rank tells the others for a report.

    Attributes:
        node: its name.
        role: ranks are compared with ranks of the same role only; "" where all do the same.
        sections: median of each section, ms.
        kernels: median and total of each section's time on the device, µs.
        gpu_individual, sections_individual: its scores against its own best.
    """

    rank: int
    node: str
    role: str = ""
    sections: dict[str, float] = {}
    kernels: dict[str, tuple[float, float]] = {}
    gpu_individual: float = math.nan
    sections_individual: dict[str, float] = {}


class OwnBest:
    """The least median ever seen of each name, on this rank."""

    def __init__(self) -> None:
        self._least: dict[str, float] = {}

    def references(self, medians: Mapping[str, float]) -> dict[str, float]:
        """Take medians in; return the least of each, of which they are part."""
        for name, median in medians.items():
            if median > 0:
                self._least[name] = min(median, self._least.get(name, median))
        return {name: self._least.get(name, math.nan) for name in medians}


def section_scores(
    medians: Mapping[str, float], references: Mapping[str, float]
) -> dict[str, float]:
    """Return the score of each section."""
    return {name: _score(references[name], median) for name, median in medians.items()}


def gpu_score(kernels: Mapping[str, tuple[float, float]], references: Mapping[str, float]) -> float:
    """Return the mean of the scores, each weighted by the total time; NaN when none is known."""
    scored = [
        (total, score)
        for name, (median, total) in kernels.items()
        if not math.isnan(score := _score(references[name], median))
    ]
    weight = math.fsum(total for total, _ in scored)
    return math.fsum(total * score for total, score in scored) / weight if weight else math.nan


def _score(reference: float, median: float) -> float:
    # In this order: the lesser of NaN and 1 is NaN.
    return min(reference / median, 1.0) if median > 0 else math.nan


@dataclass(frozen=True)
class StragglerId:
    """A rank that is slow, and the name of its node."""

    rank: int
    node: str


@dataclass(frozen=True)
class Report:
    """Scores from 0 to 1 of all ranks, on rank 0, or of one, where nothing is gathered.

    Attributes:
        gpu_relative_perf_scores: by rank: time on the device, compared with the peers.
        section_relative_perf_scores: by section and rank.
        gpu_individual_perf_scores: by rank: compared with the rank's own best so far.
        section_individual_perf_scores: by section and rank.
        rank_to_node: names of nodes.
        local_section_summaries: of this rank, ms.
        local_kernel_summaries: of this rank, time of sections on the device, µs. Where there is no
            device, the time of the sections.
        generate_report_elapsed_time: how long the report took, ms.
        gather_on_rank0: whether one rank has the scores of all.
        rank: of this process.
    """

    gpu_relative_perf_scores: Mapping[int, float]
    section_relative_perf_scores: Mapping[str, Mapping[int, float]]
    gpu_individual_perf_scores: Mapping[int, float]
    section_individual_perf_scores: Mapping[str, Mapping[int, float]]
    rank_to_node: Mapping[int, str]
    local_section_summaries: Mapping[str, Mapping[Statistic, float]]
    local_kernel_summaries: Mapping[str, Mapping[Statistic, float]]
    generate_report_elapsed_time: float
    gather_on_rank0: bool
    rank: int

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """Return the ranks with a score below a threshold.

        Returns:
            Sets of `StragglerId` under "straggler_gpus_relative" and "straggler_gpus_individual";
            section -> set, for sections with a slow rank, under "straggler_sections_relative" and
            "straggler_sections_individual".

        Raises:
            ValueError: a threshold is no number.
        """
        for name, threshold in (
            ("gpu_rel_threshold", gpu_rel_threshold),
            ("section_rel_threshold", section_rel_threshold),
            ("gpu_indiv_threshold", gpu_indiv_threshold),
            ("section_indiv_threshold", section_indiv_threshold),
        ):
            check(name, threshold, is_number(threshold), "a number, such as 0.75")
        return {
            "straggler_gpus_relative": self._below(
                self.gpu_relative_perf_scores, gpu_rel_threshold
            ),
            "straggler_gpus_individual": self._below(
                self.gpu_individual_perf_scores, gpu_indiv_threshold
            ),
            "straggler_sections_relative": self._sections_below(
                self.section_relative_perf_scores, section_rel_threshold
            ),
            "straggler_sections_individual": self._sections_below(
                self.section_individual_perf_scores, section_indiv_threshold
            ),
        }

    def _below(self, scores: Mapping[int, float], threshold: float) -> set[StragglerId]:
        return {
            StragglerId(rank, self.rank_to_node[rank])
            for rank, score in scores.items()
            if score < threshold
        }

    def _sections_below(
        self, scores: Mapping[str, Mapping[int, float]], threshold: float
    ) -> dict[str, set[StragglerId]]:
        below = {name: self._below(by_rank, threshold) for name, by_rank in scores.items()}
        return {name: slow for name, slow in below.items() if slow}


def relative_scores(
    ranks: Sequence[RankTimes], reference: Reference
) -> tuple[dict[int, float], dict[str, dict[int, float]]]:
    """Return the scores of the device by rank, and of sections by name and rank."""
    roles = defaultdict(list)
    for one in ranks:
        roles[one.role].append(one)
    gpu = dict.fromkeys((one.rank for one in ranks), math.nan)
    names = dict.fromkeys(chain.from_iterable(one.sections for one in ranks))
    sections = {name: gpu.copy() for name in names}
    for peers in roles.values():
        numbers = [one.rank for one in peers]
        medians = [one.sections for one in peers]
        for name, of_section in sections.items():
            times = [one.get(name, 0.0) for one in medians]
            of_section.update(zip(numbers, _compared(times, reference), strict=True))
        gpu.update(zip(numbers, _gpu_scores(peers, reference), strict=True))
    return gpu, sections


def _gpu_scores(peers: Sequence[RankTimes], reference: Reference) -> list[float]:
    """Return the score of each of the peers; see `gpu_score`."""
    weights = [0.0] * len(peers)
    weighted = [0.0] * len(peers)
    for name in dict.fromkeys(chain.from_iterable(one.kernels for one in peers)):
        kernels = [one.kernels.get(name, (0.0, 0.0)) for one in peers]
        scores = _compared([median for median, _ in kernels], reference)
        for place, score in enumerate(scores):
            if score >= 0:  # it is not NaN
                total = kernels[place][1]
                weights[place] += total
                weighted[place] += total * score
    return [
        score / weight if weight else math.nan
        for score, weight in zip(weighted, weights, strict=True)
    ]


def _compared(times: Sequence[float], reference: Reference) -> list[float]:
    """Return the score of each peer in one section; a time of 0 = the peer does not have it."""
    ordered = sorted(time for time in times if time > 0)
    if len(ordered) < (len(times) if reference == "best" else 2):
        return [math.nan] * len(times)
    if reference == "best":
        best = ordered[0]
        return [best / time for time in times]
    # The median of the others: it depends only on which side of the middle the own time is.
    middle = (len(ordered) - 1) // 2
    pivot, above = ordered[middle], ordered[middle + 1]
    if_less, if_equal, if_more = above, above, pivot
    if len(ordered) % 2:
        below = ordered[middle - 1]
        if_less, if_equal, if_more = (pivot + above) / 2, (below + above) / 2, (below + pivot) / 2
    wanted = [if_less if time < pivot else if_more if time > pivot else if_equal for time in times]
    return [
        (other / time if time > other else 1.0) if time > 0 else math.nan
        for time, other in zip(times, wanted, strict=True)
    ]


def gathered(
    ranks: Sequence[RankTimes], reference: Reference, relative: bool, individual: bool
) -> dict[str, Any]:
    """Return the fields of a report that have scores, and the nodes, of the given ranks."""
    gpu, sections = relative_scores(ranks, reference) if relative else ({}, {})
    names = dict.fromkeys(chain.from_iterable(one.sections_individual for one in ranks))
    return {
        "gpu_relative_perf_scores": gpu,
        "section_relative_perf_scores": sections,
        "gpu_individual_perf_scores": {one.rank: one.gpu_individual for one in ranks}
        if individual
        else {},
        "section_individual_perf_scores": {
            name: {one.rank: one.sections_individual.get(name, math.nan) for one in ranks}
            for name in names
        }
        if individual
        else {},
        "rank_to_node": {one.rank: one.node for one in ranks},
    }


def of_one_rank(scores: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return the same fields with the part of one rank only; all nodes stay."""

    def alone(values: Mapping[int, float]) -> dict[int, float]:
        return {rank: values[rank]} if rank in values else {}

    def sections(values: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        return {name: alone(by_rank) for name, by_rank in values.items()}

    return {
        "gpu_relative_perf_scores": alone(scores["gpu_relative_perf_scores"]),
        "section_relative_perf_scores": sections(scores["section_relative_perf_scores"]),
        "gpu_individual_perf_scores": alone(scores["gpu_individual_perf_scores"]),
        "section_individual_perf_scores": sections(scores["section_individual_perf_scores"]),
        "rank_to_node": scores["rank_to_node"],
    }


def encode(times: RankTimes) -> bytes:
    """Return the bytes that a rank sends."""
    return msgspec.msgpack.encode(times)


def decode(contents: Iterable[bytes]) -> list[RankTimes]:
    """Return what ranks have sent, in their order."""
    decoder = msgspec.msgpack.Decoder(RankTimes)
    return [decoder.decode(content) for content in contents]
