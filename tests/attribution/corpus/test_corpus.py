"""The corpus has enough cases of each cause, and the logs bear its labels out."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.attribution.corpus import ACTIONS, HALVES, LINES, PARTS, Case, cases

CASES = [case for part in PARTS for case in cases(part)]
CAUSES = {
    "gpu_lost",
    "gpu_memory_error",
    "gpu_row_remap",
    "nvlink_error",
    "gpu_firmware",
    "device_fault",
    "network_error",
    "network_setup",
    "collective_timeout",
    "gpu_out_of_memory",
    "host_out_of_memory",
    "storage_error",
    "disk_full",
    "quota_exceeded",
    "not_finite",
    "program_error",
    "checkpoint_mismatch",
    "data_error",
    "native_crash",
    "preempted",
    "time_limit",
    "node_failed",
    "cancelled",
    "rendezvous_failed",
    "none",
}


RANK_SHOWN = {"rank", "srun", "srun0", "default", "time", "iso", "level"}  # prefixes with a rank


def of(case: Case) -> str:
    return f"{case.part}/{case.expect.cause}/{case.name}"


def test_each_cause_has_cases_in_both_halves() -> None:
    counts = Counter((case.part, case.expect.cause) for case in CASES)
    assert {cause for _, cause in counts} == CAUSES
    for cause in CAUSES:
        both = [counts[half, cause] for half in HALVES]
        assert sum(both) >= (12 if cause == "none" else 5), cause
        assert abs(both[0] - both[1]) <= 1, cause
    assert sum(counts[half, cause] for half in HALVES for cause in CAUSES) >= 150


def test_each_cause_has_fresh_cases() -> None:
    counts = Counter(case.expect.cause for case in CASES if case.part == "fresh")
    assert set(counts) == CAUSES
    for cause in CAUSES:
        assert counts[cause] >= (8 if cause == "none" else 4), cause


def test_names_and_seeds_are_of_one_case() -> None:
    assert not [k for k, n in Counter(case.name for case in CASES).items() if n > 1]
    assert not [k for k, n in Counter(case.seed for case in CASES).items() if n > 1]


def test_root_lines_of_two_cases_differ_in_more_than_numbers() -> None:
    seen: dict[str, str] = {}
    for case in CASES:
        text = re.sub(r"\d+", "0", "\n".join(entry.text for entry in case.root))
        if case.expect.cause == "collective_timeout":
            text += re.sub(r"\d+", "0", "\n".join(entry.text for entry in case.cascade))
        assert seen.setdefault(text, of(case)) == of(case)


@pytest.mark.parametrize("case", CASES, ids=of)
def test_labels_are_valid(case: Case) -> None:
    expect = case.expect
    assert expect.action in ACTIONS
    assert (expect.action == "none") == (expect.cause == "none")
    assert expect.retryable == (expect.action != "stop")
    assert expect.action != "exclude" or expect.nodes or expect.ranks
    assert set(expect.ranks or []) <= set(range(case.ranks))
    assert set(expect.nodes or []) <= set(case.nodes)
    assert case.ranks % len(case.nodes) == 0
    assert case.prefix != "default" or len(case.nodes) == 1, "a local rank does not say which rank"


@pytest.mark.parametrize("case", CASES, ids=of)
def test_log_is_long_the_same_each_time_and_bears_the_labels_out(case: Case) -> None:
    log = case.log()
    assert log == case.log()
    text = log.decode()
    assert text.count("\n") >= LINES
    assert re.search(r"\{[rlhpstTjgkaxXo]\}|![a-z]+( |$)", text) is None
    for node in case.expect.nodes or []:
        assert node in text
    ranks = case.expect.ranks
    if ranks and case.expect.nodes is None and len(ranks) < case.ranks:
        hosts = "|".join({case.host(rank) for rank in ranks})
        assert not re.search(rf"(?<![\w/-])({hosts})(?![\w-])[: \]]", text), "a node to name"
    texts = "\n".join(entry.text for entry in case.root + case.cascade)
    for rank in set(ranks or []) - _shown(case):
        named = rf"(ranks?|tasks?|device|local_rank)\W{{1,3}}([\d, ]*\b)?{rank}\b|\[{rank}\]"
        assert re.search(named, texts, re.IGNORECASE), f"nothing says rank {rank}"


def _shown(case: Case) -> set[int]:
    """Ranks whose number stands in a line of the failure that is theirs."""
    naming = ("{r}", "!elastic", "!srun", "!mpi", "!lightning")
    if len(case.nodes) == 1:
        naming += ("!deepspeed", "{l}")
    root = [entry for entry in case.root if case.prefix in RANK_SHOWN]
    more = [e for e in case.root + case.cascade if any(word in e.text for word in naming)]
    return {rank for entry in root + more for rank in entry.ranks}
