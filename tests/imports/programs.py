"""Imports of programs as users write them, by environment: those that the table is checked with."""

from __future__ import annotations

PROGRAMS = {
    "lightning": (
        "import lightning as L",
        "from lightning.pytorch import LightningModule, Trainer",
        "from lightning.pytorch.callbacks import ModelCheckpoint",
        "from lightning.pytorch.plugins.io import TorchCheckpointIO",
        "from lightning.fabric import Fabric",
        "import torchmetrics, torchdata.stateful_dataloader",
    ),
    "transformers": (
        "from accelerate import Accelerator",
        "from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments",
        "from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed",
    ),
    "jobs": (
        "from accelerate import Accelerator",
        "import datasets, pandas",
        "import timm, timm.optim, timm.scheduler",
        "from torchvision.models import resnet18",
        "from torchvision.transforms import v2",
        "from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments",
        "from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM",
        "from transformers import ViTConfig, ViTForImageClassification",
        "from peft import LoraConfig, get_peft_model",
        "from trl import SFTConfig, SFTTrainer",
        "from diffusers import UNet2DModel, DDPMScheduler",
        "import safetensors.torch",
        "import deepspeed",
        "import lightning as L",
        "import torchmetrics",
        "import pytorch_lightning",
        "import webdataset",
        "import hydra, omegaconf",
        "import wandb",
        "from torch.utils.tensorboard import SummaryWriter",
        "import ignite.distributed, ignite.engine",
        "from torchdata.stateful_dataloader import StatefulDataLoader",
    ),
    "torchtitan": (
        "import torchtitan.train",
        "from torchtitan.models.llama3 import model_registry, parallelize_llama",
    ),
    "megatron": (
        "from megatron.core import parallel_state, tensor_parallel",
        "from megatron.core.models.gpt.gpt_model import GPTModel",
        "from megatron.core.transformer.transformer_config import TransformerConfig",
    ),
}
