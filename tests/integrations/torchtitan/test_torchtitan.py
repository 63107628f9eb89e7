"""The real trainer of torchtitan, disturbed, ends with the parameters of one that was not.

Real are the trainer, FSDP, the data loader, the checkpoints and the command line; on_cpu.py says
what is replaced where there is no GPU.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher
from tests.integrations.once import made_once
from undaunted.integrations.torchtitan import UndauntedTrainerMixin

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torchtitan")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

SCRIPT = str(Path(__file__).with_name("train.py"))
LIMIT_S = 180.0  # imports take long on a busy machine
LETTERS = "abcdefghij"


def write_texts(folder: Path) -> None:
    """A tokenizer and a set of data, as torchtitan reads them from files."""
    words = {word: number for number, word in enumerate(["[unk]", "<bos>", "<eos>", *LETTERS])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[unk]"},
    }
    (folder / "assets").mkdir()
    (folder / "assets" / "tokenizer.json").write_text(json.dumps(tokenizer))
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    (folder / "assets" / "tokenizer_config.json").write_text(json.dumps(special))
    rows = [" ".join(LETTERS[(row * at * at + at) % 10] for at in range(50)) for row in range(60)]
    (folder / "data").mkdir()
    (folder / "data" / "data.json").write_text(
        "\n".join(json.dumps({"text": row}) for row in rows) + "\n"
    )


def environment(folder: Path, disturb: str) -> dict[str, str]:
    paths = [str(Path(SCRIPT).parent), os.environ["PYTHONPATH"]]  # for what is preloaded
    return {
        "DISTURB": disturb,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "JE_ARROW_MALLOC_CONF": "background_thread:false",  # a thread would forbid that
    }


@contextlib.contextmanager
def trained(folder: Path, disturb: str = "", run: str = "run") -> Iterator[Launcher]:
    if not (folder / "data").exists():
        write_texts(folder)
    options = ["--nproc-per-node", "2", "--max-restarts", "5"]
    options += ["--ft-rank-section-timeouts", "step:10s", "--preload", "on_cpu"]
    launcher = Launcher(
        ["--run-dir", run, *options, SCRIPT, "--module", "tiny", "--config", "tiny"],
        folder,
        environment(folder, disturb),
    )
    launcher.run_dir = folder / run
    try:
        yield launcher
    finally:
        launcher.close()


def results(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("result-*"))]


def starts(launcher: Launcher) -> list[int]:
    """At which step the two ranks went on, in each round."""
    found = re.findall(r"Training starts at step (\d+)", launcher.text)
    return [int(step) for step in found[::2]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    def train(folder: Path) -> None:
        with trained(folder) as launcher:
            assert launcher.finish(LIMIT_S) == 0, launcher.text

    found = results(made_once(tmp_path_factory, "undisturbed", train))
    assert len(found) == 2
    assert all(each.startswith("22 ") for each in found)
    return found


@pytest.mark.filterwarnings("ignore")  # of torchtitan, and of what it imports
def test_a_configuration_makes_the_class_that_it_is_of() -> None:
    trainer = importlib.import_module("torchtitan.trainer")

    class Mine(UndauntedTrainerMixin, trainer.Trainer):
        pass

    class Later(Mine):
        pass

    owners = [each.Config._owner for each in (trainer.Trainer, Mine, Later)]
    assert owners == [trainer.Trainer, Mine, Later]
    assert isinstance(Later.Config(dump_folder="x"), trainer.Trainer.Config)


def test_ranks_are_lost(tmp_path: Path, undisturbed: list[str]) -> None:
    disturb = "kill:1:7,kill_save:0:10,kill_save:1:15,hang:0:17"
    with trained(tmp_path, disturb) as launcher:
        assert launcher.finish(2 * LIMIT_S) == 0, launcher.text
        assert len(launcher.events("job_ended")) == 1
    assert starts(launcher) == [1, 6, 6, 11, 16], launcher.text
    assert results(tmp_path) == undisturbed


@pytest.mark.timeout(900)  # four starts
def test_stops_in_a_step_and_in_validations(tmp_path: Path, undisturbed: list[str]) -> None:
    """Three of them, in one job."""
    disturb = "signal_validation:1:7,signal:1:9,signal_validation:1:14"

    def saved(step: int) -> bool:
        return (tmp_path / "outputs" / "checkpoint" / f"step-{step}" / ".metadata").exists()

    with trained(tmp_path, disturb, run="first") as launcher:
        assert launcher.finish(LIMIT_S) == 75, launcher.text
    assert launcher.text.count("rank 0 validates 7") < 20, "it was left"
    assert saved(7)
    with trained(tmp_path, disturb, run="second") as launcher:
        assert launcher.finish(LIMIT_S) == 75, launcher.text
        (agreed,) = launcher.events("stop_agreed")
    assert starts(launcher) == [8]
    done = int(str(agreed["iteration"])) + 1
    assert saved(done)
    with trained(tmp_path, disturb, run="third") as launcher:
        assert launcher.finish(LIMIT_S) == 75, launcher.text
    assert starts(launcher) == [done + 1]
    assert launcher.text.count("rank 0 validates 14") < 20, "it was left"
    assert saved(14)
    assert not results(tmp_path)
    with trained(tmp_path, disturb, run="last") as launcher:
        assert launcher.finish(LIMIT_S) == 0, launcher.text
    assert starts(launcher) == [15]
    assert results(tmp_path) == undisturbed
