"""A template imports what the ranks have imported, and sees whether a worker may be forked from it.

One import after the other, each in the environment that it had in the rank. A package is left to
the ranks if it starts a thread, opens a device or a socket, cannot be imported here, or makes a
forked worker unlike a new process (`likeness`), and so is what imports it. What was imported cannot
be undone: the process is unfit then (`UnfitError`), and the agent starts one that leaves it out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from undaunted.base import process
from undaunted.fault_tolerance.worker import likeness
from undaunted.fault_tolerance.worker.import_notes import changes
from undaunted.fault_tolerance.worker.imports import LOWEST_PRIORITY, Imports, silence
from undaunted.fault_tolerance.worker.likeness import Seen
from undaunted.fault_tolerance.worker.messages import Learned, Renewed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType, ModuleType

# To import everything twice more, at the lowest priority, while the ranks use all cores.
CHECK_DEADLINE_S = 400.0
# What a process has open that a fork would share.
_SHARED = ("socket:", "anon_inode:")
_NOT_CHECKED = "could not be compared with new processes: "
_CAP_SYS_NICE = 1 << 23


class UnfitError(Exception):
    """No worker may be forked from this process; ``left`` has packages, and why."""

    def __init__(self, left: dict[str, str]) -> None:
        super().__init__(left)
        self.left = left


class WarmImports:
    """What a template has imported for workers beside what their program names."""

    def __init__(self) -> None:
        self.renewed: list[Renewed] = []
        self.variables: dict[str, tuple[str | None, str]] = {}
        self.modules: list[str] = []

    def load(self, learned: Learned, python: Sequence[str]) -> None:
        """Import what was learned.

        Args:
            learned: what that is.
            python: how new processes are started, which everything is compared with.

        Raises:
            UnfitError: some packages have to be left out.
        """
        checks = [] if learned.checked else [_Check.start(learned, python) for _ in range(2)]
        try:
            with _out_of_the_way(), silence(1, 2):
                self.modules, self.variables = _load(learned)
            self.renewed = learned.renewed if learned.checked else self._compared(learned, checks)
        finally:
            for check in checks:
                check.close()

    def _compared(self, learned: Learned, checks: list[_Check]) -> list[Renewed]:
        forked = _Check.fork(learned, self)
        try:
            new, another = (check.result() for check in checks)
            verdict = likeness.compare(new, another, forked.result(), learned.environment)
        finally:
            forked.close()
        if verdict.left:
            raise UnfitError(verdict.left)
        return verdict.renewed

    def begin_worker(self, environment: dict[str, str]) -> None:
        """In a worker: set again what comes from its variables, and add those that imports set."""
        likeness.renew(self.renewed, environment)
        for name, (value, _) in self.variables.items():
            if value is not None:
                environment.setdefault(name, value)


def read(fd: int) -> Learned:
    """Return what the agent has learned; closes the file."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return msgspec.json.decode(file.read(), type=Learned)


