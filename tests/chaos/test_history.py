"""What runs leave behind, read as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tests.chaos.histories import Run, fault
from undaunted.chaos.history import DIGESTS_DIR, RUN_DIR, History, read_history
from undaunted.chaos.outcome import Outcome, write_outcome
from undaunted.chaos.result import run_of
from undaunted.digests.record import encode, file_of

if TYPE_CHECKING:
    from pathlib import Path


def written(history: History, directory: Path) -> None:
    """Write a history as a run would have left it."""
    (directory / RUN_DIR).mkdir(parents=True)
    (directory / DIGESTS_DIR).mkdir()
    write_outcome(directory, history.outcome)
    lines = [msgspec.json.encode(event) for one in history.launches for event in one.events]
    (directory / RUN_DIR / "journal-n0.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for rank, records in history.records.items():
        file_of(directory / DIGESTS_DIR, rank).write_bytes(b"".join(map(encode, records)))


def test_a_run_is_read_as_it_was(tmp_path: Path) -> None:
    history = Run(name="7").history(fault("sigterm"))
    written(history, tmp_path / "run-7")

    read = read_history(tmp_path / "run-7")

    assert read.name == "7"
    assert read.outcome == history.outcome
    assert [one.events for one in read.launches] == [one.events for one in history.launches]
    assert read.records == history.records
    assert read.problems == []
    assert [event.text for event in read.launches[0].faults()] == ["sigterm-1"]


def test_what_is_missing_or_damaged_is_said(tmp_path: Path) -> None:
    nothing = read_history(tmp_path / "run-1")

    assert nothing.launches == []
    assert len(nothing.problems) == 2

    written(Run().history(), tmp_path / "run-2")
    (tmp_path / "run-2" / "outcome.json").write_text("{")
    with (tmp_path / "run-2" / RUN_DIR / "journal-n0.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    with file_of(tmp_path / "run-2" / DIGESTS_DIR, 0).open("ab") as file:
        file.write(b'{"round":')

    damaged = read_history(tmp_path / "run-2")

    assert damaged.outcome == Outcome()
    assert damaged.unreadable == 1
    assert any("1 lines of journal-n0.jsonl" in problem for problem in damaged.problems)
    assert any("how the run ended is not known" in problem for problem in damaged.problems)
    assert len(damaged.launches) == 1


def test_timeline_of_a_run() -> None:
    run = run_of(Run(name="3").history(fault("kill", iteration=12), fault("sigterm", iteration=15)))

    assert run.name == "3"
    assert [(one.launch, one.round, one.outcome) for one in run.rounds] == [
        (0, 0, "crash"),
        (0, 1, "stopped"),
        (1, 0, "finished"),
    ]
    assert [moment.what for moment in run.moments] == ["fault", "fault", "restarted"]
    moments = [one.seconds for one in run.moments]
    assert moments == sorted(moments)
    for one in run.rounds:
        assert one.stepping is not None
        assert one.ended is not None
        assert one.started < one.stepping < one.ended


def test_timeline_of_nothing() -> None:
    assert run_of(History("1")).rounds == []
