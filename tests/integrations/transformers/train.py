"""A script of the `Trainer`: a tiny GPT-2 with dropout, shuffled data, evaluation and saves.

`python train.py FOLDER [name=value ...]`: rank 0 writes a digest of the parameters at the end to
FOLDER/result-0, rank 1 to result-1. What goes wrong, each once: disturb=kill:1:7,hang:0:17 is a
rank and a step each. kill, hang and signal are in a step, signal_evaluation in its second batch,
kill_save is before rank 0 writes the state of the trainer, or rank 1 that of its generators.
after=FILE: a kill waits for this file.
With seen=own rank 1 does not see what rank 0 has saved, as on nodes with disks of their own.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint
from undaunted.progress.writer import current_writer

RANK = int(os.environ.get("RANK", "0"))
FOLDER = Path(sys.argv[1])
GIVEN = dict(word.split("=") for word in sys.argv[2:])
STEPS = int(GIVEN.get("steps", 24))


def wait_for(path):
    while not path.exists():
        time.sleep(0.05)


class Disturbance(TrainerCallback):
    """What goes wrong, each once for a job."""

    def __init__(self):
        self.due = GIVEN.get("disturb", "").split(",")

    def now(self, state, kind):
        what = f"{kind}:{RANK}:{state.global_step}"
        once = FOLDER / f"disturbed-{what}"
        if what not in self.due or once.exists():
            return False
        once.touch()
        return True

    def on_step_begin(self, args, state, control, **kwargs):
        print(f"rank {RANK} step {state.global_step}", flush=True)

    def on_prediction_step(self, args, state, control, **kwargs):
        self.batches = getattr(self, "batches", 0) + 1
        print(f"rank {RANK} evaluates {state.global_step}", flush=True)
        if self.batches == 2 and self.now(state, "signal_evaluation"):
            os.kill(os.getpid(), signal.SIGTERM)
            while not current_writer().stop_word:  # the rest may take less than the answer
                time.sleep(0.002)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if self.now(state, "kill"):
            wait_for(Path(GIVEN.get("after", FOLDER)))
            os.kill(os.getpid(), signal.SIGKILL)
        if self.now(state, "hang"):
            time.sleep(3600)
        if self.now(state, "signal"):
            os.kill(os.getpid(), signal.SIGTERM)


class Killed(Trainer):
    """Killed in a save: the file that says it is whole is torn, or not there."""

    def _save_rng_state(self, output_dir):
        disturbance = next(c for c in self.callback_handler.callbacks if isinstance(c, Disturbance))
        if disturbance.now(self.state, "kill_save"):
            Path(output_dir).mkdir(exist_ok=True)
            name = f"rng_state_{RANK}.pth" if RANK else "trainer_state.json"
            (Path(output_dir) / name).write_text("{")
            time.sleep(0.3 * RANK)  # the other rank comes to its end
            os.kill(os.getpid(), signal.SIGKILL)
        super()._save_rng_state(output_dir)


def main():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    config.bos_token_id = config.eos_token_id = 0
    tokens = torch.randint(0, 32, (96, 8), generator=torch.Generator().manual_seed(2))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    args = TrainingArguments(
        str(FOLDER / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=7,
        per_device_eval_batch_size=1,
        save_steps=5,
        save_total_limit=3,
        logging_steps=50,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Killed(
        GPT2LMHeadModel(config),
        args,
        train_dataset=data,
        eval_dataset=data[:80],
        callbacks=[Disturbance(), UndauntedCallback()],
    )
    own = RANK and GIVEN.get("seen") == "own"
    newest = last_checkpoint(FOLDER / "own" if own else args.output_dir)
    print(f"rank {RANK} goes on from {newest}", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    (FOLDER / f"result-{RANK}").write_text(digest.hexdigest())
    print(f"rank {RANK} is done", flush=True)


main()
