"""Two ranks under a launcher, with callbacks of NVRx as scripts for it import them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.e2e.launcher import launched
from tests.integrations.once import made_once

pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_compiler"),
]

ROOT = Path(__file__).parents[3]
SCRIPT = """
    import hashlib, logging, os, sys, time, warnings
    warnings.filterwarnings("ignore")
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from nvidia_resiliency_ext.ptl_resiliency import (
        FaultToleranceCallback, FaultToleranceSectionsCallback, StragglerDetectionCallback
    )
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (
        LocalCheckpointManager,
    )
    from nvidia_resiliency_ext.ptl_resiliency.local_checkpoint_callback import (
        HierarchicalCheckpointIO, LocalCheckpointCallback
    )
    from tests.integrations.lightning.training import Model, parameters_of, trainer_of
    from undaunted.integrations.lightning import last_checkpoint
    logging.getLogger("lightning.pytorch").setLevel("ERROR")
    logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")

    model = Model()
    options = dict(devices=2, strategy="ddp", max_epochs=4)
    callbacks = [ModelCheckpoint(dirpath="checkpoints")]
    {more}
    trainer = trainer_of(callbacks, **options)
    trainer.fit(model, ckpt_path=last_checkpoint("checkpoints"))
    if trainer.global_rank == 0:
        print("end", hashlib.sha256(str(parameters_of(model)).encode()).hexdigest(), flush=True)
"""
LOCAL = '''
    class Says(HierarchicalCheckpointIO):
        def from_tensor_aware_state_dict(self, *args, **options):
            found = super().from_tensor_aware_state_dict(*args, **options)
            print("local step", found["global_step"], flush=True)
            return found

    manager = LocalCheckpointManager("local")
    step_of = lambda path: int(path.rpartition("step=")[2].removesuffix(".ckpt"))
    options["plugins"] = [Says(TorchCheckpointIO(), manager, step_of, async_save=%s)]
    local = LocalCheckpointCallback(every_n_train_steps=3)

    class Waits(Callback):
        """For a save in the background, so that a kill finds the newest one whole."""

        def on_train_batch_end(self, *_):
            if local._queue is not None:
                local._queue.maybe_finalize_async_calls(blocking=True)

    callbacks += [local, Waits(), FaultToleranceCallback(False, False)]
'''
OPTIONS = ("--nproc-per-node", "2", "--max-restarts", "5", "--preload", "lightning")


def run(folder: Path, more: str, *options: str, **env: str) -> tuple[int, str, str]:
    """Return how the launcher ended, what parameters came out, and all that was said."""
    folder.mkdir(exist_ok=True)
    script = SCRIPT.replace("    {more}\n", more)
    path = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    with launched(folder, script, *OPTIONS, *options, PYTHONPATH=path, **env) as launcher:
        code = launcher.finish(300)
        found = re.search(r"end (\w+)", launcher.text)
        return code, found.group(1) if found else "", launcher.text


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    def train(folder: Path) -> None:
        code, digest, text = run(folder, "")
        assert code == 0, text
        (folder / "digest").write_text(digest)

    return (made_once(tmp_path_factory, "with-nvrx", train) / "digest").read_text()


@pytest.mark.parametrize("in_background", [False, True])
def test_ranks_that_are_killed_go_on_from_a_local_checkpoint(
    tmp_path: Path, undisturbed: str, in_background: bool
) -> None:
    """Plain DDP saves on rank 0 only; local checkpoints need all of them."""
    faults = "sigkill:rank=1,iteration=13;sigkill:rank=0,iteration=23"
    code, digest, text = run(tmp_path, LOCAL % in_background, "--inject-fault", faults)
    assert (code, digest) == (0, undisturbed), text
    steps = [int(step) for step in re.findall(r"local step (\d+)", text)]
    assert len(steps) == 4, text
    assert steps[0] == steps[1] > 8, "epochs have 8 steps: that of the end of one is older"
    assert steps[2] == steps[3] > 16


WATCHED = """
    callbacks += [FaultToleranceCallback(autoresume=True, calculate_timeouts=True, exp_dir="ft")]
"""
STOPS = """
    class Stops(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step >= 8  # the end of an epoch

    callbacks += [Stops()]
"""


def test_heartbeats_and_the_flag_of_a_finished_job(tmp_path: Path, undisturbed: str) -> None:
    flag = tmp_path / "finished"
    autoresume = {"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    code, _, text = run(tmp_path, WATCHED + STOPS, **autoresume)
    assert code == 75, text
    assert not flag.exists(), "ranks ended with 0, and training is not complete"
    fault = ("--inject-fault", "sleep:rank=0,iteration=19", "--ft-min-measured-timeout", "5")
    code, digest, text = run(tmp_path, WATCHED, *fault, **autoresume)
    assert (code, digest) == (0, undisturbed), text
    assert re.search(r"rank 0 .* hangs: .*no heartbeat for", text), text
    assert flag.exists()
    state = json.loads((tmp_path / "ft/_ft_state.json").read_text())
    assert state["current_timeouts"]["heartbeat"]["were_calculated"]


SIMULATED = """
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    fault = {"fault_type": "rank_hung", "base_delay": 0.0, "rank_to_fail": 1} if first else None
    callbacks += [FaultToleranceSectionsCallback(False, True, fault, exp_dir="ft")]
"""


def test_a_simulated_fault_in_a_section(tmp_path: Path, undisturbed: str) -> None:
    limits = "setup:10,step:10,checkpointing:10"
    code, digest, text = run(tmp_path, SIMULATED, "--ft-rank-section-timeouts", limits)
    assert (code, digest) == (0, undisturbed), text
    assert "setup" in text
    state = json.loads((tmp_path / "ft/_ft_state_.json").read_text())
    found = state["current_timeouts"]["section"]["calculated_sections"]
    assert found == ["checkpointing", "step"], "no checkpoint was there to be loaded"


SLOW = """
    class Slow(Model):
        def training_step(self, *args):
            if self.global_rank == 1:
                time.sleep(0.05)
            return super().training_step(*args)

    model = Slow()
    callbacks += [StragglerDetectionCallback(
        report_time_interval=0.01, calc_relative_gpu_perf=True, calc_individual_gpu_perf=False,
        num_gpu_perf_scores_to_print=5, gpu_relative_perf_threshold=0.5,
        gpu_individual_perf_threshold=0.5, stop_if_detected=True, enable_ptl_logging=True,
    )]
"""


def test_a_slow_rank_ends_the_job_with_a_checkpoint(tmp_path: Path) -> None:
    code, _, text = run(tmp_path, SLOW)
    assert code == 18, text
    assert re.search(r"worse relative performance\. Affected ranks: \[1\]", text)
    assert len([*tmp_path.glob("checkpoints/stopped-step=*.ckpt")]) == 1
