"""One rank of benchmarks/first_step.py: Lightning trains a tiny model of Transformers.

It says that it goes on in the first line behind both imports, and then each step.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import torch
import transformers

RANK = os.environ["RANK"]
print(f"rank {RANK} goes on", flush=True)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2
        )
        config.bos_token_id = config.eos_token_id = 0
        self.model = transformers.GPT2LMHeadModel(config)

    def training_step(self, batch: torch.Tensor, _: int) -> Any:
        print(f"rank {RANK} step {self.global_step}", flush=True)
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    tokens = torch.randint(0, 32, (96, 8), generator=torch.Generator().manual_seed(2))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=int(sys.argv[2].removeprefix("steps=")),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(tokens, 2))


main()
