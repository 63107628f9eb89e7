"""The table of real jobs and what is made of its results; the cells themselves: make test-jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs import __main__ as front
from tests.jobs import page, runner
from tests.jobs.table import FAULTS, JOBS, SAMPLE, Must

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("name", JOBS)
def test_a_row_can_be_run(name: str) -> None:
    job = JOBS[name]
    assert (PROGRAMS / f"{job.program}.py").exists()
    assert job.faults[0] == "none"
    assert {*job.faults, *job.must} <= {*FAULTS}
    for fault in job.faults[1:]:
        assert job.save_every < job.iteration_of(fault) < job.steps
    assert job.why or set(job.faults) == set(FAULTS)


def test_every_program_has_a_row_and_every_fault_a_cell() -> None:
    programs = {path.stem for path in PROGRAMS.glob("*.py")} - {"result", "disturbed"}
    assert programs == {job.program for job in JOBS.values()}
    assert {fault for job in JOBS.values() for fault in job.faults} == {*FAULTS}
    assert all(fault in JOBS[job].faults for job, fault in SAMPLE)


def test_chosen_cells_are_those_of_the_table() -> None:
    assert front.cells_of(["trl"], ["kill", "node-lost"]) == [("trl", "kill")]
    assert len(front.cells_of(list(JOBS), ["none"])) == len(JOBS)


@pytest.mark.parametrize("option", ["--jobs", "--faults"])
def test_a_name_that_is_not_in_the_table_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        front.main([option, "nothing"])
    assert ended.value.code == 2
    assert "nothing" in capsys.readouterr().err


# --- what is judged -------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> runner.Run:
    made = runner.Run("ddp", "kill", tmp_path)
    made._socket.close()
    made.exits, made.fault_ns = [0], 1
    write(tmp_path / "output-1", "RESULT steps=24 numbers=7 hash=abc\n")
    write_journal(made)
    return made


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_journal(run: runner.Run, blamed: int = 1, again: int = 12) -> None:
    events = [
        {"event": "journal_opened", "t": 0},
        {"event": "round_started", "t": 1, "round": 0},
        milestone(2, 0, 0),
        {"event": "rank_event", "t": 3, "round": 0, "name": "fault", "at_ns": 3 * 10**9},
        {"event": "verdict", "t": 4, "round": 0, "rank": blamed},
        {"event": "round_progress", "t": 5, "round": 0, "last_iteration": 14},
        {"event": "round_started", "t": 6, "round": 1},
        milestone(7, 1, again),
        milestone(8, 1, again),
    ]
    lines = [json.dumps(event) for event in events]
    write(run.work / "run/journal-one.jsonl", "\n".join([*lines, '{"event": "torn']))


def milestone(at: int, number: int, iteration: int) -> dict[str, object]:
    times = {"t": at, "at_ns": at * 10**9}
    named = {"event": "rank_milestone", "name": "first_step"}
    return {**named, **times, "round": number, "iteration": iteration}


def judged(run: runner.Run, reference: str = "abc") -> runner.Cell:
    cell = runner.Cell("ddp", run.fault)
    run.fault_ns = 0
    runner._measure(run, cell)
    runner._judge(run, cell, reference)
    return cell


def test_a_cell_is_right(run: runner.Run) -> None:
    cell = judged(run)
    assert cell.wrong == []
    assert (cell.restarts, cell.blamed, cell.lost, cell.recovery_s) == (1, 1, 2, 4.0)
    assert cell.same


def test_another_result_is_wrong(run: runner.Run) -> None:
    (wrong,) = judged(run, reference="abd").wrong
    assert "abc" in wrong
    assert "abd" in wrong


def test_another_exit_code_is_wrong(run: runner.Run) -> None:
    run.exits = [1]
    (wrong,) = judged(run).wrong
    assert "exit codes [1]" in wrong


def test_another_rank_is_wrong(run: runner.Run) -> None:
    write_journal(run, blamed=0)
    (wrong,) = judged(run).wrong
    assert "rank 0" in wrong


def test_too_many_steps_again_are_wrong(run: runner.Run) -> None:
    write_journal(run, again=6)
    (wrong,) = judged(run).wrong
    assert "8 steps" in wrong


def test_an_early_end_is_wrong(run: runner.Run, tmp_path: Path) -> None:
    write(tmp_path / "output-1", "RESULT steps=12 numbers=7 hash=abc\n")
    (wrong,) = judged(run).wrong
    assert "[12]" in wrong


def test_a_fault_that_did_not_happen_is_wrong(run: runner.Run) -> None:
    lines = (run.work / "run/journal-one.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"fault"' not in line]
    write(run.work / "run/journal-one.jsonl", "\n".join(kept))
    (wrong,) = judged(run).wrong
    assert "did not happen" in wrong


def test_what_is_left_behind_is_wrong(run: runner.Run, tmp_path: Path) -> None:
    write(run.work / "checkpoints/step", "its own")
    write(run.work / "core.7", "")
    write(tmp_path / "tmp/torchinductor_root/x", "a cache")
    write(tmp_path / "tmp/socket", "")
    wrong = runner._left_behind(run, private=False)
    assert sorted(line.split()[-1] for line in wrong) == ["core.7", "tmp/socket"]


# --- the page -------------------------------------------------------------------------------------


def test_results_are_kept_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.json"
    for module in (front, page):
        monkeypatch.setattr(module, "RESULTS", results)
    monkeypatch.setattr(front.metadata, "version", lambda name: "1.0")
    front.record(runner.Cell("ddp", "kill", ["rank 0 is blamed"], date="2026-11-28"))
    front.record(runner.Cell("ddp", "none", date="2026-11-28"))
    text = page.page()
    assert "1 right, 1 wrong" in text
    assert "* ddp, kill: rank 0 is blamed" in text
    front.record(runner.Cell("ddp", "kill", date="2026-11-28", recovery_s=2.4, same=True))
    text = page.page()
    assert "2 right, 0 wrong" in text
    assert "| ddp | right | right 2 |" in text


def test_a_page_without_results_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path / "none.json")
    assert "Nothing has been recorded" in page.page()


def test_the_expected_end_is_a_finished_job() -> None:
    for fault in FAULTS.values():
        assert fault.must.exits[-1] == 0
    assert Must().exits == (0,)
