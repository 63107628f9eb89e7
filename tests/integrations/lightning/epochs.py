"""Three epochs of 20 steps; a checkpoint falls on the last step of each.

`python epochs.py KIND`: the loader is torchdata's (stateful) or torch's (plain). Rank 0 prints what
came out, and the epochs that began.
"""

import sys
import warnings

warnings.filterwarnings("ignore")

import lightning as L  # noqa: E402, N812
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint  # noqa: E402


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def on_train_epoch_start(self):
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch} at {self.global_step}", flush=True)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layer(batch[1]), batch[0] % 3)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


torch.distributed.init_process_group("gloo")
L.seed_everything(0, verbose=False)
model = Model()
data = [(i, torch.randn(8, generator=torch.Generator().manual_seed(i))) for i in range(160)]
if sys.argv[1] == "stateful":
    loader = StatefulDataLoader(data, batch_size=4, sampler=StatefulDistributedSampler(data))
else:
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
trainer = L.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices=2,
    use_distributed_sampler=False,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=5), UndauntedCallback()],
)
trainer.fit(model, loader, ckpt_path=last_checkpoint("checkpoints"))
if trainer.global_rank == 0:
    checksum = sum(float(one.detach().double().abs().sum()) for one in model.parameters())
    print(f"result: step {trainer.global_step}, {checksum!r}", flush=True)
