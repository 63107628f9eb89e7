"""A Llama of torchtitan, sharded by its FSDP, saved by its CheckpointManager; without GPUs.

`torchtitan_llama.py --module torchtitan_llama --config small`
"""

import json
import os
import types
from pathlib import Path

import torch
import torch.distributed as dist
from torchtitan.tools import utils

# torchtitan takes a GPU for granted: docs/torchtitan.md says what is replaced.
utils.device_type = "cpu"
utils.device_module = types.SimpleNamespace(**vars(torch.cpu))
utils.device_module.current_device = lambda: 0
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout

from result import print_result
from torch.distributed.fsdp import FSDPModule
from torchtitan import trainer
from torchtitan.components import metrics
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry, parallelize_llama
from torchtitan.train import main

from undaunted.integrations.torchtitan import UndauntedTrainerMixin

WORDS = [f"w{number}" for number in range(500)]


class Memory:
    device_name, device_capacity_gib = "cpu", 1.0

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0.0, 0.0, 0.0, 0.0, 0, 0)

    def reset_peak_stats(self):
        pass


metrics.build_device_memory_monitor = Memory


class Trainer(UndauntedTrainerMixin, trainer.Trainer):
    def train(self):
        super().train()
        print_result(self.model_parts[0], self.step)


def parallelize(model, **options):
    model = parallelize_llama(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model


def write_texts():
    words = {word: at for at, word in enumerate(["[unk]", "<bos>", "<eos>", *WORDS])}
    tokenizer = {
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[unk]"},
    }
    texts = [" ".join(WORDS[(row * at) % 500] for at in range(100)) for row in range(200)]
    for folder in ("assets", "data"):
        Path(folder).mkdir(exist_ok=True)
    Path("assets/tokenizer.json").write_text(json.dumps(tokenizer))
    special = json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"})
    Path("assets/tokenizer_config.json").write_text(special)
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    Path(f"data/part-{os.environ['RANK']}").write_text("".join(lines))
    Path(f"data/part-{os.environ['RANK']}").replace("data/data.json")  # the same of each rank


def small():
    spec = model_registry("debugmodel")
    spec.parallelize_fn = parallelize
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path="assets",
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(lr=8e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=4),
        training=TrainingConfig(local_batch_size=2, seq_len=64, steps=20, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4_test", dataset_path="data"),
        checkpoint=CheckpointManager.Config(
            enable=True, interval=5, keep_latest_k=2, last_save_model_only=False
        ),
        debug=DebugConfig(seed=1),
    )


if __name__ == "__main__":
    write_texts()
    main()
