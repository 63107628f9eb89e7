"""The harness of `make test-gpu`, with rows that pass, fail and hang; no GPU is needed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import __main__ as harness
from tests.gpu import rows
from tests.gpu.row import NotShown, Row

HERE = {"gpu": "a fake", "gpus": 1}
ROOT = Path(__file__).parents[2]

# Run as the rows' process: what each of them does, by its name.
CHILD = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "src")!r}]
from tests.gpu import __main__ as harness
from tests.gpu.test_harness import ROWS
sys.exit(harness.main(["--row", *sys.argv[1:]], ROWS))
"""


def passes(folder: Path) -> str:
    (folder / "file").write_text("x")
    return "as it should be"


def fails(_folder: Path) -> str:
    raise ValueError("seven is not eight")


def hangs(_folder: Path) -> str:
    print("before the hang", flush=True)
    time.sleep(600)
    return "never"


def dies(_folder: Path) -> str:
    import os

    os._exit(9)


def cannot(_folder: Path) -> str:
    raise NotShown("there is one node")


ROWS = (
    Row("hangs", "h", hangs, limit_s=3.0),
    Row("passes", "p", passes),
    Row("fails", "f", fails),
    Row("dies", "d", dies),
    Row("cannot", "c", cannot),
    Row("several", "s", cannot, needs_several=True),
)


def test_no_row_stops_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results = harness.run_all(ROWS, HERE, [sys.executable, "-c", CHILD])
    seen = {one.row: (one.status, one.detail) for one in results}
    assert seen["hangs"] == ("no end", "ended after 3 s; before the hang")
    assert seen["passes"] == ("ok", "as it should be")
    assert seen["fails"] == ("failed", "ValueError: seven is not eight")
    assert seen["dies"] == ("failed", "exit 9; it said nothing")
    assert seen["cannot"] == ("not shown", "there is one node")
    assert seen["several"] == ("not shown", "not shown on one GPU")
    file = tmp_path / "out.json"
    assert harness.report(HERE, results, ROWS, str(file)) == 1
    printed = capsys.readouterr().out
    assert all(row.name in printed for row in ROWS)
    told = json.loads(file.read_text())
    assert told["machine"] == HERE
    assert [row["status"] for row in told["rows"]] == [one.status for one in results]
    assert json.loads(printed.splitlines()[-1]) == told


def test_all_well() -> None:
    good = [harness.Result("passes", "ok"), harness.Result("cannot", "not shown")]
    assert harness.report(HERE, good, ROWS, None) == 0


def test_without_a_gpu_nothing_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    results = harness.run_all(ROWS, {"torch": "x"}, ["/no/such/program"])
    assert [one.status for one in results] == ["no device"] * 5 + ["not shown"]
    assert harness.report({"torch": "x"}, results, ROWS, None) == harness.NO_GPU
    assert "no GPU" in capsys.readouterr().out


def test_the_time_for_all_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(harness, "ALL_S", 100.0)
    monkeypatch.setattr(
        harness, "run_row", lambda row, _command, s: limits.append(s) or harness.Result("x", "ok")
    )
    monkeypatch.setattr(harness.time, "monotonic", iter([0.0, 10.0, 80.0, 200.0]).__next__)
    harness.run_all([Row(name, "w", passes, 60.0) for name in "abc"], HERE, [])
    assert limits == [60.0, 20.0, 1.0]


def test_names_are_unique_and_the_deadlines_fit() -> None:
    names = [row.name for row in rows.ROWS]
    assert len(set(names)) == len(names)
    assert harness.ALL_S < 480
    assert all(row.limit_s <= 170 for row in rows.ROWS)


def test_the_page_has_every_row() -> None:
    page = (ROOT / "docs" / "health.md").read_text()
    assert all(f"| `{row.name}` | {row.what} |" in page for row in rows.ROWS)


def test_a_row_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        harness.main(["--only", "nvml,nothing"])
    assert "no such row: nothing" in capsys.readouterr().err
