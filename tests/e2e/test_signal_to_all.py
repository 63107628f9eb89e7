"""Every process of a job gets the signal to stop, in any order, within two seconds.

`SIGNALLED_SAMPLES=200 pytest tests/e2e/test_signal_to_all.py` tries so many, from seed
`SIGNALLED_SEED` on, with the programs that `SIGNALLED_PROGRAMS` names: those of frameworks, too
("accelerate transformers lightning torchtitan"), where these are installed. With
`SIGNALLED_IN_EVALUATION=1` the signal comes in an evaluation that would not end.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launcher import DEADLINE_S, launched, nodes_of_a_job, wait_until_gone

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("no_compiler")]

SAMPLES = int(os.environ.get("SIGNALLED_SAMPLES", "0"))
FIRST = int(os.environ.get("SIGNALLED_SEED", "0"))
NAMES = os.environ.get("SIGNALLED_PROGRAMS", "none handler flag session").split()
TORCHTITAN = Path(__file__).parents[1] / "integrations" / "torchtitan"
IN_EVALUATION = os.environ.get("SIGNALLED_IN_EVALUATION") == "1"
LONGEST_S = 1.9  # from the first process to the last one
# A rank reads each of its batches from each of its workers.
SCRIPT = """
    import contextlib, multiprocessing, os, sys

    EVALUATES = "evaluates" in sys.argv

    def serve(connection):
        with contextlib.suppress(EOFError, OSError):  # the rank has ended
            while True:
                connection.send(connection.recv())

    class Batches:
        def __init__(self, workers, method):
            context = multiprocessing.get_context(method)
            self.ends = []
            for _ in range(workers):
                ours, theirs = context.Pipe()
                context.Process(target=serve, args=(theirs,), daemon=True).start()
                theirs.close()
                self.ends.append(ours)

        def next(self, step):
            for end in self.ends:
                end.send(step)
                assert end.recv() == step

    def begun(step):
        if step == 5:
            os.write(1, b"begun\\n")

    def saved(step):
        os.write(1, f"saved {step}\\n".encode())

    def main():
        import signal, time, undaunted
        batches = Batches(int(sys.argv[1]), sys.argv[2])
        for step in range(100000):
            begun(step)
            undaunted.step(step)
            batches.next(step)
            time.sleep(0.005)
            after(step)

    def session():
        import time
        from undaunted.training import Session
        with Session(save=saved) as session:
            batches = Batches(int(sys.argv[1]), sys.argv[2])
            for step in range(100000):
                if not EVALUATES:
                    begun(step)
                with session.step(step):
                    batches.next(step)
                    time.sleep(0.005)
                if EVALUATES and step == 2:
                    for batch in session.evaluating(range(100000)):
                        begun(batch)
                        batches.next(batch)
                        time.sleep(0.005)
                if session.should_stop(step):
                    break
        sys.exit(session.exit_code)
"""
PROGRAMS = {
    "none": """
    def after(step):
        pass

    if __name__ == "__main__":
        main()
""",
    "handler": """
    def after(step):
        pass

    told = []
    rank = os.getpid()

    def leave(*_):
        if not told:
            told.append(1)
            if os.getpid() == rank:  # forked workers have the handler, too
                saved("")
            sys.exit(1)

    if __name__ == "__main__":
        import signal
        signal.signal(signal.SIGTERM, leave)
        main()
""",
    "flag": """
    told = []

    def after(step):
        if told:
            saved("")
            for worker in multiprocessing.active_children():
                worker.kill()  # forked ones have the handler, and would not end by SIGTERM
            sys.exit(1)

    if __name__ == "__main__":
        import signal
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        main()
""",
    "session": """
    if __name__ == "__main__":
        session()
""",
}

# Their loaders begin workers by the method that is the process's.
FRAMEWORK = """
    import logging, multiprocessing, os, sys, warnings
    warnings.filterwarnings("ignore")
    import torch

    WORKERS = int(sys.argv[1])
    steps = 0

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4_000_000

        def __getitem__(self, index):
            return {"x": torch.full((4,), float(index)), "labels": torch.ones(1)}

    def begun():
        global steps
        steps += 1
        if steps == 6:
            os.write(1, b"begun\\n")

    def saved(step):
        os.write(1, f"saved {step}\\n".encode())
