"""A template imports what the ranks have imported, and sees whether a worker may be forked from it.

One import after the other, each in the environment that it had in the rank. A package is left to
the ranks if it has or keeps what a fork would share (a thread, an open file, a process), changes
what the program sets as well, cannot be imported here, or makes a forked worker unlike a new
process (`likeness`); and so is what imports it. What was imported cannot be undone: the process is
unfit then (`UnfitError`), and the agent starts one that leaves it out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from undaunted.base import process
from undaunted.base.memory import open_memfd
from undaunted.fault_tolerance.worker import likeness
from undaunted.fault_tolerance.worker.import_notes import changes, installed_file, stamp
from undaunted.fault_tolerance.worker.imports import Imports, be_silent, set_variables, silence
from undaunted.fault_tolerance.worker.likeness import Snapshot
from undaunted.fault_tolerance.worker.messages import Learned, RankValue
from undaunted.fault_tolerance.worker.numerics import TEMPLATE_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType, ModuleType

# For new processes to import everything, beside ranks that use all cores.
_COMPARED_S = 500.0
# Low, but as much as is needed to come to an end beside ranks that use all cores.
_PRIORITY = 10
_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")


class UnfitError(Exception):
    """No worker may be forked from this process.

    Attributes:
        left: packages, and why; another process would do without.
        problem: why no other one would.
    """

    def __init__(self, left: dict[str, str], problem: str = "") -> None:
        super().__init__(left, problem)
        self.left = left
        self.problem = problem


class WarmImports:
    """What a template has imported for workers beside what their program names."""

    def __init__(self) -> None:
        self.rank_values: list[RankValue] = []
        self.variables: dict[str, tuple[str, str]] = {}
        self.modules: list[str] = []

    def load(self, learned: Learned, boot: Sequence[str]) -> None:
        """Import what was learned.

        Args:
            learned: what that is.
            boot: how new processes are started, which everything is compared with.

        Raises:
            UnfitError: some packages have to be left out, or all.
        """
        with contextlib.ExitStack() as checks:
            new: list[_Check] = []
            for rank in () if learned.checked else (0, 0, 1):  # `new`, `again`, `first`
                new.append(_Check.started(learned, boot, learned.environments[rank]))
                checks.callback(new[-1].close)
            with _out_of_the_way(), silence(1, 2):
                self.modules, self.variables = _load(learned, _Guard(learned))
            if learned.checked:
                self.rank_values = learned.rank_values
                return
            forked = _Check.forked(learned, self)
            checks.callback(forked.close)
            deadline = time.monotonic() + _COMPARED_S
            of_new = [check.result(deadline) for check in new]
            verdict = likeness.compare(of_new, forked.result(deadline), learned.environments)
        if verdict.left:
            raise UnfitError(verdict.left)
        self.rank_values = verdict.rank_values

    def begin_worker(self, environment: dict[str, str]) -> None:
        """In a worker: set what comes from its variables, and add those that imports set."""
        likeness.set_rank_values(self.rank_values, environment)
        for name, (value, _) in self.variables.items():
            environment.setdefault(name, value)


def read(fd: int) -> Learned:
    """Return what the agent has learned; closes the file."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return msgspec.json.decode(file.read(), type=Learned)


def write(learned: Learned) -> int:
    """Return a descriptor of a file for `read`."""
    fd = open_memfd("undaunted-learned")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(msgspec.json.encode(learned))
    return fd


def _load(learned: Learned, guard: _Guard | None) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Import; return the modules, and variables that imports have set."""
    imports = Imports()
    variables: dict[str, tuple[str, str]] = {}
    base, given = os.environ.copy(), dict[str, str | None]()
    with contextlib.ExitStack() as stack:
        if guard is not None:
            sys.meta_path.insert(0, guard)
            stack.callback(sys.meta_path.remove, guard)
        for group in learned.groups:
            set_variables({name: base.get(name) for name in given} | group.environment)
            given = group.environment
            for name in group.modules:
                if (package := name.partition(".")[0]) in learned.left:
                    continue
                before = os.environ.copy()
                imports.load(name)
                changed = changes(before, os.environ.copy())
                for variable, value in changed.items():
                    variables[variable] = value or "", package
                if guard is not None:
                    overwritten = {variable for variable in changed if variable in before}
                    guard.check(name, imports.failed.get(name, ""), overwritten)
        set_variables({name: base.get(name) for name in given})
    return imports.done, variables


class _Guard:
    """Stands before Python's own finders, and sees which packages ask for which."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        told = {name.partition(".")[0] for group in learned.groups for name in group.modules}
        self._known = told.difference(learned.left)
        self._before = _shared()
        self._modules = set(sys.modules)
        self._last = ""  # package that was asked for
        self._asked: dict[str, set[str]] = {}  # by package that is left: who asked for it
        self._unfit: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """See who asks for ``name``."""
        del path, target
        package = name.partition(".")[0]
        if package in self._learned.left:
            self._asked.setdefault(package, set()).update(_importing())
        elif package in self._learned.own:
            self._blame(f"it asks for {package}, which only ranks have", _importing())
        elif process.thread_count() > 1:
            self._blame("it starts a thread", {self._last, *_importing()})
        if package in self._known:
            self._last = package

    def check(self, name: str, error: str, overwritten: set[str]) -> None:
        """After the import of one module.

        Raises:
            UnfitError: this process may fork no workers any more.
        """
        package = name.partition(".")[0]
        both = {package, self._last}
        if error:
            self._blame(f"it cannot be imported in advance: {error}", {package})
        elif objection := Imports().objection():
            self._blame(objection.removeprefix("the template has "), both)
        elif new := _shared() - self._before:
            self._blame(f"a fork would share {min(new)}", both)
        elif overwritten:
            self._blame(f"it sets {min(overwritten)} to another value", {package})
        elif "." not in name and stamp(installed_file(name)) != self._learned.packages.get(name):
            self._blame("ranks import it from another file", {package})
        for left, who in self._asked.items():
            if left in sys.modules:
                self._blame(f"it imports {left}, which is left to the ranks", who)
        if unknown := self._unknown():
            self._blame(f"it imports {unknown}, which the ranks do not", both)
        if self._unfit:
            raise UnfitError(self._unfit)

    def _unknown(self) -> str:
        """Return an installed package that has come, and that ranks have not told; "" = none."""
        new = sys.modules.keys() - self._modules
        self._modules |= new
        packages = {name for name in new if "." not in name} - self._known
        packages.difference_update(self._learned.left)
        return min((name for name in packages if installed_file(name)), default="")

    def _blame(self, reason: str, packages: Iterable[str]) -> None:
        if not self._unfit:  # what comes after that may have the same reason
            self._unfit = dict.fromkeys(self._known.intersection(packages), reason)


