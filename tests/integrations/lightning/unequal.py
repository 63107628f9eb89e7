"""Ranks validate over loaders of different sizes, and reduce what they log; rank 0 is told to stop.

`python unequal.py LOADERS`: rank 0 has twice as many batches in each of them.
"""

import os
import signal
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from training import Model, trainer_of  # noqa: E402

from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint  # noqa: E402
from undaunted.progress.writer import current_writer  # noqa: E402

RANK = int(os.environ["RANK"])
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"  # collectives that do not match raise


class Evaluated(Model):
    asked = 0

    def validation_step(self, batch, index, dataloader_idx=0):
        self.log("loss", batch.mean(), sync_dist=True)
        self.asked += 1
        if RANK == 0 and self.global_step == 4 and self.asked == 8 and last is None:
            os.kill(os.getpid(), signal.SIGTERM)
            while not current_writer().stop_word:  # the last batches take less than an answer
                time.sleep(0.002)

    def on_validation_end(self):
        print(f"rank {RANK} has evaluated {self.asked} at {self.global_step}", flush=True)
        self.asked = 0

    def val_dataloader(self):
        data = torch.ones(2 * (12 - 6 * RANK), 16)
        return [torch.utils.data.DataLoader(data, batch_size=2)] * int(sys.argv[1])


last = last_checkpoint("checkpoints")
trainer = trainer_of(
    [UndauntedCallback(), ModelCheckpoint(dirpath="checkpoints")],
    devices=2,
    strategy="ddp",
    max_epochs=1,
    val_check_interval=4,
    use_distributed_sampler=False,
    num_sanity_val_steps=0,
)
trainer.fit(Evaluated(), ckpt_path=last)
print(f"rank {RANK} is done", flush=True)