"""
PROGRAMS |= {
    "accelerate": FRAMEWORK
    + """
    def main():
        from accelerate import Accelerator
        from undaunted.training import Session
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(4, 1)
        data = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=WORKERS)
        optimizer = torch.optim.AdamW(model.parameters())
        held_out = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=WORKERS)
        model, optimizer, data, held_out = accelerator.prepare(model, optimizer, data, held_out)
        def save(step):
            accelerator.save_state(f"states/{step}")
            accelerator.wait_for_everyone()
            saved(step)
        with Session(save=save) as session:
            for step, batch in enumerate(data):
                with session.step(step):
                    accelerator.backward(model(batch["x"]).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                if EVALUATES and step == 2:
                    for batch in session.evaluating(held_out):
                        begun()
                elif not EVALUATES:
                    begun()
                if session.should_stop(step):
                    break
        sys.exit(session.exit_code)

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[2])
        main()
""",
    "transformers": FRAMEWORK
    + """
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(4, 1)

        def forward(self, x, labels=None):
            found = self.line(x)
            return {"loss": found.square().mean(), "logits": found}

    def main():
        import transformers
        from undaunted.integrations.transformers import UndauntedCallback

        class Says(transformers.TrainerCallback):
            def on_step_end(self, *_, **__):
                if not EVALUATES:
                    begun()

            def on_prediction_step(self, *_, **__):
                begun()

            def on_save(self, args, state, control, **_):
                saved(state.global_step)

        args = transformers.TrainingArguments(
            "out", report_to="none", disable_tqdm=True, use_cpu=True, max_steps=1_000_000,
            save_strategy="no", logging_strategy="no", dataloader_num_workers=WORKERS,
            eval_strategy="steps" if EVALUATES else "no", eval_steps=3,
        )
        callbacks = [Says(), UndauntedCallback()]
        transformers.Trainer(
            Model(), args, train_dataset=Data(), eval_dataset=Data(), callbacks=callbacks
        ).train()

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[2])
        main()
""",
    "lightning": FRAMEWORK
    + """
    def main():
        import lightning as L
        from undaunted.integrations.lightning import UndauntedCallback
        logging.getLogger("lightning.pytorch").setLevel("ERROR")

        class Model(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.line = torch.nn.Linear(4, 1)

            def training_step(self, batch, _):
                return self.line(batch["x"]).square().mean()

            def validation_step(self, batch, _):
                self.line(batch["x"])

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())

        class Says(L.Callback):
            def on_train_batch_end(self, *_):
                if not EVALUATES:
                    begun()

            def on_validation_batch_end(self, *_):
                begun()

            def on_save_checkpoint(self, trainer, *_):
                saved(trainer.global_step)

        trainer = L.Trainer(
            max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            callbacks=[Says(), UndauntedCallback("checkpoints")], num_sanity_val_steps=0,
            val_check_interval=3,
        )
        data, held_out = (
            torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=WORKERS)
            for _ in range(2)
        )
        trainer.fit(Model(), data, *[held_out] * EVALUATES)

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[2])
        main()
""",
    # Configured by a module of its own; what it saves is written by all ranks.
    "torchtitan": """
    import multiprocessing, os, sys

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[2])
        WORKERS = int(sys.argv[1])
        import on_cpu
        import tiny
        from undaunted.integrations.torchtitan import UndauntedTrainerMixin

        class Says(tiny.trainer.Trainer):
            def train_step(self, data):
                super().train_step(data)
                if self.step == 6:
                    os.write(1, b"begun\\n")

            def close(self):
                os.write(1, f"saved {self.step}\\n".encode())
                super().close()

        class Trainer(UndauntedTrainerMixin, Says):
            pass

        def endless():
            import dataclasses
            fields = dataclasses.fields(tiny.tiny())
            given = {field.name: getattr(tiny.tiny(), field.name) for field in fields}
            config = Trainer.Config(**given)
            config.training.steps = 1_000_000
            config.checkpoint.interval = 1_000_000
            config.validator.enable = False
            config.dataloader.num_workers = WORKERS
            return config

        tiny.endless = endless
        sys.argv[1:] = ["--module", "tiny", "--config", "endless"]
        from torchtitan.train import main
        main()
