"""What is written down once, and what is counted."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from tests.fault_tolerance.agent.test_environment import CONFIG, START
from undaunted.coordinator.core import messages as job
from undaunted.coordinator.core.progress import NO_ITERATIONS, Iterations
from undaunted.fault_tolerance.agent.scribe import Scribe

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def scribe(tmp_path: Path) -> Scribe:
    return Scribe(msgspec.structs.replace(CONFIG, run_dir=str(tmp_path)), "test")


def events(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    (path,) = tmp_path.glob("journal-*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


def a_round(number: int) -> Any:
    start = dataclasses.replace(START, round=number)
    return SimpleNamespace(start=start, port=SimpleNamespace(number=1), rank=lambda local: local)


def test_progress_is_written_when_there_is_some(tmp_path: Path) -> None:
    it = scribe(tmp_path)
    for seen, at_ns in (
        (NO_ITERATIONS, 0),
        (Iterations(4, 7), 100),
        (Iterations(4, 7), 100),
        (Iterations(problem="unreadable"), 0),
        (Iterations(4, 9), 200),
    ):
        it.round_progress(seen, at_ns)
    it.close()
    found = [
        (event["first_iteration"], event["last_iteration"], event["last_ns"])
        for event in events(tmp_path, "round_progress")
    ]
    assert found == [(4, 7, 100), (4, 9, 200)]


def test_a_restart_that_is_taken_back_is_not_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scribe(tmp_path)
    for number in (0, 1):
        it.round_started(a_round(number))
        it.decided(job.Decided(number, "restart", "rank 0 crashed", 1))
    it.decided(job.Decided(1, "end", "no progress", 1))
    it.job_ended(job.End("a", job.Outcome.NO_RESTART, "no progress"))
    it.close()
    assert "no restart, 1 restart: no progress" in capfd.readouterr().err
