"""A vision transformer with Accelerate: bf16, accumulation, a loader that goes on where it was."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from result import BF16, print_result
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

from undaunted.training import Session, ignore_stop_signals

STEPS, SAVE_EVERY, ACCUMULATED = 16, 4, 2
newest = Path("states/newest")


class Pictures(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        return torch.randn(3, 32, 32, generator=generator), at % 10


def main():
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16" if BF16 else "no", gradient_accumulation_steps=ACCUMULATED
    )
    set_seed(1)
    config = ViTConfig(
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=1024,
        image_size=32,
        patch_size=4,
        num_labels=10,
        hidden_dropout_prob=0.1,
    )
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 8, 2 * STEPS)
    loader = DataLoader(
        Pictures(), 8, shuffle=True, num_workers=2, worker_init_fn=ignore_stop_signals
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    def save(step):
        accelerator.save_state(f"states/{step + 1}")
        accelerator.wait_for_everyone()  # all ranks have written theirs
        if accelerator.is_main_process:
            written = newest.with_suffix(".part")
            written.write_text(str(step + 1))
            written.replace(newest)

    def load():
        if not newest.exists():
            return 0
        start = int(newest.read_text())
        accelerator.load_state(f"states/{start}")
        return start

    with Session(save=save) as session:
        start = load()
        rest = accelerator.skip_first_batches(loader, start * ACCUMULATED) if start else loader
        batches = iter(rest)
        for step in range(start, STEPS):
            with session.step(step):
                for _ in range(ACCUMULATED):
                    with accelerator.accumulate(model):
                        pictures, classes = next(batches)
                        loss = functional.cross_entropy(model(pictures).logits, classes)
                        accelerator.backward(loss)
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        optimizer.step()
                        schedule.step()
                        optimizer.zero_grad()
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                session.save(step)
            if session.should_stop(step):
                break
    if not session.stop:
        print_result(accelerator.unwrap_model(model), STEPS)
    accelerator.end_training()
    return session.exit_code


if __name__ == "__main__":
    sys.exit(main())
