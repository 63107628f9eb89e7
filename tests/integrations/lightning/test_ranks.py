"""Two ranks under a launcher: whatever happens to them, the end is that of an undisturbed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.launcher import launched

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

ROOT = Path(__file__).parents[3]
SCRIPT = """
    import hashlib, logging, os, sys, warnings
    warnings.filterwarnings("ignore")
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from tests.integrations.lightning.training import Model, parameters_of, trainer_of
    from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint
    logging.getLogger("lightning.pytorch").setLevel("ERROR")

    class Says(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 3:
                os.write(1, b"steps\\n")

    model = Model()
    trainer = trainer_of(
        [UndauntedCallback(), Says(), ModelCheckpoint(dirpath="checkpoints")],
        devices=2, strategy="ddp", max_epochs=4,
    )
    trainer.fit(model, ckpt_path=last_checkpoint("checkpoints"))
    if trainer.global_rank == 0:
        print("end", hashlib.sha256(str(parameters_of(model)).encode()).hexdigest(), flush=True)
"""
OPTIONS = ("--nproc-per-node", "2", "--max-restarts", "5", "--preload", "lightning")


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Return how the launcher ended, and what parameters came out."""
    folder.mkdir(exist_ok=True)
    with launched(folder, SCRIPT, *OPTIONS, *options, PYTHONPATH=str(ROOT)) as launcher:
        code = launcher.finish(300)
        found = re.search(r"end (\w+)", launcher.text)
        return code, found.group(1) if found else launcher.text


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    code, digest = run(tmp_path_factory.mktemp("undisturbed"))
    assert code == 0, digest
    return digest


def test_ranks_that_are_killed_that_hang_and_that_save(tmp_path: Path, undisturbed: str) -> None:
    plan = [
        "sigkill:rank=1,iteration=5",
        "sleep:rank=0,iteration=11",
        "torn-write:rank=0,iteration=14,bytes=4096",
        "sigstop:rank=1,iteration=21",
        "sigkill:rank=0,iteration=30",
    ]
    limit = ("--ft-rank-section-timeouts", "step:5", "--inject-fault", ";".join(plan))
    code, digest = run(tmp_path, *limit)
    assert (code, digest) == (0, undisturbed)
    assert not list(tmp_path.glob("checkpoints/stopped*"))


@pytest.mark.parametrize("who", ["launcher", "rank"])
def test_preemption(tmp_path: Path, undisturbed: str, who: str) -> None:
    fault = () if who == "launcher" else ("--inject-fault", "sigterm:rank=1,iteration=13")
    with launched(tmp_path, SCRIPT, *OPTIONS, *fault, PYTHONPATH=str(ROOT)) as launcher:
        if who == "launcher":
            launcher.wait_for("steps")
            launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish(120) == 75, launcher.text
    assert len(list(tmp_path.glob("checkpoints/stopped-step=*.ckpt"))) == 1
    assert run(tmp_path) == (0, undisturbed)


def test_without_the_launcher_ranks_stop_together(tmp_path: Path) -> None:
    preempted = SCRIPT.replace('os.write(1, b"steps\\n")', "os.kill(os.getpid(), 15)")
    preempted = preempted.replace("== 3:", "== 3 and trainer.global_rank == 1:")
    # Ranks look at the store twice a second: there has to be something left to do then.
    (tmp_path / "train.py").write_text(
        textwrap.dedent(preempted).replace("epochs=4", "epochs=4000")
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    first = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=env, timeout=180)
    assert first.returncode == 75
    assert len(list(tmp_path.glob("checkpoints/stopped-step=*.ckpt"))) == 1
