"""A load that is interrupted leaves nobody behind who still reads: memory may have new owners."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from undaunted.checkpointing import Checkpointer, SaveError  # noqa: E402
from undaunted.checkpointing.files import direct  # noqa: E402
from undaunted.checkpointing.local.basic_state_dict import (  # noqa: E402
    BasicTensorAwareStateDict,
)
from undaunted.checkpointing.local.ckpt_managers.local_manager import (  # noqa: E402
    LocalCheckpointManager,
)
from undaunted.checkpointing.memory.copy import memory_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch

DEADLINE_S = 60
# For a load that returns although a thread still reads. One that waits takes this long.
TOO_EARLY_S = 0.5


class Interrupted(BaseException):
    """What the handler of the signal raises."""


def interrupt(*_: object) -> None:
    raise Interrupted


class SlowFiles:
    """Threads that read are slow, and each interrupts the main thread twice meanwhile."""

    def __init__(self) -> None:
        self.reading = 0  # threads other than the main one
        self.returned = threading.Event()  # the load
        self._read = direct.FILES.read
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._interrupted = threading.Semaphore(0)

    def raised(self, *_: object) -> None:
        self._interrupted.release()
        raise Interrupted

    def _interrupt(self) -> None:
        """Again where Python has seen the signal only when it had begun to wait."""
        until = time.monotonic() + DEADLINE_S
        os.kill(os.getpid(), signal.SIGUSR1)
        while not self._interrupted.acquire(timeout=1):
            assert time.monotonic() < until
            os.kill(os.getpid(), signal.SIGUSR1)

    def read(self, *arguments: object) -> int:
        if threading.current_thread() is threading.main_thread():
            if any(thread.name == "undaunted-read" for thread in threading.enumerate()):
                assert self._begun.wait(DEADLINE_S)
            return self._read(*arguments)
        with self._lock:
            self.reading += 1
        self._begun.set()
        for _ in range(2):
            with self._lock:
                self._interrupt()
        self.returned.wait(TOO_EARLY_S)
        try:
            return self._read(*arguments)
        finally:
            with self._lock:
                self.reading -= 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], SlowFiles]]:
    files = SlowFiles()
    before = signal.signal(signal.SIGUSR1, files.raised)

    def begin() -> SlowFiles:
        monkeypatch.setattr(direct.FILES, "read", files.read)
        return files

    yield begin
    signal.signal(signal.SIGUSR1, before)


def close_lost(folder: Path) -> None:
    """Close files whose numbers Python has lost: the interruption came as open() returned."""
    gc.collect()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith(str(folder)):
                os.close(int(number))


def tensors(value: float) -> list[torch.Tensor]:
    return [torch.full((1 << 20,), value) for _ in range(24)]


@pytest.mark.parametrize("kind", ["global", "local"])
def test_no_thread_reads_on_after_interruptions(
    tmp_path: Path, slow: Callable[[], SlowFiles], kind: str
) -> None:
    if kind == "global":
        opened = Checkpointer(tmp_path / "c", timeout=DEADLINE_S)
        opened.save(1, {"w": tensors(1.0)})
        opened.wait()
        load = lambda: opened.load({"w": tensors(0.0)})  # noqa: E731
    else:
        opened = LocalCheckpointManager(tmp_path / "l", "s")
        opened.save(BasicTensorAwareStateDict({"w": tensors(1.0)}), 1)
        opened.find_latest()
        load = opened.load
    files = slow()
    try:
        with pytest.raises(Interrupted):
            load()
    except Interrupted:
        pass
    assert files.reading == 0
    files.returned.set()
    opened.close() if kind == "local" else opened.abort()
    close_lost(tmp_path)


def test_an_abort_ends_the_reading_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpointer(tmp_path / "c", timeout=DEADLINE_S)
    checkpoints.save(1, {"w": tensors(1.0)})
    checkpoints.wait()
    begun, aborted, real = threading.Event(), threading.Event(), direct.FILES.read
    blocks = []

    def read(*arguments: object) -> int:
        if threading.current_thread() is not reader or begun.is_set():
            begun.set()
            assert aborted.wait(DEADLINE_S)
            blocks.append(arguments)
        return real(*arguments)

    failures = []

    def load() -> None:
        try:
            checkpoints.load({"w": tensors(0.0)})
        except SaveError as error:
            failures.append(error)

    reader = threading.Thread(target=load)
    monkeypatch.setattr(direct.FILES, "read", read)
    reader.start()
    assert begun.wait(DEADLINE_S)
    checkpoints.abort()
    aborted.set()
    reader.join(DEADLINE_S)
    assert not reader.is_alive()
    assert failures
    assert len(blocks) < 12


# An interruption in a finaliser is not raised by Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_a_load_that_is_interrupted_at_any_moment_leaves_memory_alone(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one loads all of it."""
    reading: set[int] = set()
    real = direct.FILES.read

    def read(*arguments: object) -> int:
        if threading.current_thread() is threading.main_thread():
            return real(*arguments)
        reading.add(threading.get_ident())
        try:
            return real(*arguments)
        finally:
            reading.discard(threading.get_ident())

    monkeypatch.setattr(direct.FILES, "read", read)
    moments = random.Random(seed)
    with Checkpointer(tmp_path / "c", timeout=DEADLINE_S) as checkpoints:
        checkpoints.save(1, {"w": tensors(1.0)})
        checkpoints.wait()
        began = time.monotonic()
        checkpoints.load({"w": tensors(0.0)})
        takes = time.monotonic() - began
    before = signal.signal(signal.SIGUSR1, interrupt)

    def send() -> None:
        for _ in range(moments.randint(1, 3)):
            time.sleep(moments.uniform(0, takes))  # the moment itself
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    checkpoints = Checkpointer(tmp_path / "c", timeout=DEADLINE_S)
    try:
        for _ in range(4):  # one more than interruptions
            with contextlib.suppress(Interrupted):
                if sender.ident is None:
                    sender.start()
                while sender.is_alive():
                    checkpoints.load({"w": tensors(0.0)})
            with contextlib.suppress(Interrupted):
                assert not reading
    finally:
        sender.join(DEADLINE_S)
        signal.signal(signal.SIGUSR1, before)
    assert not reading
    fresh = tensors(7.0)  # where the others were
    checkpoints.abort()
    assert all(bool((one == 7).all()) for one in fresh)
    with Checkpointer(tmp_path / "c", timeout=DEADLINE_S) as again:
        assert again.load({"w": fresh}) == 1
    assert all(bool((one == 1).all()) for one in fresh)
    close_lost(tmp_path)


@pytest.mark.parametrize("replaced", [False, True])
def test_memory_that_is_filled_outlives_its_tensor(replaced: bool) -> None:
    tensor = torch.zeros(64 << 20, dtype=torch.uint8)  # so large that the system gets it back
    memory = memory_of(tensor)[1 << 20 :]
    if replaced:
        tensor.data = torch.zeros(1, dtype=torch.uint8)
    else:
        del tensor
    gc.collect()
    memory[:4] = b"read"
    assert bytes(memory[:5]) == b"read\0"