def write(learned: Learned) -> int:
    """Return a descriptor of a file for `read`."""
    fd = os.memfd_create("undaunted-learned", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(msgspec.json.encode(learned))
    return fd


def _load(learned: Learned) -> tuple[list[str], dict[str, tuple[str | None, str]]]:
    """Import; return the modules, and variables that imports have set."""
    guard = _Guard(learned)
    imports = Imports()
    variables: dict[str, tuple[str | None, str]] = {}
    base, given = os.environ.copy(), dict[str, str | None]()
    sys.meta_path.insert(0, guard)
    try:
        for group in learned.groups:
            _set({name: base.get(name) for name in given} | group.environment)
            given = group.environment
            for name in group.modules:
                if (package := name.partition(".")[0]) in learned.left:
                    continue
                before = os.environ.copy()
                imports.load(name)
                guard.check(package, imports.failed.get(name, ""))
                for variable, value in changes(before, os.environ).items():
                    variables[variable] = value, package
        _set({name: base.get(name) for name in given})
    finally:
        sys.meta_path.remove(guard)
    return imports.done, variables


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _Guard:
    """Stands before Python's own finders, and sees what is imported when something happens."""

    def __init__(self, learned: Learned) -> None:
        self._known = {name.partition(".")[0] for g in learned.groups for name in g.modules}
        self._left = frozenset(learned.left)
        self._shared = _shared_files()
        self._last = ""
        self._unfit: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        del path, target
        package = name.partition(".")[0]
        if package in self._left:
            self._blame(f"it imports {package}, which is left to the ranks")
        elif process.thread_count() > 1:
            self._blame("it starts a thread", self._last)
        if package in self._known:
            self._last = package

    def check(self, package: str, error: str) -> None:
        """After the import of one module of this package.

        Raises:
            UnfitError: this process may fork no workers any more.
        """
        if error:
            self._blame(f"it cannot be imported in advance: {error}", package)
        elif objection := Imports().objection():
            self._blame(objection.removeprefix("the template has "), package, self._last)
        elif _shared_files() - self._shared:
            self._blame("it opens a socket or the like", package, self._last)
        if self._unfit:
            raise UnfitError(self._unfit)

    def _blame(self, reason: str, *packages: str) -> None:
        """Note these packages, and those that are being imported: the stack knows them."""
        if self._unfit:
            return  # what comes after that may have the same reason
        named = list(packages)
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
        while frame is not None and (module := frame.f_globals.get("__name__")) != __name__:
            named.append(str(module).partition(".")[0])
            frame = frame.f_back
        for name in self._known.intersection(named):
            self._unfit.setdefault(name, reason)


def _shared_files() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if (path := os.readlink(f"/proc/self/fd/{name}")).startswith(_SHARED):
                found.add(f"{name} {path}")
    return found


@contextlib.contextmanager
def _out_of_the_way() -> Iterator[None]:
    """Give way to the ranks, if this process may take the priority of workers again."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    if not capabilities & _CAP_SYS_NICE:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)


class _Check:
    """A process that writes into a file what it has after the imports."""

    def __init__(self, pid: int, fd: int) -> None:
        self._pid = pid
        self._fd = fd
        self._pidfd = process.open_pidfd(pid) or -1

    @classmethod
    def start(cls, learned: Learned, python: Sequence[str]) -> _Check:
        """Start a new process with the environment of a rank."""
        fd = write(learned)
        environment = {**os.environ, **learned.environment}
        return cls(process.spawn([*python, "alike", str(fd)], environment, (fd,)), fd)

    @classmethod
    def fork(cls, learned: Learned, imports: WarmImports) -> _Check:
        """Fork, as a worker is forked."""
        fd = write(learned)
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                if process.die_with_parent(template):
                    os.environ.update(learned.environment)
                    _answer(fd, imports.modules, imports.variables)
            finally:
                os._exit(1)
        return cls(pid, fd)

    def result(self) -> Seen:
        """Wait for the process to end.

        Raises:
            UnfitError: it does not end in time, or has failed.
        """
        if not process.wait_pidfd(self._pidfd, CHECK_DEADLINE_S):
            raise UnfitError({"": f"{_NOT_CHECKED}{CHECK_DEADLINE_S:g} s are over"})
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            try:
                return msgspec.msgpack.decode(file.read(), type=Seen)
            except msgspec.MsgspecError as error:
                raise UnfitError({"": f"{_NOT_CHECKED}one ended early"}) from error

    def close(self) -> None:
        """End it."""
        process.signal_pidfd(self._pidfd, signal.SIGKILL)
        os.waitpid(self._pid, 0)  # bounded: it was killed
        os.close(self._pidfd)
        os.close(self._fd)


def be_alike(fd: int) -> NoReturn:
    """Be a new process that is compared with: import what is in file ``fd``, and answer there."""
    process.die_with_parent(os.getppid())
    os.nice(LOWEST_PRIORITY)
    learned = read(os.dup(fd))
    with silence(0, 1, 2):
        imports = Imports()
        for name in learned.first:
            imports.load(name)
        modules, variables = _load(learned)
    _answer(fd, modules, variables)


def _answer(fd: int, modules: list[str], variables: dict[str, tuple[str | None, str]]) -> NoReturn:
    seen = Seen(os.getpid(), likeness.values(modules), variables)
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.msgpack.encode(seen))
    os._exit(0)
