"""One `undaunted run` of a chaos run: started, watched and ended through its pidfd."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.deadline import readable, wait_for
from undaunted.chaos.nemesis import stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LAUNCHER = process.module_command("undaunted.cli.main", "run")

# How a launcher is ended whose time is up, and how long each signal may take: ranks have to
# stop; a second SIGINT kills them; then the agent is killed, then the launcher.
_ENDING = (
    (signal.SIGTERM, 5.0),
    (signal.SIGINT, 1.5),
    (signal.SIGINT, 10.0),
    (signal.SIGINT, 10.0),
    (signal.SIGKILL, 10.0),
)


class Launcher:
    """A launcher that was started. Its owner awaits `ended`, or calls `end`."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        output: Path,
        namespaces: Sequence[int] = (),
        cwd: Path | None = None,
    ) -> None:
        """Start ``undaunted run`` in another session.

        Args:
            arguments: those after ``undaunted run``.
            environ: its environment.
            output: file that its standard output and error are appended to.
            namespaces: descriptors of namespaces in which it is to run.
            cwd: where; None = where this process is.

        Raises:
            OSError: the output cannot be opened, or the process not be started.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open(output, flags, 0o600)
        try:
            self._process = subprocess.Popen(
                stage.command(os.getpid(), namespaces, [*LAUNCHER, *arguments]),
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                pass_fds=tuple(namespaces),
                start_new_session=True,
            )
        finally:
            os.close(fd)
        pidfd = process.open_pidfd(self._process.pid)
        assert pidfd is not None, "a child of ours exists until it has been waited for"
        self._pidfd = pidfd

    @property
    def pid(self) -> int:
        """Pid of the front."""
        return self._process.pid

    def send(self, number: int) -> bool:
        """Send it a signal; return False if it has ended."""
        return process.signal_pidfd(self._pidfd, number)

    async def ended(self) -> int:
        """Wait for its end, without limit; return the exit code, negative for a signal's."""
        if self._process.returncode is None:
            await readable(self._pidfd, None)
        return self._reap()

    async def end(self) -> int:
        """End it and all its ranks, within half a minute; return the exit code.

        Raises:
            TimeoutError: not even SIGKILL has ended it: a process waits for a device or a disk.
        """
        for number, seconds in _ENDING:
            if self._process.returncode is not None:
                break
            self.send(number)
            try:
                return await wait_for(self.ended(), seconds)
            except TimeoutError:
                continue
        if self._process.returncode is None:
            raise TimeoutError(f"the launcher (pid {self.pid}) does not end after SIGKILL")
        return self._process.returncode

    def _reap(self) -> int:
        code = self._process.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return code
