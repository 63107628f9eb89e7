"""A script of the `Trainer` with `LoaderMixin`: dropout, and a sample's random numbers.

`python loader.py FOLDER [name=value ...]`: each rank writes the numbers of the samples of its
micro-batches, and of its step, to FOLDER/samples-RANK, and a digest of the parameters at the end to
FOLDER/result-RANK. kill=RANK:STEP kills a rank once.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.utils.logging import disable_progress_bar

from undaunted.integrations.transformers import LoaderMixin, UndauntedCallback, last_checkpoint

disable_progress_bar()  # its thread stays
RANK = int(os.environ.get("RANK", "0"))


class Samples(torch.utils.data.Dataset):
    """Rows of which a random place is masked."""

    def __init__(self, length=44):
        self.rows = torch.randint(0, 64, (length, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index].clone()
        row[torch.randint(0, 16, ())] = 0
        return {"input_ids": row, "labels": row, "index": index}


class Noting(LoaderMixin, Trainer):
    """Notes which samples it sees."""

    def training_step(self, model, inputs, *args, **options):
        indices = inputs.pop("index").tolist()
        with (Path(self.args.output_dir) / f"samples-{RANK}").open("a") as file:
            file.write(json.dumps([self.state.global_step, indices]) + "\n")
        return super().training_step(model, inputs, *args, **options)


class Kill(TrainerCallback):
    """Kills the process after a step, once."""

    def __init__(self, folder, step):
        self.once, self.step = Path(folder, "killed"), step

    def on_step_end(self, args, state, control, **options):
        if state.global_step == self.step and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def trainer(folder, *, callbacks=(), samples=44, global_batch=8, **settings):
    Path(folder).mkdir(exist_ok=True)
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    settings = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "save_steps": 2,
        "remove_unused_columns": False,
        "dataloader_drop_last": True,
        **settings,
    }
    args = TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=99, **settings
    )
    return Noting(
        GPT2LMHeadModel(config),
        args,
        train_dataset=Samples(samples),
        callbacks=list(callbacks),
        global_batch=global_batch,
    )


def train(folder, **settings):
    """Train, from the newest checkpoint on; return the parameters as bytes."""
    this = trainer(folder, **settings)
    this.train(resume_from_checkpoint=last_checkpoint(folder))
    return b"".join(each.detach().numpy().tobytes() for each in this.model.parameters())


def samples(folder):
    """Return the micro-batches of each step; one that came again, with the same samples, once."""
    steps = {}
    for file in Path(folder).glob("samples-*"):
        for line in file.read_text().splitlines():
            step, indices = json.loads(line)
            steps.setdefault(step, set()).add(tuple(indices))
    return steps


if __name__ == "__main__":
    given = dict(word.split("=") for word in sys.argv[2:])
    rank, _, step = given.get("kill", "-1:0").partition(":")
    kill = [Kill(sys.argv[1], int(step))] if int(rank) == RANK else []
    trained = train(sys.argv[1], callbacks=[*kill, UndauntedCallback()])
    Path(sys.argv[1], f"result-{RANK}").write_text(hashlib.sha256(trained).hexdigest())
