"""The template's imports, and what each of them left behind that would make forking unsafe.

Some can wait until workers have imported them (`Later`): they make restarts faster, not the start.
A worker tells whether it has changed what they read. A process forked for the purpose tries them
first: what would forbid the template to fork workers (a thread, an open device) happens only there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.base import process
from undaunted.base.descriptors import identity, is_still, move_high
from undaunted.base.process import thread_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

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
# Beginnings of variables that modules read which are imported later: a program may set them before.
SETTINGS = ("TORCHDYNAMO", "TORCHINDUCTOR", "TORCH_COMPILE", "TORCH_LOGS", "TORCH_TRACE")
_AS_HERE, _OTHERWISE = b"y", b"n"


@dataclass
class Imports:
    """The modules that were imported, those that failed, their errors and importers.

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
    """Modules to import when workers have done so. At most one trial runs at a time.

    Args:
        modules: their names.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = list(modules)
        self._trials = _TRIALS
        self._pid = 0
        self._pidfd = -1
        self._pipe = [-1, -1]
        self._asked = 0  # workers that have not told yet

    @property
    def fd(self) -> int:
        """Readable when workers have told something, or a trial has ended; -1 = nothing will be."""
        return self._pidfd if self._pid else self._pipe[0]

    def before_fork(self, asked: int) -> None:
        """Workers will be forked; if there is something to import, so many of them will tell."""
        if self._pid or not self._trials:
            return
        self._modules = [name for name in self._modules if _is_worth_it(name)]
        self._close_pipe()
        if self._modules:
            self._pipe = [end.detach() for end in socket.socketpair()]
            self._asked = asked

    def after_fork(self) -> None:
        """In the template: only workers write."""
        self._close_pipe(1)

    def begin_worker(self, *, asked: bool) -> None:
        """In a worker: tell of the imports, if asked. A trial is no child of this process."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
        self._pid, self._pidfd = 0, -1
        self._close_pipe(0)
        if asked and self._pipe[1] >= 0:
            sys.meta_path.insert(0, _Teller(self._modules, self._pipe[1]))
        else:
            self._close_pipe(1)

    def go_on(self, imports: Imports, sock: socket.socket) -> None:
        """`fd` is readable: begin a trial, or import what went well in one.

        Args:
            imports: of the template.
            sock: of the template; the trial does without.
        """
        if self._pid:
            self._end(imports)
            return
        told = os.read(self._pipe[0], self._asked)
        self._asked -= len(told)
        if _OTHERWISE in told:
            self._modules = []
        if not told or not self._asked or not self._modules:
            self._close_pipe()
        if self._modules and not self._asked:
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        self._trials -= 1
        template = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            _try(self._modules, sock, template)
        self._pidfd = process.open_pidfd(self._pid) or -1

    def end(self) -> None:
        """The ranks are to stop: end the trial, and begin no other. `fd` tells when it is over."""
        self._trials = 0
        self._modules = []
        if self._pidfd >= 0:
            process.signal_pidfd(self._pidfd, signal.SIGKILL)

    def _end(self, imports: Imports) -> None:
        status = os.waitpid(self._pid, 0)[1]
        os.close(self._pidfd)
        self._pid, self._pidfd = 0, -1
        if os.WIFSIGNALED(status):
            return
        modules, self._modules = self._modules, []
        if os.waitstatus_to_exitcode(status) == 0:
            for name in modules:
                imports.load(name)
            gc.collect()
            gc.freeze()

    def _close_pipe(self, *ends: int) -> None:
        for end in ends or (0, 1):
            if self._pipe[end] >= 0:
                os.close(self._pipe[end])
            self._pipe[end] = -1


class _Teller:
    """In a worker: stands before Python's own finders, and finds nothing.

    When the first of the modules is about to be imported, it tells the template whether what they
    read is as it was when the worker began.
    """

    def __init__(self, modules: Sequence[str], fd: int) -> None:
        self._modules = frozenset(modules)
        self._before = _settings()
        self._pid = os.getpid()
        self._fd = move_high(fd)
        self._known = identity(self._fd)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """See whether it is one of them."""
        del path, target
        if name in self._modules and os.getpid() == self._pid:
            # Another list: an import that goes through this one must not miss the next finder.
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
            with contextlib.suppress(Exception):
                self._tell()

    def _tell(self) -> None:
        if is_still(self._fd, self._known):  # programs may close it
            word = _AS_HERE if _settings() == self._before else _OTHERWISE
            with socket.socket(fileno=self._fd) as sock:  # nobody may want to know it any more
                sock.send(word, socket.MSG_NOSIGNAL)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}


@contextlib.contextmanager
def silence(*fds: int) -> Iterator[None]:
    """Have these standard streams lead nowhere: ranks say what packages say when imported."""
    kept = [os.dup(fd) for fd in fds]
    try:
        be_silent(*fds)
        yield
    finally:
        for fd, before in zip(fds, kept, strict=True):
            os.dup2(before, fd)
            os.close(before)


def be_silent(*fds: int) -> None:
    """Like `silence`, for good: no reader of a stream waits for us at its end."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    if null not in fds:
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
            be_silent(0, 1, 2)
            trial = Imports()
            for name in modules:
                trial.load(name)
            code = 1 if trial.failed or trial.objection() else 0
    finally:
        os._exit(code)