""",
}
EVALUATING = {"session", "accelerate", "transformers", "lightning"}
LIBRARIES = {"accelerate", "transformers", "lightning", "torchtitan"}


class Case:
    """What a seed stands for."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        choose = self.random.choice
        self.program = choose(NAMES)
        self.workers = choose(["0", "2"])
        self.method = choose(["fork", "forkserver"])
        self.restarts = choose(["0", "3"])
        self.order = choose(["ranks first", "launcher first", "random"])
        self.gap_s = choose([0.0, 0.02, 0.2, LONGEST_S])
        self.start = choose(["warm", "fresh"])

    def __repr__(self) -> str:
        return ", ".join(
            f"{name} {value}" for name, value in vars(self).items() if name != "random"
        )

    def signal_all(self, launcher: int) -> None:
        """Send SIGTERM to all processes, from one of them to another one with a gap."""
        pids = [launcher, *_below(launcher)]
        if self.order == "random":
            self.random.shuffle(pids)
        elif self.order == "ranks first":
            pids.reverse()
        moments = sorted(self.random.uniform(0, self.gap_s) for _ in pids)
        began = time.monotonic()
        for pid, moment in zip(pids, moments, strict=True):
            time.sleep(max(0.0, began + moment - time.monotonic()))  # the gap is what is tested
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def _below(pid: int) -> list[int]:
    """Processes below another one, of which some may have ended: they are children of ours."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_below(child)]
    return found


# Two ranks, each on a node, that wait for each other; the end of one is an exception in the other.
PEERS = """
    import os, socket, time
    with socket.socket(socket.AF_UNIX) as sock:
        if os.environ["RANK"] == "0":
            sock.bind("meet" + os.environ["TORCHELASTIC_RESTART_COUNT"])
            sock.listen()
            peer = sock.accept()[0]
        else:
            peer = sock
            while peer.connect_ex("meet" + os.environ["TORCHELASTIC_RESTART_COUNT"]):
                time.sleep(0.01)
        os.write(1, f"begun {os.getpid()}\\n".encode())
        peer.recv(1)
        raise RuntimeError("Connection closed by peer")
"""


# Among them each program, with workers and without, and each order; one in an evaluation.
@pytest.mark.timeout(400)  # programs of frameworks begin slowly
@pytest.mark.parametrize(
    ("seed", "evaluates"),
    [(seed, IN_EVALUATION) for seed in range(FIRST, FIRST + SAMPLES)]
    or [*((seed, False) for seed in (0, 4, 5, 10, 12, 46, 58)), (0, True)],
)
def test_all_ranks_save_and_nothing_has_crashed(tmp_path: Path, seed: int, evaluates: bool) -> None:
    case = Case(seed)
    if evaluates and case.program not in EVALUATING:
        case.program = "session"
    script = SCRIPT + PROGRAMS[case.program]
    options = ("--nproc-per-node", "2", "--max-restarts", case.restarts)
    options += ("--worker-start", case.start)
    env: dict[str, str] = {}
    if case.program in LIBRARIES:
        pytest.importorskip(case.program)
        env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    if case.program == "torchtitan":
        from tests.integrations.torchtitan.test_torchtitan import write_texts

        write_texts(tmp_path)
        env |= {"PYTHONPATH": f"{TORCHTITAN}:{env['PYTHONPATH']}", "HF_HOME": str(tmp_path / "hf")}
    words = (case.workers, case.method, *["evaluates"] * evaluates)
    with launched(tmp_path, script, *options, args=words, **env) as launcher:
        for _ in range(2):
            launcher.wait_for_next("^begun$", 3 * DEADLINE_S)
        case.signal_all(launcher.process.pid)
        assert launcher.finish(2 * DEADLINE_S) == 75, f"{case}\n{launcher.text}"
        events = launcher.events()
    kinds = [event["event"] for event in events]
    about = f"{case}\n{launcher.text}"
    assert kinds.count("round_started") == 1, about
    assert not {"failure_detected", "verdict"}.intersection(kinds), about
    assert "Traceback" not in launcher.text, about
    saves = [line for line in launcher.text.splitlines() if line.startswith("saved")]
    assert len(saves) == (0 if case.program == "none" else 2), about
    assert len(set(saves)) < 2, about
    assert not saves or "need have saved" not in launcher.text, about


# As NCCL ends a rank; gloo raises.
ABORTS = """print("what():  NCCL error: remote process exited or there was a network error, "
            "NCCL version 2.27", file=__import__("sys").stderr, flush=True)
        os.abort()"""


@pytest.mark.parametrize("order", ["launcher first", "rank first"])
@pytest.mark.parametrize("ends", ["raises", "aborts"])
def test_a_rank_that_loses_its_peer_on_another_node_has_not_crashed(
    tmp_path: Path, order: str, ends: str
) -> None:
    raises = 'raise RuntimeError("Connection closed by peer")'
    script = PEERS if ends == "raises" else PEERS.replace(raises, ABORTS)
    options = ("--nnodes", "2", "--max-restarts", "3", "--tee", "3")
    with nodes_of_a_job(tmp_path, script, *options) as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        ranks = [int(each.wait_for(r"begun (\d+)")[1]) for each in (one, two)]
        if order == "launcher first":
            one.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            os.kill(ranks[0], signal.SIGTERM)
        assert wait_until_gone(ranks, DEADLINE_S) == []
        for each in (one, two):
            each.process.send_signal(signal.SIGTERM)
        assert (one.finish(), two.finish()) == (75, 75), one.text + two.text
        _has_not_crashed(tmp_path, one.text + two.text)


# A loop has the descriptor by which the agent hears of signals; the program ends with a code.
LOOP = """
    import asyncio, os, signal, sys

    async def main():
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        os.write(1, f"begun {os.getpid()}\\n".encode())
        await told.wait()

    asyncio.run(main())
    sys.exit(1)
