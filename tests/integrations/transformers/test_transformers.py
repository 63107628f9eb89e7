"""Scripts of the real `Trainer`, disturbed, end with the parameters of one that was not."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher
from tests.integrations.once import made_once

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

SCRIPT = str(Path(__file__).with_name("train.py"))
LIMIT_S = 180.0  # imports take long on a busy machine
PRELOAD = ("--preload", "transformers.trainer")


@contextlib.contextmanager
def trained(
    folder: Path,
    *given: str,
    run: str = "run",
    options: Sequence[str] = ("--ft-rank-section-timeouts", "step:6s"),
    preload: Sequence[str] = PRELOAD,
) -> Iterator[Launcher]:
    (folder / "job").mkdir(exist_ok=True)
    words = ["--run-dir", run, "--nproc-per-node", "2", "--max-restarts", "5", *preload, *options]
    launcher = Launcher([*words, SCRIPT, "job", *given], folder, {"HF_HUB_OFFLINE": "1"})
    launcher.run_dir = folder / run
    try:
        yield launcher
    finally:
        launcher.close()


def results(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / "job").glob("result-*"))]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    def train(folder: Path) -> None:
        with trained(folder) as launcher:
            assert launcher.finish(LIMIT_S) == 0, launcher.text

    found = results(made_once(tmp_path_factory, "undisturbed", train))
    assert len(found) == 2
    assert len(set(found)) == 1
    return found


def test_ranks_are_lost(tmp_path: Path, undisturbed: list[str]) -> None:
    disturb = "kill:1:7,kill_save:0:10,kill_save:1:15,hang:0:17"
    with trained(tmp_path, f"disturb={disturb}") as launcher:
        assert launcher.finish(2 * LIMIT_S) == 0, launcher.text
        assert len(launcher.events("job_ended")) == 1
    starts = [line.rpartition("goes on from ")[2] for line in launcher.seen if "goes on" in line]
    names = [Path(start).name.removeprefix("checkpoint-") for start in starts]
    assert names[::2] == names[1::2] == ["None", "5", "5", "10", "15"]
    assert results(tmp_path) == undisturbed


@pytest.mark.timeout(900)  # the import has the lowest priority
def test_a_kill_when_another_template_has_imported_transformers(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    options = ("--ft-rank-section-timeouts", "step:840s")
    given = ("disturb=kill:1:13", "after=learned")
    with trained(tmp_path, *given, options=options, preload=()) as launcher:
        launcher.wait_for("goes on", LIMIT_S)
        while not launcher.events("imports_learned"):
            assert launcher.process.poll() is None, launcher.text
            time.sleep(0.1)
        (tmp_path / "learned").touch()
        assert launcher.finish(LIMIT_S) == 0, launcher.text
        (event,) = launcher.events("imports_learned")
    assert {"transformers", "accelerate"} <= set(event["packages"]), event
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize("signalled", ["1:8", "0:6", "launcher"])  # an evaluation is due after 6
def test_a_stop(tmp_path: Path, undisturbed: list[str], signalled: str) -> None:
    to_launcher = signalled == "launcher"
    given = [] if to_launcher else [f"disturb=signal:{signalled}"]
    with trained(tmp_path, *given) as launcher:
        if to_launcher:
            launcher.wait_for("rank 1 step 8", LIMIT_S)
            launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish(LIMIT_S) == 75, launcher.text
        (agreed,) = launcher.events("stop_agreed")
    assert "is done" not in launcher.text  # nothing after trainer.train() has run
    states = (tmp_path / "job" / "out").glob("checkpoint-*/trainer_state.json")
    done = max(json.loads(state.read_text())["global_step"] for state in states)
    # In the evaluation after step 6 its batches count as well.
    assert done == int(str(agreed["iteration"])) + 1 or (signalled, done) == ("0:6", 7)
    with trained(tmp_path, run="again") as launcher:
        assert launcher.finish(LIMIT_S) == 0, launcher.text
    assert f"checkpoint-{done}" in launcher.text
    assert results(tmp_path) == undisturbed


def test_a_stop_in_an_evaluation(tmp_path: Path, undisturbed: list[str]) -> None:
    with trained(tmp_path, "disturb=signal_evaluation:1:7") as launcher:
        assert launcher.finish(LIMIT_S) == 75, launcher.text
    assert launcher.text.count("rank 0 evaluates 7") < 40, "it was left"
    assert "is done" not in launcher.text
    with trained(tmp_path, run="again") as launcher:
        assert launcher.finish(LIMIT_S) == 0, launcher.text
    assert "checkpoint-7" in launcher.text
    assert launcher.text.count("rank 0 evaluates 7") == 40, "it is made up"
    assert results(tmp_path) == undisturbed


def test_ranks_that_see_other_checkpoints_end_at_once_and_say_so(tmp_path: Path) -> None:
    with trained(tmp_path, "steps=6") as launcher:
        assert launcher.finish(LIMIT_S) == 0, launcher.text
    with trained(tmp_path, "seen=own", run="again") as launcher:
        assert launcher.finish(LIMIT_S) != 0
    assert "different places: rank 0 at step 6 of job/out" in launcher.text
    assert "rank 1 at step 0 of job/out" in launcher.text
    assert "one folder that all nodes share" in launcher.text
    again = launcher.text.partition("goes on from")[2]
    assert "rank 0 step" not in again
