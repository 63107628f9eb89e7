"""A BERT with the names of NVRx: local checkpoints often, global ones in the background."""

from pathlib import Path

import torch
import torch.distributed as dist
from result import BF16, print_result
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

import undaunted
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
from nvidia_resiliency_ext.checkpointing.async_ckpt.torch_ckpt import TorchAsyncCheckpoint
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (
    LocalCheckpointManager,
)
from nvidia_resiliency_ext.checkpointing.local.replication.strategies import (
    CliqueReplicationStrategy,
)
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

STEPS, LOCAL_EVERY, GLOBAL_EVERY, BATCH, LENGTH = 20, 5, 10, 4, 48


def batch(step):
    """The same for each start of the job."""
    seed = step * dist.get_world_size() + dist.get_rank()
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4096, (BATCH, LENGTH), generator=generator)


def main():
    rank = dist.get_rank()
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
    net = BertForMaskedLM(config)
    model = DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    copies = CliqueReplicationStrategy.from_replication_params(
        replication_jump=1, replication_factor=2
    )
    local = LocalCheckpointManager(f"checkpoints/node{rank}", repl_strategy=copies)
    queue, whole = AsyncCallsQueue(), TorchAsyncCheckpoint()
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()

    start = 0
    if local.find_latest() != -1:
        loaded, _ = local.load()
        net.load_state_dict(loaded.state_dict["model"])
        optimizer.load_state_dict(loaded.state_dict["optimizer"])
        start = loaded.state_dict["step"]
    for step in range(start, STEPS):
        undaunted.step(step)
        monitor.send_heartbeat()
        tokens = batch(step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=BF16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        if step % LOCAL_EVERY == LOCAL_EVERY - 1:
            request = local.save(BasicTensorAwareStateDict(state), step + 1, is_async=True)
            queue.schedule_async_request(request)
        if step % GLOBAL_EVERY == GLOBAL_EVERY - 1 and rank == 0:
            Path("global").mkdir(exist_ok=True)
            whole.async_save(state, f"global/{step + 1}.pt")
        queue.maybe_finalize_async_calls(blocking=step % LOCAL_EVERY == 2)
        whole.finalize_async_save(blocking=False)
    queue.maybe_finalize_async_calls(blocking=True)
    whole.finalize_async_save(blocking=True)
    monitor.shutdown_workload_monitoring()
    queue.close()
    whole.close()
    local.close()
    print_result(net, STEPS)


dist.init_process_group("gloo")
main()
dist.destroy_process_group()
