"""A signal is kept until the loop asks; with several ranks in tests/e2e/test_megatron.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.integrations.megatron.signals import DistributedSignalHandler
from undaunted.progress import writer as writer_module
from undaunted.progress.area import PageArea

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before
    if isinstance(writer_module.current, writer_module.PageWriter):
        writer_module.current.detach()
    writer_module.current = writer_module._NotYet()


def kill(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_is_received(capfd: pytest.CaptureFixture[str]) -> None:
    with DistributedSignalHandler() as handler:
        assert handler.signals_received() == [False]
        kill()
        assert handler.signals_received() == [True]
        assert handler.signals_received() == [True]
    assert capfd.readouterr().out.splitlines() == [
        "Signal handler installed for 15",
        "Received signal 15, initiating graceful stop",
    ]


def test_another_signal(capfd: pytest.CaptureFixture[str]) -> None:
    with DistributedSignalHandler(signal.SIGUSR1) as handler:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        kill(signal.SIGUSR1)
        assert handler.signals_received() == [True]


def test_it_is_not_installed_before_it_is_entered() -> None:
    """Megatron Bridge took SIGTERM although the handler was switched off (its PR 5068)."""
    before = signal.getsignal(signal.SIGTERM)
    handler = DistributedSignalHandler()
    assert signal.getsignal(signal.SIGTERM) is before
    assert handler.signals_received() == [False], "and it can be asked (Megatron-LM could not)"
    assert not handler.release()


def test_the_handler_from_before_comes_back() -> None:
    """Megatron Bridge left its own one behind (its PR 5975)."""

    def theirs(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with DistributedSignalHandler() as handler:
            assert signal.getsignal(signal.SIGTERM) is not theirs
        assert signal.getsignal(signal.SIGTERM) is theirs
        with pytest.raises(RuntimeError), handler:
            raise RuntimeError
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)


def test_it_is_released_once_and_can_be_entered_again() -> None:
    handler = DistributedSignalHandler().__enter__()
    kill()
    assert handler.release()
    assert not handler.release()
    with handler:
        assert handler.signals_received() == [False]
        kill()
        assert handler.signals_received() == [True]


def test_entered_twice_it_puts_back_the_handler_from_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with DistributedSignalHandler() as handler, handler:
        kill()
        assert handler.signals_received() == [True]
    assert signal.getsignal(signal.SIGTERM) == before


def test_in_a_side_thread_it_is_said_that_nothing_is_installed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[object] = []

    def side() -> None:
        with DistributedSignalHandler() as handler:
            answers.extend(handler.signals_received())

    thread = threading.Thread(target=side)
    thread.start()
    thread.join()
    assert answers == [False]
    assert caplog.text.count("no handler of signal 15 can be installed") == 1


def test_a_worker_of_a_data_loader_lives_on() -> None:
    """With ``exit_signal_handler_for_dataloader`` each of them enters a handler of its own."""
    with DistributedSignalHandler() as handler:
        pid = os.fork()
        if pid == 0:
            worker = DistributedSignalHandler().__enter__()
            kill()
            os._exit(5 if worker.signals_received() == [True] else 6)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        assert handler.signals_received() == [False]


WITH_A_WORKER = """
import multiprocessing, signal, sys, time
from undaunted.integrations.megatron.signals import DistributedSignalHandler
from undaunted.training import ignore_stop_signals

def work(ready):
    if sys.argv[1] == "ignores":
        ignore_stop_signals()
    else:
        DistributedSignalHandler().__enter__()
    ready.set()
    while True:
        time.sleep(60)

ready = multiprocessing.get_context("fork").Event()
worker = multiprocessing.get_context("fork").Process(target=work, args=(ready,), daemon=True)
worker.start()
ready.wait()
with DistributedSignalHandler():
    pass
print(worker.pid)
"""


@pytest.mark.parametrize("how", ["ignores", "handles"])
def test_a_process_ends_whose_workers_live_on_after_sigterm(how: str) -> None:
    """At exit `multiprocessing` sends them SIGTERM, and waits without a limit."""
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_WORKER, how], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    worker = int(done.stdout.split()[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@pytest.mark.parametrize("number", [0, 1000, signal.SIGKILL])
def test_what_is_no_signal(number: int) -> None:
    with pytest.raises(ValueError, match=r"signal.*SIGTERM, for example"):
        DistributedSignalHandler(number)


def test_the_launcher_is_told_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with PageArea.create(1) as area:
        monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
        monkeypatch.setenv("WORLD_SIZE", "3")
        with DistributedSignalHandler() as handler:
            assert area.asks(0)
            assert handler.signals_received() == [False] * 3
            kill()
            wish = area.snapshot(0).wish
            assert wish is not None
            assert wish.why == "preempted"
            assert handler.signals_received() == [False] * 3, "nobody has answered yet"
            area.stop_after(3, "preempted")
            answers = [handler.signals_received() for _ in range(3)]
            assert answers == [[False] * 3, [True] * 3, [True] * 3]
        assert area.asks(0), "it has stopped as agreed, which the launcher is to know"


def test_the_launcher_signals_a_rank_that_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with PageArea.create(1) as area:
        monkeypatch.setenv("UNDAUNTED_PAGE", area.env_value(0))
        with DistributedSignalHandler() as handler:
            handler.signals_received()
        assert not area.asks(0)
