"""A loop with the real Accelerate, disturbed, ends with the parameters of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.launcher import Launcher

pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

SCRIPT = str(Path(__file__).with_name("loop.py"))
LIMIT_S = 180.0  # imports take long on a busy machine


def trained(folder: Path, *given: str) -> tuple[int, str]:
    """Run the loop; return the exit code, and what was printed."""
    (folder / "job").mkdir(exist_ok=True)
    options = ["--nproc-per-node", "2", "--max-restarts", "3", "--preload", "accelerate"]
    launcher = Launcher([*options, SCRIPT, "job", *given], folder)
    try:
        return launcher.finish(LIMIT_S), launcher.text
    finally:
        launcher.close()


def results(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / "job").glob("result-*"))]


def test_a_kill_in_a_save_and_a_stop(tmp_path: Path) -> None:
    for name in ("undisturbed", "killed", "stopped"):
        (tmp_path / name).mkdir()
    code, text = trained(tmp_path / "undisturbed")
    assert code == 0, text
    expected = results(tmp_path / "undisturbed")
    assert len(expected) == 2
    assert len(set(expected)) == 1

    code, text = trained(tmp_path / "killed", "disturb=kill_save:1:15")
    assert code == 0, text
    assert text.count("goes on from 10") == 2
    assert results(tmp_path / "killed") == expected

    code, text = trained(tmp_path / "stopped", "disturb=signal:0:8")
    assert code == 75, text
    code, text = trained(tmp_path / "stopped")
    assert code == 0, text
    assert results(tmp_path / "stopped") == expected

    (tmp_path / "evaluating").mkdir()
    code, text = trained(tmp_path / "evaluating", "disturb=signal_evaluation:1:15")
    assert code == 75, text
    assert text.count("has evaluated 96 after 7") == 2
    assert text.count("has evaluated 96 after 15") == 0, "it was left"
    code, text = trained(tmp_path / "evaluating")
    assert code == 0, text
    assert text.count("goes on from 16") == 2
    assert results(tmp_path / "evaluating") == expected
