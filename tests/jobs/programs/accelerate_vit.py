"""A vision transformer with Accelerate: bf16, accumulation, a Loader that goes on where it was."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from result import BF16, print_result
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup

from undaunted.data import Loader
from undaunted.training import Session, ignore_stop_signals

STEPS, SAVE_EVERY = 16, 4
newest = Path("states/newest")


class Pictures(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        generator = torch.Generator().manual_seed(at)
        picture = torch.randn(3, 32, 32, generator=generator)
        return picture + 0.1 * torch.randn(3, 1, 1), at % 10


def main():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if BF16 else "no")
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
    loader = Loader(
        Pictures(),
        global_batch=32,
        micro_batch=8,
        seed=1,
        num_workers=2,
        worker_init_fn=ignore_stop_signals,
    )
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    accelerator.register_for_checkpointing(loader)

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
        for step in range(load(), STEPS):
            with session.step(step):
                for pictures, classes in loader.step():
                    with loader.accumulate(model):
                        loss = functional.cross_entropy(model(pictures).logits, classes)
                        accelerator.backward(loss * loader.scale)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                session.save(step)
            if session.should_stop(step):
                break
    loader.close()
    if not session.stop:
        print_result(accelerator.unwrap_model(model), STEPS)
    accelerator.end_training()
    return session.exit_code


if __name__ == "__main__":
    sys.exit(main())