def _importing() -> set[str]:
    """Return the packages whose code is running now: the stack knows them."""
    found = set()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code is not _load.__code__:
        if (module := str(frame.f_globals.get("__name__"))) not in (__name__, Imports.__module__):
            found.add(module.partition(".")[0])
        frame = frame.f_back
    return found


def _shared() -> set[str]:
    """Return what a fork would share with its parent, or what the program may set as well."""
    found = {f"process {pid}" for pid in process.children()}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if (path := os.readlink(f"/proc/self/fd/{fd}")) not in _HARMLESS:
                found.add(f"{path} (descriptor {fd})")
    for line in Path("/proc/self/maps").read_bytes().splitlines():
        if b" rw-s " in line:
            found.add(f"memory {os.fsdecode(line.split(maxsplit=5)[-1])}")
    for number in signal.valid_signals():
        found.add(f"handler of signal {number:d}: {signal.getsignal(number)}")
    found |= {f"handler of logs {handler!r}" for handler in logging.root.handlers}
    return found | {f"level of logs {logging.root.level}", f"exception hook {sys.excepthook!r}"}


@contextlib.contextmanager
def _out_of_the_way() -> Iterator[None]:
    """Give way to the ranks, if this process may take its priority, and workers theirs, again."""
    usual, of_session = os.getpriority(os.PRIO_PROCESS, 0), process.nice_of_session()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, usual + 1)
            os.setpriority(os.PRIO_PROCESS, 0, usual)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(pid, 0)[1] != 0:
        yield
        return
    os.setpriority(os.PRIO_PROCESS, 0, usual + _PRIORITY)
    process.renice_session(_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        process.renice_session(of_session)


class _Check:
    """A process that writes into a file what it has after the imports."""

    def __init__(self, pid: int, fd: int) -> None:
        self._pid = pid
        self._fd = fd
        self._pidfd = process.open_pidfd(pid) or -1

    @classmethod
    def started(
        cls, learned: Learned, boot: Sequence[str], environment: Mapping[str, str]
    ) -> _Check:
        """Start a new process with the variables of a rank."""
        own = {k: v for k, v in os.environ.items() if k not in TEMPLATE_ENVIRONMENT}
        fd = write(learned)
        command = [*boot, "compare", str(fd), str(os.getpid())]
        return cls(process.spawn(command, {**own, **environment}, (fd,)), fd)

    @classmethod
    def forked(cls, learned: Learned, imports: WarmImports) -> _Check:
        """Fork, as a worker is forked."""
        fd = open_memfd("undaunted-compared")
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                if process.die_with_parent(template):
                    os.environ.update(learned.environments[0])
                    _answer(fd, imports.modules, imports.variables)
            finally:
                os._exit(1)
        return cls(pid, fd)

    def result(self, deadline: float) -> Snapshot:
        """Wait for the process to end.

        Raises:
            UnfitError: it does not end in time, or has failed.
        """
        if not process.wait_pidfd(self._pidfd, max(0.0, deadline - time.monotonic())):
            raise UnfitError({}, f"new processes did not import all in {_COMPARED_S:g} s")
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            try:
                return msgspec.msgpack.decode(file.read(), type=Snapshot)
            except msgspec.MsgspecError as error:
                raise UnfitError({}, "a new process with these imports ended early") from error

    def close(self) -> None:
        """End it."""
        process.signal_pidfd(self._pidfd, signal.SIGKILL)
        os.waitpid(self._pid, 0)  # bounded: it was killed
        os.close(self._pidfd)
        os.close(self._fd)


def be_compared(fd: int, template: int) -> NoReturn:
    """Be a new process: import what is in file ``fd``, and write there what came of it."""
    if not process.die_with_parent(template):
        os._exit(1)
    os.nice(_PRIORITY)
    process.renice_session(_PRIORITY)
    learned = read(os.dup(fd))
    be_silent(0, 1, 2)
    imports = Imports()
    for name in learned.base:
        imports.load(name)
    _answer(fd, *_load(learned, None))


def _answer(fd: int, modules: list[str], variables: dict[str, tuple[str, str]]) -> NoReturn:
    snapshot = Snapshot(os.getpid(), likeness.values(modules), variables)
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.msgpack.encode(snapshot))
    os._exit(0)
