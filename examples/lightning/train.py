r"""A script of Lightning that survives crashes, hangs and preemption by three lines of undaunted's.

One rank is killed, later another one hangs:

    undaunted run --nproc-per-node 2 --max-restarts 3 \
        --ft-rank-section-timeouts step:10 --ft-rank-out-of-section-timeout 10 \
        --inject-fault "sigkill:rank=1,iteration=50" \
        --inject-fault "sleep:rank=0,iteration=120" train.py

The same step and number are printed without the faults. More in docs/lightning.md.
"""

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from undaunted.integrations.lightning import UndauntedCallback, last_checkpoint  # 1


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


L.seed_everything(0)
inputs = torch.randn(512, 16)
data = DataLoader(
    TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=8, shuffle=True
)
model = Model()
trainer = L.Trainer(
    max_epochs=6,
    accelerator="cpu",
    devices=2,
    callbacks=[ModelCheckpoint(dirpath="checkpoints"), UndauntedCallback()],  # 2
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, data, ckpt_path=last_checkpoint("checkpoints"))  # 3
if trainer.global_rank == 0:
    checksum = sum(float(each.abs().sum()) for each in model.parameters())
    print(f"step {trainer.global_step}: {checksum:.6f}")
