"""The processes of a job: ranks with guards of their own, or ranks under `undaunted run`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.launchers import source_path
from undaunted.base.process import end_descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = Path(__file__).resolve().parents[1] / "workloads" / "inprocess_soak_rank.py"
END_S = 60.0
OUTPUT = 6000  # characters of each log in an error

SIGNALS = {
    "kill": signal.SIGKILL,
    "kill guard": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "continue": signal.SIGCONT,
}


class Processes:
    """Started together; `kill` ends what is left of them."""

    def __init__(self, directory: Path, ranks: int, settings: str, *, launched: bool) -> None:
        """Start them.

        Args:
            directory: of their logs.
            ranks: how many.
            settings: what each is told, JSON.
            launched: by `undaunted run`, which goes on without ranks that are lost.
        """
        self.launched = launched
        self._directory = directory
        command = [str(PROGRAM), settings]
        if launched:
            options = ["--nproc-per-node", str(ranks), "--ft-restart-policy", "min-healthy"]
            options += ["--ft-restart-lost-ranks", "--run-dir", str(directory / "run")]
            command = ["-m", "undaunted.cli.main", "run", *options, *command]
            self._started = [self._start(0, command, {})]
            return
        port = _free_port() - 1
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        self._started = [
            self._start(number, command, {**shared, "RANK": str(number)}) for number in range(ranks)
        ]

    def send(self, pid: int, what: str) -> bool:
        """Do one of `SIGNALS` to a rank, or to its guard; False = there is no such process."""
        if what == "kill guard":
            (number,) = (n for n, rank in enumerate(self._started) if rank.pid == pid)
            pid = int((self._directory / f"guard{number}.pid").read_text())
        try:
            os.kill(pid, SIGNALS[what])
        except ProcessLookupError:
            return False
        return True

    def wait(self, deadline: float) -> Sequence[int]:
        """Return exit codes, by number; where there is a launcher, its."""
        return [each.wait(max(0.1, deadline - time.monotonic())) for each in self._started]

    def end(self) -> str:
        """End them, and return the ends of their logs: where ranks were."""
        for process in self._started:
            process.terminate()
            process.send_signal(signal.SIGCONT)
        return "\n".join(
            f"--- log of {number} ({process.wait(END_S)}):\n"
            + self._log(number).read_text(errors="replace")[-OUTPUT:]
            for number, process in enumerate(self._started)
        )

    def kill(self) -> None:
        """End all that is left."""
        for process in self._started:
            process.kill()
            process.wait()
        end_descendants(END_S)

    def _start(
        self, number: int, command: Sequence[str], more: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            "PYTHONPATH": source_path(),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "FATAL",  # aborts are no news
            **more,
        }
        with self._log(number).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Or the end of a shell may continue stopped ranks: they would be in its session.
                start_new_session=True,
            )

    def _log(self, number: int) -> Path:
        return self._directory / f"{number}.log"


def _free_port() -> int:
    """Return a port that is free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
