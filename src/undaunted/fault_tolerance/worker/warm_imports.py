"""A template imports what the ranks have imported, and sees whether a worker may be forked from it.

One import after the other, each in the environment that it had in the rank. A package is left to
the ranks if it has or keeps what a fork would share (a thread, an open file, a process), changes
what the program sets as well, or cannot be imported here; and so is what imports it. What was
imported cannot be undone: the process is unfit then (`UnfitError`), and the agent starts one that
leaves it out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base import process
from undaunted.base.memory import open_memfd
from undaunted.fault_tolerance.worker.import_notes import changes, installed_file
from undaunted.fault_tolerance.worker.imports import (
    LOWEST_PRIORITY,
    Imports,
    set_variables,
    silence,
)
from undaunted.fault_tolerance.worker.known_imports import set_rank_values
from undaunted.fault_tolerance.worker.messages import Learned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from types import FrameType, ModuleType

_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")


class UnfitError(Exception):
    """No worker may be forked from this process.

    Attributes:
        left: package -> why it must not be imported here; another process can do without these.
    """

    def __init__(self, left: dict[str, str]) -> None:
        super().__init__(left)
        self.left = left


class WarmImports:
    """Modules that a template has imported for workers, beside those that their program names."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.modules: list[str] = []

    def load(self, learned: Learned) -> None:
        """Import what was learned.

        Raises:
            UnfitError: some packages have to be left out.
        """
        with silence(1, 2):
            self.modules, self.variables = _load(learned)

    def begin_worker(self, environment: dict[str, str]) -> None:
        """In a worker: set what comes from its variables, and add those that imports set."""
        set_rank_values(environment)
        for name, value in self.variables.items():
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


def _load(learned: Learned) -> tuple[list[str], dict[str, str]]:
    """Import; return the modules, and variables that imports have set."""
    imports, guard = Imports(), _Guard(learned)
    variables: dict[str, str] = {}
    base, given = os.environ.copy(), dict[str, str | None]()
    sys.meta_path.insert(0, guard)
    try:
        for group in learned.groups:
            set_variables({name: base.get(name) for name in given} | group.environment)
            given = group.environment
            for name in group.modules:
                if name.partition(".")[0] in learned.left:
                    continue
                before = os.environ.copy()
                imports.load(name)
                changed = changes(before, os.environ.copy())
                variables.update({variable: value or "" for variable, value in changed.items()})
                guard.check(name, imports.failed.get(name, ""), changed.keys() & before.keys())
        set_variables({name: base.get(name) for name in given})
    finally:
        sys.meta_path.remove(guard)
    return imports.done, variables


class _Guard:
    """Stands before Python's own finders, and sees which packages ask for which."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned
        packages = {name.partition(".")[0] for group in learned.groups for name in group.modules}
        self._known = packages.difference(learned.left)
        self._before = _shared()
        self._modules = set(sys.modules)
        self._last = ""  # package that was asked for
        self._asked: dict[str, set[str]] = {}  # by package that should not come: who asked for it
        self._unfit: dict[str, str] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """See who asks for ``name``."""
        del path, target
        package = name.partition(".")[0]
        if package in self._learned.own:
            self._blame(f"it asks for {package}, which only ranks have", _importing())
        elif process.thread_count() > 1:
            self._blame("it starts a thread", {self._last, *_importing()})
        if package in self._known:
            self._last = package
        elif package not in self._modules:
            self._asked.setdefault(package, set()).update(_importing())

    def check(self, name: str, error: str, overwritten: AbstractSet[str]) -> None:
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
        elif "." not in name and installed_file(name) != self._learned.packages.get(name):
            self._blame("ranks import it from another file", {package})
        for asked, who in self._asked.items():  # to ask whether a package is there does no harm
            if asked in sys.modules and (asked in self._learned.left or installed_file(asked)):
                self._blame(f"it imports {asked}, which is left to the ranks", {package, *who})
        if self._unfit:
            raise UnfitError(self._unfit)

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
def lowest_priority() -> Iterator[None]:
    """Give way to the ranks; workers have the usual priority again."""
    usual, of_session = os.getpriority(os.PRIO_PROCESS, 0), process.nice_of_session()
    os.setpriority(os.PRIO_PROCESS, 0, LOWEST_PRIORITY)
    process.renice_session(LOWEST_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
        process.renice_session(of_session)
