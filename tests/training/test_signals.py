from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from undaunted.training.signals import Signals, ignore_stop_signals, signal_number


@pytest.fixture
def signals():
    made = Signals(["USR1"], lambda: seen.append(1))
    seen: list[int] = []
    assert made.install()
    yield made, seen
    made.restore()


def test_names():
    assert signal_number("TERM") == signal_number("SIGTERM") == signal.SIGTERM
    for name in ("SIGKILL", "STOP", "SIG_DFL", "getsignal", "", "term"):
        with pytest.raises(ValueError, match="SIGTERM, for example"):
            signal_number(name)


@pytest.mark.parametrize("keep", [False, True])
def test_a_forked_child_ends_by_a_signal_unless_it_is_to_live(signals, *, keep):
    """As pools end their workers."""
    _, seen = signals
    number = signal.SIGTERM if keep else signal.SIGUSR1
    pid = os.fork()
    if pid == 0:
        if keep:
            ignore_stop_signals(3)
        os.kill(os.getpid(), number)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (5 if keep else -number)
    assert seen == []


def test_a_handler_that_somebody_has_set_since_then_stays(signals):
    made, _ = signals

    def theirs(*_):
        pass

    signal.signal(signal.SIGUSR1, theirs)
    made.restore()
    assert signal.getsignal(signal.SIGUSR1) is theirs
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def test_in_a_side_thread_nothing_is_installed():
    answers = []
    for names in (["USR1"], []):
        made = Signals(names, lambda: None)
        thread = threading.Thread(target=lambda made=made: answers.append(made.install()))
        thread.start()
        thread.join()
    assert answers == [False, True]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


LOADER = """
import torch
from torch.utils.data import DataLoader
from undaunted.training import Session, ignore_stop_signals
loader = DataLoader(
    torch.arange(10000), batch_size=4, num_workers=2, persistent_workers={persistent},
    worker_init_fn=ignore_stop_signals,
)
batches = iter(loader)
with Session() as session:
    for step in range(5):
        with session.step(step):
            next(batches)
"""


@pytest.mark.torch
@pytest.mark.parametrize("persistent", [False, True])
def test_a_program_whose_workers_ignore_the_signal_ends_without_a_word(tmp_path, persistent):
    script = LOADER.format(persistent=persistent)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, cwd=tmp_path
    )
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    assert "killed by signal" not in ended.stderr


SIGNALLED = """
import multiprocessing, subprocess, sys
import torch
from torch.utils.data import DataLoader
from undaunted.training import Session

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return index * index

def loader(persistent):
    return DataLoader(
        Squares(),
        num_workers=2,
        multiprocessing_context=sys.argv[1],
        persistent_workers=persistent,
    )

def signalled(batches):
    first = next(batches)
    for worker in multiprocessing.active_children():
        subprocess.run(["kill", str(worker.pid)], check=True)
    return first

if __name__ == "__main__":
    with Session() as session:
        kept = loader(True)
        for epoch in range(2):
            batches = iter(kept)
            with session.step(epoch):
                first = signalled(batches)
                rest = list(batches)
            print(len([first, *rest]))
        with session.step(2):
            left = iter(loader(False))  # its workers are ended by nobody before the program's end
            first = signalled(left)
            print(len([first, *[next(left) for _ in range(30)]]))
"""


@pytest.mark.torch
@pytest.mark.timeout(240)  # up to five processes import torch
@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(each, marks=pytest.mark.slow) for each in ("spawn", "forkserver"))],
)
def test_workers_of_a_loader_outlive_a_signal_to_all_processes(tmp_path, method):
    (tmp_path / "program.py").write_text(SIGNALLED)
    ended = subprocess.run(
        [sys.executable, "program.py", method],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["40", "40", "31"]
    assert "Traceback" not in ended.stderr
