r"""A configuration of torchtitan that survives crashes, hangs and preemption.

Three lines are undaunted's. On GPUs, with a tokenizer and data in the folders `assets` and `data`:

    undaunted run --nproc-per-node 8 --max-restarts 10 \
        --ft-rank-section-timeouts step:300 --ft-rank-out-of-section-timeout 300 \
        -m torchtitan.train --module my_model --config small

Without a GPU `texts.py` writes such folders, and `on_cpus.py` takes the place of torchtitan's own
program. A rank is killed, and later the nodes are wanted back; the same command without faults
then goes on:

    python texts.py
    undaunted run --nproc-per-node 2 --max-restarts 3 --inject-fault "sigkill:rank=1,iteration=8" \
        --inject-fault "sigterm:rank=0,iteration=13" on_cpus.py --module on_cpus --config small

More in docs/torchtitan.md.
"""

from torchtitan import trainer
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import TrainingConfig
from torchtitan.config.configs import DebugConfig
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.llama3 import model_registry

from undaunted.integrations.torchtitan import UndauntedTrainerMixin  # 1


class Trainer(UndauntedTrainerMixin, trainer.Trainer):  # 2
    """In place of torchtitan's."""


def small() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("debugmodel"),
        hf_assets_path="assets",
        loss=CrossEntropyLoss.Config(),
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=64, steps=24),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4_test", dataset_path="data"),
        checkpoint=CheckpointManager.Config(
            enable=True,
            interval=5,
            last_save_model_only=False,  # 3
        ),
        debug=DebugConfig(seed=1),
    )
