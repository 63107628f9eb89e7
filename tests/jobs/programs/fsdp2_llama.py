"""A Llama of Transformers, sharded by FSDP2, bf16; Checkpointer saves each rank's shards."""

import sys

import torch
import torch.distributed as dist
from result import BF16, print_result
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

from undaunted.checkpointing import Checkpointer
from undaunted.training import Session

STEPS, SAVE_EVERY, BATCH, LENGTH = 20, 5, 4, 64


def build():
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=320,
        intermediate_size=864,
        num_hidden_layers=8,
        num_attention_heads=10,
        num_key_value_heads=5,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if BF16 else torch.float32, reduce_dtype=torch.float32
    )
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no average
    return model


def batch(step):
    """The same for each start of the job."""
    seed = step * dist.get_world_size() + dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 8192, (BATCH, LENGTH), generator=generator)


def main():
    model = build()
    assert all(isinstance(each, DTensor) for each in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    with Checkpointer("checkpoints", keep=2) as checkpoints:
        checkpoints.warm_up(state)
        with Session(save=lambda step: checkpoints.save(step + 1, state)) as session:
            for step in range(checkpoints.load(state) or 0, STEPS):
                with session.step(step):
                    tokens = batch(step)
                    model(input_ids=tokens, labels=tokens).loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    schedule.step()
                if step % SAVE_EVERY == SAVE_EVERY - 1:
                    session.save(step)
                if session.should_stop(step):
                    break
        if not session.stop:
            print_result(model, STEPS)
    return session.exit_code


dist.init_process_group("gloo")
code = main()
dist.destroy_process_group()
sys.exit(code)
