"""`python -m simulator --check` over real directories."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from benchmarks.simulated_job import simulate, write
from simulator.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_in_order_passes_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(simulate(nodes=2, slots=2, restarts=2, seed=3), tmp_path / "r")
    assert main(["--check", str(tmp_path / "r")]) == 0
    assert re.fullmatch(
        r"checked:  3 rounds, \d launches: no violations\n", capsys.readouterr().out
    )


def test_a_violation_names_file_line_and_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(simulate(nodes=2, slots=2, restarts=1, seed=3), tmp_path / "r")
    journal = tmp_path / "r" / "journal-node001.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    started = next(n for n, line in enumerate(lines) if b'"round_started"' in line)
    lines[started] = lines[started].replace(b'"ranks":[2,3]', b'"ranks":[0,1]')
    journal.write_bytes(b"junk\n" + b"".join(lines))
    assert main(["--check", str(tmp_path / "r")]) == 1
    out = capsys.readouterr().out
    assert "2 rounds, 2 launches: 1 violation\n" in out
    assert "each rank in one place: round 0 has gaps or overlaps: " in out
    where = re.search(r"journal-node00(\d).jsonl:(\d+): round_started, round 0", out)
    assert where is not None
    assert where[2] == {"0": f"{started + 1}", "1": f"{started + 2}"}[where[1]]
    assert "expected: a round has every rank exactly once" in out
    assert "not checked: what " in out


def test_without_a_journal_there_is_nothing_to_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--check", str(tmp_path)]) == 2
    assert "holds no journal" in capsys.readouterr().err


def test_options_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--step"], ["--inprocess", "--step"], ["--check", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
        assert "unrecognized" in capsys.readouterr().err
