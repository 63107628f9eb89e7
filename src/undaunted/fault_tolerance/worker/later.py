"""Imports of the template that can wait until the first workers run.

They make restarts faster, not the start. A process forked for the purpose tries them first: what
would forbid the template to fork workers (a thread, an open device) then happens only there.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from undaunted.base import process
from undaunted.fault_tolerance.worker.imports import Imports

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

# A trial that is killed, because its round ends, is made again after the next fork.
_TRIALS = 3
_LOWEST_PRIORITY = 19


class Later:
    """Modules to import later. At most one trial runs at a time."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._trials = _TRIALS
        self._pid = 0
        self._pidfd = -1

    @property
    def fd(self) -> int:
        """Readable when a trial has ended; -1 while there is none."""
        return self._pidfd

    def begin(self, sock: socket.socket) -> None:
        """Start a trial, if there is something to try.

        Args:
            sock: of the template; the trial does without.
        """
        if self._pid or not self._trials:
            return
        self._modules = [name for name in self._modules if _is_worth_it(name)]
        if not self._modules:
            return
        self._trials -= 1
        template = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _try(self._modules, sock, template)
        self._pidfd = process.open_pidfd(self._pid) or -1

    def end(self, imports: Imports) -> None:
        """Take the result of the trial that has ended; import if it went well."""
        status = os.waitpid(self._pid, 0)[1]
        self.forget()
        if os.WIFSIGNALED(status):
            return
        modules, self._modules = self._modules, []
        if os.waitstatus_to_exitcode(status) == 0:
            for name in modules:
                imports.load(name)
            gc.collect()
            gc.freeze()

    def forget(self) -> None:
        """Forget the trial: in a worker, it is not a child of this process."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pid, self._pidfd = 0, -1


def _is_worth_it(name: str) -> bool:
    """Whether a module is not there yet, but the package it belongs to is."""
    return name not in sys.modules and name.partition(".")[0] in sys.modules


def _try(modules: list[str], sock: socket.socket, template: int) -> NoReturn:
    code = 1
    try:
        sock.close()
        if process.die_with_parent(template):
            os.nice(_LOWEST_PRIORITY)  # the ranks begin just now
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.close(null)
            trial = Imports()
            for name in modules:
                trial.load(name)
            code = 1 if trial.failed or trial.objection() else 0
    finally:
        os._exit(code)
