"""A tiny GPT of Megatron's own code, whose results our re-run machine checks.

Megatron takes a GPU for granted: replaced are the device and its random generators. The model, its
data-parallel wrapper and the checks of gradients in there are Megatron's.
"""

import contextlib
import os
import sys

from undaunted.integrations.megatron import rerun

sys.modules["megatron.core.rerun_state_machine"] = rerun  # before any import of megatron

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.cuda.current_device = lambda: "cpu"

from megatron.core import parallel_state, safe_globals  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
STEPS, ODD = 4, 2


def tiny():
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=8)
    checked = DistributedDataParallelConfig(check_for_nan_in_grad=True)
    return DistributedDataParallel(config, checked, model)


def main():
    torch.manual_seed(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os.environ.update(RANK="0", WORLD_SIZE="1")
    parallel_state.initialize_model_parallel()
    assert rerun.RerunState in safe_globals.SAFE_GLOBALS  # Megatron's code has our names
    rerun.initialize_rerun_state_machine(mode=rerun.RerunMode.VALIDATE_RESULTS)
    machine = rerun.get_rerun_state_machine()
    model = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mask = torch.ones(1, 1, 8, 8).tril() < 0.5
    for step in range(STEPS):
        data = rerun.RerunDataIterator(iter([torch.randint(0, 32, (2, 8))]))
        losses = []
        while machine.should_run_forward_backward(data):
            model.zero_grad_buffer()
            tokens = next(data)
            loss = model(tokens, torch.arange(8).expand(2, 8), mask, labels=tokens).mean()
            loss.backward()
            losses.append(loss.item())
            if step == ODD and len(losses) == 1:  # a GPU that computes wrongly, once
                model.buffers[0].grad_data[0] = float("nan")
            model.finish_grad_sync()  # Megatron checks its gradients here
        save, leave, code = machine.should_checkpoint_and_exit()
        print(f"step {step}: {len(losses)} runs, {len(set(losses))} losses, {save} {leave} {code}")
        if leave:
            break
        for parameter in model.parameters():
            parameter.grad = parameter.main_grad
        optimizer.step()
        state = machine.state_dict(data, "torch_dist")
        assert isinstance(state["sharded"], ShardedObject)
    dist.destroy_process_group()


main()
