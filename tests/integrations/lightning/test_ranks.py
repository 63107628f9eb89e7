"""Two ranks under a launcher: whatever happens to them, the end is that of an undisturbed run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher
from tests.integrations.once import made_once

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

SCRIPT = str(Path(__file__).with_name("train.py"))
OPTIONS = ("--nproc-per-node", "2", "--max-restarts", "5")
PRELOAD = ("--preload", "lightning")
LIMIT_S = 300.0


@contextlib.contextmanager
def trained(
    folder: Path,
    *options: str,
    given: tuple[str, ...] = (),
    preload: tuple[str, ...] = PRELOAD,
) -> Iterator[Launcher]:
    folder.mkdir(exist_ok=True)
    (folder / "job").mkdir(exist_ok=True)
    launcher = Launcher([*OPTIONS, *preload, *options, SCRIPT, "job", *given], folder)
    try:
        yield launcher
    finally:
        launcher.close()


def run(folder: Path, *options: str, given: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """Return how the launcher ended, and what parameters came out on each rank."""
    with trained(folder, *options, given=given) as launcher:
        code = launcher.finish(LIMIT_S)
    assert code == 0, launcher.text
    return code, results(folder)


def results(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / "job").glob("result-*"))]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    found = results(made_once(tmp_path_factory, "undisturbed", run))
    assert len(found) == 2
    assert len(set(found)) == 1
    return found


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("job/checkpoints/stopped-step=*.ckpt"))


def test_ranks_that_are_killed_that_hang_and_that_save(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    plan = [
        "sigkill:rank=1,iteration=4",
        "sleep:rank=0,iteration=8",
        "torn-write:rank=0,iteration=11,bytes=4096",
        "sigstop:rank=1,iteration=17",
        "sigkill:rank=0,iteration=22",
    ]
    limit = ("--ft-rank-section-timeouts", "step:5", "--inject-fault", ";".join(plan))
    assert run(tmp_path, *limit) == (0, undisturbed)
    assert checkpoints(tmp_path) == []


@pytest.mark.timeout(900)  # the import has the lowest priority
def test_a_kill_when_another_template_has_imported_lightning(
    tmp_path: Path, undisturbed: list[str]
) -> None:
    given = ("disturb=kill:1:13", "after=learned")
    with trained(tmp_path, "--run-dir", "run", given=given, preload=()) as launcher:
        launcher.wait_for("goes on", LIMIT_S)
        while not launcher.events("imports_learned"):
            assert launcher.process.poll() is None, launcher.text
            time.sleep(0.1)
        (tmp_path / "learned").touch()
        assert launcher.finish(LIMIT_S) == 0, launcher.text
        (event,) = launcher.events("imports_learned")
    assert {"lightning", "torchmetrics"} <= set(event["packages"]), event
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_while_a_checkpoint_is_written_in_the_background(
    tmp_path: Path, undisturbed: list[str], rank: int
) -> None:
    given = (f"disturb=kill_save:{rank}:15", "io=background")
    assert run(tmp_path, given=given) == (0, undisturbed)


@pytest.mark.parametrize("who", ["launcher", "rank"])
def test_preemption(tmp_path: Path, undisturbed: list[str], who: str) -> None:
    given = ("disturb=told:1:3" if who == "launcher" else "disturb=signal:1:13",)
    with trained(tmp_path, given=given) as launcher:
        if who == "launcher":
            launcher.wait_for("rank 1 step 3$", LIMIT_S)
            launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish(LIMIT_S) == 75, launcher.text
    assert len(checkpoints(tmp_path)) == 1
    assert run(tmp_path) == (0, undisturbed)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("a checkpoint and none", r"rank 0 at .*step=5\.ckpt on .*; rank 1 at the beginning on"),
        ("two checkpoints", r"rank 0 at step 15 \(.*; rank 1 at step 5 \(.*step=5\.ckpt\) on"),
    ],
)
def test_ranks_that_see_other_checkpoints_end_at_once_and_say_so(
    tmp_path: Path, seen: str, said: str
) -> None:
    assert run(tmp_path, given=("disks=own", "steps=8"))[0] == 0
    (own,) = (tmp_path / "job").glob("checkpoints-*")  # of rank 0, which saves
    if seen == "two checkpoints":
        (tmp_path / "job" / "checkpoints-1").mkdir()
        shutil.copy(next(own.glob("*step=5*")), tmp_path / "job" / "checkpoints-1")
        assert run(tmp_path, given=("disks=own", "steps=16"))[0] == 0  # they see the same
    with trained(tmp_path, "--max-restarts", "0", given=("disks=own",)) as launcher:
        assert launcher.finish(LIMIT_S) != 0
    assert re.search(f"ranks would begin at different places: {said}", launcher.text)
    assert "one folder that all nodes share" in launcher.text
    assert "rank 0 step" not in launcher.text


def test_without_the_launcher_ranks_stop_together(tmp_path: Path) -> None:
    # Ranks look at the store twice a second: there has to be something left to do then.
    given = ["job", "steps=32000", "disturb=signal:1:3"]
    (tmp_path / "job").mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(
        [sys.executable, SCRIPT, *given], cwd=tmp_path, env=env, timeout=180, capture_output=True
    )
    assert first.returncode == 75
    assert len(checkpoints(tmp_path)) == 1


def epochs(folder: Path, kind: str, *faults: str) -> tuple[str, str]:
    """Return the last line of a run, and all it has said."""
    folder.mkdir(exist_ok=True)
    options = [word for fault in faults for word in ("--inject-fault", fault)]
    script = str(Path(__file__).with_name("epochs.py"))
    launcher = Launcher([*OPTIONS, *PRELOAD, *options, script, kind], folder)
    try:
        assert launcher.finish(LIMIT_S) == 0, launcher.text
    finally:
        launcher.close()
    return re.findall(r"result: (.*)", launcher.text)[-1], launcher.text


@pytest.mark.parametrize("kind", ["stateful", "plain"])
def test_a_checkpoint_of_the_last_batch_of_an_epoch(tmp_path: Path, kind: str) -> None:
    right, _ = epochs(tmp_path / "undisturbed", kind)
    assert right.startswith("step 60,")
    kills = [f"sigkill:rank=1,iteration={at}" for at in (23, 43)]
    result, text = epochs(tmp_path / "killed", kind, *kills)
    assert result == right
    assert "epoch 2 at 40" in text
    again, text = epochs(tmp_path / "killed", kind)
    assert again == right  # not an epoch more
    assert "fit has made no step" in text


@pytest.mark.parametrize("loaders", [1, 2])
def test_ranks_with_unequal_loaders_leave_a_validation_together(
    tmp_path: Path, loaders: int
) -> None:
    """They reduce what they have logged at the end of each loader."""
    script = str(Path(__file__).with_name("unequal.py"))
    for code, batches in ((75, None), (0, loaders)):
        launcher = Launcher([*OPTIONS, *PRELOAD, script, f"{loaders}"], tmp_path)
        try:
            assert launcher.finish(LIMIT_S) == code, launcher.text
        finally:
            launcher.close()
        if batches is not None:
            for rank in (0, 1):
                whole = f"rank {rank} has evaluated {batches * (12 - 6 * rank)} at"
                assert launcher.text.count(f"{whole} 4") == 1, "made up"
                assert launcher.text.count(f"{whole} 8") == 1
