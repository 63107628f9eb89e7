"""The template's imports, and what each of them left behind that would make forking unsafe.

Some can wait until the first workers run (`Later`): they make restarts faster, not the start. A
process forked for the purpose tries them first: what would forbid the template to fork workers (a
thread, an open device) then happens only there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.base import process
from undaunted.base.process import thread_count

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence

# Files below /dev that are no devices with state of their own, or are everybody's.
_HARMLESS = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts/",
    "/dev/ptmx",
    "/dev/console",
    "/dev/shm/",  # noqa: S108 - nothing is created there
    "/dev/mqueue/",
)
# A trial that is killed, because its round ends, is made again after the next fork.
_TRIALS = 3
LOWEST_PRIORITY = 19


@dataclass
class Imports:
    """What was imported, what failed with which error, and who is to blame for what.

    ``blame`` maps what was found after an import ("a thread", a device file) to the module.
    """

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    blame: dict[str, str] = field(default_factory=dict)

    def load(self, name: str) -> None:
        """Import ``name``; a failure, of whatever kind, is noted."""
        try:
            _import(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's module
            self.failed[name] = f"{type(error).__name__}: {error}"
        else:
            self.done.append(name)
        for finding in _unsafe():
            self.blame.setdefault(finding, name)

    def objection(self) -> str:
        """Return why this process may not fork workers, or ""."""
        findings = [
            f"{finding} (since the import of {self.blame[finding]})"
            if finding in self.blame
            else finding
            for finding in _unsafe()
        ]
        return f"the template has {', '.join(findings)}" if findings else ""


def set_variables(variables: Mapping[str, str | None]) -> None:
    """Change the environment of this process; None = not set any more."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _import(name: str) -> None:
    """Import a module, or accept that ``a.b`` names an attribute of module ``a``."""
    parent, _, last = name.rpartition(".")
    if parent in sys.modules and hasattr(sys.modules[parent], last):
        return
    importlib.import_module(name)


def _unsafe() -> list[str]:
    """Return what this process has that a forked worker could not share."""
    found = []
    if (count := thread_count()) > 1:
        found.append(f"{count} threads")
    found += [f"{path} open" for path in open_devices()]
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "cuda") and torch.cuda.is_initialized():
        found.append("CUDA initialised")
    return found


def open_devices() -> list[str]:
    """Return the device files this process has open, standard streams apart."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if path.startswith("/dev/") and int(name) > 2 and not path.startswith(_HARMLESS):
            found.add(path)
    return sorted(found)


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


@contextlib.contextmanager
def silence(*fds: int) -> Iterator[None]:
    """Have these standard streams lead nowhere: ranks say what packages say when imported."""
    null = os.open(os.devnull, os.O_RDWR)
    kept = [os.dup(fd) for fd in fds]
    try:
        for fd in fds:
            os.dup2(null, fd)
        yield
    finally:
        for fd, before in zip(fds, kept, strict=True):
            os.dup2(before, fd)
            os.close(before)
        os.close(null)


def _is_worth_it(name: str) -> bool:
    """Whether a module is not there yet, but the package it belongs to is."""
    return name not in sys.modules and name.partition(".")[0] in sys.modules


def _try(modules: list[str], sock: socket.socket, template: int) -> NoReturn:
    code = 1
    try:
        sock.close()
        if process.die_with_parent(template):
            os.nice(LOWEST_PRIORITY)  # the ranks begin just now
            with silence(0, 1, 2):
                trial = Imports()
                for name in modules:
                    trial.load(name)
                code = 1 if trial.failed or trial.objection() else 0
    finally:
        os._exit(code)
