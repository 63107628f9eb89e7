"""A script of Lightning: two ranks, a loader that is gone on with, validation and saves.

`python train.py FOLDER [name=value ...]`: each rank writes a digest of the parameters at the end to
FOLDER/result-RANK. What goes wrong, once: kill, hang, signal (in a step), told (a step takes until
the launcher tells to stop) or kill_save (rank 0 while it writes the file, rank 1 before that).
io=background saves in the background. With disks=own each rank has its own folder of checkpoints,
as on nodes with disks of their own.
"""

import hashlib
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.io import TorchCheckpointIO  # noqa: E402
from training import BATCHES, Model, parameters_of, trainer_of  # noqa: E402

from undaunted.integrations.lightning import (  # noqa: E402
    BackgroundCheckpointIO,
    UndauntedCallback,
    last_checkpoint,
)
from undaunted.progress.writer import current_writer  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel("ERROR")
FOLDER = Path(sys.argv[1])
GIVEN = dict(word.split("=") for word in sys.argv[2:])


def wait_for(path):
    while not path.exists():
        time.sleep(0.05)


class Disturbance(Callback):
    """What goes wrong, once for each job."""

    def __init__(self):
        kind, _, at = GIVEN.get("disturb", "none:0:0").partition(":")
        rank, _, step = at.partition(":")
        self.kind, self.rank, self.step = kind, int(rank), int(step)

    def setup(self, trainer, *_, **__):
        self.own_rank = trainer.global_rank

    def now(self, step, kind):
        once = FOLDER / "disturbed"
        if (kind, self.own_rank, step) != (self.kind, self.rank, self.step) or once.exists():
            return False
        once.touch()
        return True

    def on_train_batch_start(self, trainer, *_):
        print(f"rank {self.own_rank} step {trainer.global_step}", flush=True)

    def on_before_optimizer_step(self, trainer, *_):
        if self.now(trainer.global_step, "kill"):
            wait_for(Path(GIVEN.get("after", FOLDER)))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.now(trainer.global_step, "hang"):
            time.sleep(3600)
        if self.now(trainer.global_step, "signal"):
            os.kill(os.getpid(), signal.SIGTERM)
        if self.now(trainer.global_step, "told"):
            while not current_writer().stop_word:
                time.sleep(0.002)

    def on_save_checkpoint(self, trainer, *_):
        if self.own_rank and self.now(trainer.global_step, "kill_save"):
            os.kill(os.getpid(), signal.SIGKILL)


class Killed(TorchCheckpointIO):
    """Killed in a save: the file is torn, as a copy to another file system may leave it."""

    def __init__(self, disturbance):
        self.disturbance = disturbance

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        if self.disturbance.now(checkpoint["global_step"], "kill_save"):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(b"PK\x03\x04")
            os.kill(os.getpid(), signal.SIGKILL)
        super().save_checkpoint(checkpoint, path, storage_options)


def main():
    disturbance = Disturbance()
    checkpoints = FOLDER / "checkpoints"
    if GIVEN.get("disks") == "own":
        checkpoints = FOLDER / f"checkpoints-{os.environ['RANK']}"
    saving = ModelCheckpoint(dirpath=checkpoints, every_n_train_steps=5)
    writing = Killed(disturbance)
    if GIVEN.get("io") == "background":
        writing = BackgroundCheckpointIO(writing)
    model = Model()
    trainer = trainer_of(
        [UndauntedCallback(), disturbance, saving],
        devices=2,
        strategy="ddp",
        max_epochs=int(GIVEN.get("steps", 24)) // BATCHES,
        plugins=[writing],
    )
    newest = last_checkpoint(checkpoints)
    print(f"rank {trainer.global_rank} goes on from {newest}", flush=True)
    trainer.fit(model, ckpt_path=newest)
    digest = hashlib.sha256(str(parameters_of(model)).encode())
    (FOLDER / f"result-{trainer.global_rank}").write_text(digest.hexdigest())
    print(f"rank {trainer.global_rank} is done", flush=True)


main()
