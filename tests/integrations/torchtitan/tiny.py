"""A configuration of torchtitan: a tiny Llama, sharded over the ranks by FSDP, on local data.

What goes wrong, each once: DISTURB="kill:1:7,hang:0:17" is a rank and a step each; kill and hang
in a step, signal before one, signal_validation in the second batch of a validation, kill_save in a
save: rank 0 when all is written but what says that
it is whole, rank 1 in the middle of its file. At the end each rank writes a digest of its
parameters to result-RANK.
"""

import dataclasses
import hashlib
import os
import signal
import time
from pathlib import Path

import on_cpu
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DTensor
from torchtitan import trainer
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry

from undaunted.integrations.torchtitan import UndauntedTrainerMixin
from undaunted.progress.writer import current_writer

RANK = int(os.environ.get("RANK", "0"))
DISTURB = os.environ.get("DISTURB", "")


def now(kind, step):
    what = f"{kind}:{RANK}:{step}"
    once = Path(what)
    if what not in DISTURB.split(",") or once.exists():
        return False
    once.touch()
    return True


def be_told_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)
    while not current_writer().stop_word:  # the rest may take less than the launcher's answer
        time.sleep(0.002)


class Told(Validator):
    """Is told to stop."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        pass

    def validate(self, model_parts, step):
        self.step, self.batches = step, 0
        super().validate(model_parts, step)

    def post_dataloading_process(self, *given):
        self.batches += 1
        print(f"rank {RANK} validates {self.step}", flush=True)
        if self.batches == 2 and now("signal_validation", self.step):
            be_told_to_stop()
        return super().post_dataloading_process(*given)


class Disturbed(trainer.Trainer):
    """What goes wrong, and what is compared."""

    def now(self, kind):
        return now(kind, self.step)

    def train_step(self, data_iterator):
        print(f"rank {RANK} step {self.step}", flush=True)
        if self.now("signal"):
            be_told_to_stop()
        super().train_step(data_iterator)
        if self.now("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.now("hang"):
            time.sleep(3600)
        if self.now("kill_save"):
            setattr(FileSystemWriter, "write_data" if RANK else "finish", killed)

    def train(self):
        super().train()
        digest = hashlib.sha256()
        for part in self.model_parts:
            for parameter in part.parameters():
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                digest.update(local.detach().numpy().tobytes())
        Path(f"result-{RANK}").write_text(f"{self.step} {digest.hexdigest()}")


def killed(writer, *_):
    if RANK:
        (Path(writer.path) / "__1_0.distcp").write_text("torn")
    os.kill(os.getpid(), signal.SIGKILL)


class Trainer(UndauntedTrainerMixin, Disturbed):
    pass


def texts():
    return HuggingFaceTextDataLoader.Config(dataset="c4_test", dataset_path="data")


def tiny() -> Trainer.Config:
    spec = model_registry("debugmodel")
    spec.parallelize_fn = on_cpu.parallelize
    spec.model.layers = spec.model.layers[:1]
    for layer in spec.model.layers:  # the others need a compiler, or a GPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path="assets",
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(lr=8e-4),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(local_batch_size=1, seq_len=32, steps=22, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        dataloader=texts(),
        validator=Told.Config(enable=True, freq=7, steps=20, dataloader=texts()),
        metrics=MetricsProcessor.Config(log_freq=10),
        checkpoint=CheckpointManager.Config(
            enable=True, interval=5, keep_latest_k=3, last_save_model_only=False
        ),
        debug=DebugConfig(seed=1),
    )
