"""A checkpoint of Transformers that leads to a loss that is NaN is passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("no_compiler"),
]

OPTIONS = ("--max-restarts", "4", "--preload", "transformers.trainer")
# The newest checkpoint gets a NaN into one weight, then the rank is killed.
TRAINING = """
    import math, os, signal
    import torch
    from safetensors.torch import load_file, save_file
    from torch.utils.data import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback
    from transformers import TrainingArguments
    from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint

    class Texts(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, at):
            ids = torch.randint(0, 100, (32,), generator=torch.Generator().manual_seed(at))
            return {"input_ids": ids, "labels": ids}

    class Check(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if logs and not math.isfinite(float(logs.get("loss", 0))):
                raise FloatingPointError(f"the loss of step {state.global_step} is {logs['loss']}")

        def on_step_end(self, args, state, control, **_):
            if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and state.global_step == 65:
                path = f"{args.output_dir}/checkpoint-60/model.safetensors"
                tensors = load_file(path)
                tensors["transformer.h.0.attn.c_attn.weight"][0, 0] = float("nan")
                save_file(tensors, path, metadata={"format": "pt"})
                os.kill(os.getpid(), signal.SIGKILL)

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=4, max_steps=100, save_steps=20, logging_steps=1,
        logging_nan_inf_filter=False, report_to=[], use_cpu=True, dataloader_num_workers=1,
        disable_tqdm=True,
    )
    callbacks = [UndauntedCallback(), Check()]
    trainer = Trainer(model, arguments, train_dataset=Texts(), callbacks=callbacks)
    start = last_checkpoint("out")
    print("begins at", start, flush=True)
    trainer.train(resume_from_checkpoint=start)
"""


def test_the_one_before_it_is_loaded(tmp_path: Path) -> None:
    with launched(tmp_path, TRAINING, *OPTIONS) as launcher:
        assert launcher.finish(timeout_s=240.0) == 0, launcher.text
        begins = [line.rpartition("/")[2] for line in launcher.seen if "begins at" in line]
    assert begins == ["begins at None", "checkpoint-60", "checkpoint-40"]
    assert "the checkpoint of step 60 is not trusted" in launcher.text
