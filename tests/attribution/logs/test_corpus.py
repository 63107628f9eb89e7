"""The rules judged on both halves of the corpus that they are written with in sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.corpus import HALVES, cases
from undaunted.attribution.logs.analyse import read_logs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.attribution.corpus import Case
    from undaunted.attribution.logs.analyse import Reading

LEAST = 0.9
Readings = list[tuple["Case", "Reading"]]


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Readings:
    return [
        (case, read(case, tmp_path_factory.mktemp("case") / "log"))
        for part in HALVES
        for case in cases(part)
    ]


def read(case: Case, path: Path) -> Reading:
    path.write_bytes(case.log())
    return read_logs([path], world_size=case.ranks)


def cause_of(reading: Reading) -> str:
    cause = reading.findings[0].cause if reading.findings else "none"
    return (
        "host_out_of_memory" if cause == "shared_memory_full" else cause
    )  # labels do not tell them apart


def blames(case: Case, reading: Reading) -> bool:
    """Whether the root cause has the ranks and nodes of the label, as far as it has some."""
    root, expect = reading.findings[0], case.expect
    right_ranks = expect.ranks is None or list(root.ranks) == expect.ranks
    return right_ranks and (expect.nodes is None or list(root.nodes) == expect.nodes)


def test_precision_and_recall_of_causes(readings: Readings) -> None:
    right = [case for case, one in readings if one.findings and cause_of(one) == case.expect.cause]
    wrong = [
        f"{case.name}: {case.expect.cause} taken for {cause_of(one)}"
        for case, one in readings
        if cause_of(one) != case.expect.cause
    ]
    said = sum(bool(one.findings) for _, one in readings)
    failed = sum(case.expect.cause != "none" for case, _ in readings)
    print(f"causes: precision {len(right)}/{said}, recall {len(right)}/{failed}", *wrong, sep="\n")
    assert len(right) >= LEAST * said, wrong
    assert len(right) >= LEAST * failed, wrong


def test_ranks_and_nodes(readings: Readings) -> None:
    known = [(case, one) for case, one in readings if one.findings and case.expect.cause != "none"]
    wrong = [case.name for case, one in known if not blames(case, one)]
    print(f"ranks and nodes: {len(known) - len(wrong)}/{len(known)}", *wrong, sep="\n")
    assert len(wrong) <= (1 - LEAST) * len(known), wrong


def test_no_false_stop(readings: Readings) -> None:
    stops = [case for case, one in readings if one.action == "stop"]
    right = sum(case.expect.action == "stop" for case, _ in readings)
    print(f"stops: {len(stops)}, of {right} that could be")
    assert not [case.name for case in stops if case.expect.retryable]
    assert stops