"""


def test_ranks_that_hear_signals_in_a_loop_have_not_crashed(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "3")
    with launched(tmp_path, LOOP, *options) as launcher:
        ranks = [int(launcher.wait_for_next(r"^begun (\d+)$")[1]) for _ in range(2)]
        for pid in ranks:
            os.kill(pid, signal.SIGTERM)
        assert wait_until_gone(ranks, DEADLINE_S) == []
        launcher.process.send_signal(signal.SIGTERM)
        assert launcher.finish() == 75, launcher.text
    _has_not_crashed(tmp_path, launcher.text, nodes=1)


# The first step waits for a compiler, here one of a few lines.
COMPILES = """
    import os, subprocess, sys
    from undaunted.training import Session

    def save(step):
        os.write(1, f"saved {step}\\n".encode())

    with Session(save=save) as session:
        for step in range(100000):
            with session.step(step):
                if step == 0:
                    subprocess.run(["./g++", "-O3"], check=True)
            if session.should_stop(step):
                break
    sys.exit(session.exit_code)
"""
COMPILER = """#!/usr/bin/env bash
echo compiles
until test -e told; do sleep 0.01; done
"""


def test_a_stop_while_the_first_step_compiles_waits_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "g++").write_text(COMPILER)
    (tmp_path / "g++").chmod(0o755)
    with launched(tmp_path, COMPILES, "--nproc-per-node", "2") as launcher:
        for _ in range(2):
            launcher.wait_for_next("^compiles$", 2 * DEADLINE_S)
        pids = [launcher.process.pid, *_below(launcher.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # `sleep` of the compiler
                os.kill(pid, signal.SIGTERM)
        launcher.wait_for("received SIGTERM")
        (tmp_path / "told").touch()
        assert launcher.finish() == 75, launcher.text
    assert re.findall("saved .*", launcher.text) == ["saved 0", "saved 0"], launcher.text
    _has_not_crashed(tmp_path, launcher.text, nodes=1)


def test_a_crash_on_another_node_is_told_of_at_once(tmp_path: Path) -> None:
    """Though a rank here has lost its peer, which might have got a signal."""
    with nodes_of_a_job(tmp_path, PEERS, "--nnodes", "2", "--max-restarts", "3") as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        ranks = [int(each.wait_for(r"begun (\d+)")[1]) for each in (one, two)]
        os.kill(ranks[0], signal.SIGKILL)
        for each in (one, two):
            each.wait_for_next("begun")
            each.process.send_signal(signal.SIGTERM)
        assert (one.finish(), two.finish()) == (75, 75), one.text + two.text
        events = _events(tmp_path)
    (verdict,) = [each for each in events if each["event"] == "verdict" and each["rank"] == 0]
    assert verdict["signal"] == "SIGKILL"
    (blamed, *_) = [each for each in events if each["event"] == "round_blamed"]
    assert (blamed["node"], blamed["victims"]) == ("one", ["two"])


def _events(tmp_path: Path) -> list[dict[str, Any]]:
    journals = (tmp_path / "run").glob("journal-*.jsonl")
    return [json.loads(line) for path in journals for line in path.read_text().splitlines()]


def _has_not_crashed(tmp_path: Path, text: str, nodes: int = 2) -> None:
    kinds = [event["event"] for event in _events(tmp_path)]
    assert not {"failure_detected", "verdict", "round_blamed"}.intersection(kinds), text
    assert kinds.count("round_started") == nodes, text
    assert "while all ranks were to stop" not in text
