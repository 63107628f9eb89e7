"""A BERT with DeepSpeed: ZeRO-1, bf16, accumulation, its own checkpoints and schedule."""

import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from result import BF16, print_result
from transformers import BertConfig, BertForMaskedLM

from undaunted.training import Session

STEPS, SAVE_EVERY, ACCUMULATED, BATCH, LENGTH = 16, 4, 2, 4, 48
SETTINGS = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": ACCUMULATED,
    "bf16": {"enabled": BF16},
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 1.0,
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 8, "warmup_max_lr": 3e-4}},
    "steps_per_print": 10**9,
}


def batch(number):
    """The same for each start of the job."""
    seed = number * dist.get_world_size() + dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4096, (BATCH, LENGTH), generator=generator)


def main():
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled here
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=1024,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=SETTINGS)

    def save(step):
        engine.save_checkpoint("checkpoints", tag=f"step{step + 1}")

    with Session(save=save) as session:
        engine.load_checkpoint("checkpoints")
        for step in range(engine.global_steps, STEPS):
            with session.step(step):
                for part in range(ACCUMULATED):
                    tokens = batch(step * ACCUMULATED + part)
                    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
                    engine.step()
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                session.save(step)
            if session.should_stop(step):
                break
    if not session.stop:
        print_result(engine.module, engine.global_steps)
    dist.destroy_process_group()
    return session.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
