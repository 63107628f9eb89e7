"""Starts a rank monitor as a separate program: nothing of the caller is forked."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nvidia_resiliency_ext.fault_tolerance._rank_monitor.settings import settings_of
from undaunted.base.process import code_command, wait_readable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.fault_tolerance.config import FaultToleranceConfig

INIT_TIMEOUT_S = 180.0
_LONGEST_REASON = 1000
# Our own package may lie where this process alone looks for it.
_PLACE = str(Path(__file__).parents[3])
_PROGRAM = (
    "sys.path.append(sys.argv.pop(1)); "
    "from nvidia_resiliency_ext.fault_tolerance._rank_monitor.server import main; sys.exit(main())"
)


class RankMonitorProcess:
    """The process of a rank monitor, with the methods of `multiprocessing.Process`.

    It ends with the process that started it, or by `terminate`.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.name = f"rank-monitor-{process.pid}"

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal that ended it; None while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for ``timeout`` seconds at most; None = without a limit."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return

    def terminate(self) -> None:
        """Tell it to end (SIGTERM)."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self._process.kill()

    def close(self) -> None:
        """Do nothing: nothing is held once it has been joined."""


def start(
    cfg: FaultToleranceConfig,
    path: str,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = INIT_TIMEOUT_S,
) -> RankMonitorProcess:
    """Start a rank monitor, and return once ranks can connect.

    Args:
        cfg: what it holds its rank to.
        path: of its Unix socket; an old socket there is replaced.
        env: its environment, None = this process's.
        timeout_s: how long to wait for it, seconds.

    Raises:
        RuntimeError: it could not start; the text says why.
        OSError: the machine refused a process.
    """
    settings = msgspec.json.encode(settings_of(cfg, os.path.abspath(path), os.getpid()))  # noqa: PTH100
    ready, ready_of_child = os.pipe()
    try:
        process = subprocess.Popen(
            code_command(_PROGRAM, _PLACE, str(ready_of_child)),
            stdin=subprocess.PIPE,
            env=env,
            pass_fds=[ready_of_child],
            start_new_session=True,  # Ctrl-C in a terminal is for the training
        )
    except BaseException:
        os.close(ready)
        raise
    finally:
        os.close(ready_of_child)
    try:
        _hand_over(process, settings)
        said = os.read(ready, _LONGEST_REASON) if wait_readable(ready, timeout_s) else b""
    finally:
        os.close(ready)
    if said == b"+":
        return RankMonitorProcess(process)
    process.kill()
    process.wait()
    why = said.decode(errors="replace") or f"it was not ready within {timeout_s:g} s, or has ended"
    raise RuntimeError(f"the rank monitor at {path} did not start: {why}")


def _hand_over(process: subprocess.Popen[bytes], settings: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(settings)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has ended, which the pipe tells
