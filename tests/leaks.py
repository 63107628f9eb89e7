"""Pytest plugin: a test that leaves something behind fails, and is told what.

Looked at before the set-up and after the tear-down of every test:

* ``processes``: descendants of the pytest process. It is made a subreaper, so that whatever a test
  started, however deep and whether or not it called setsid, stays among them.
* ``fds``: open descriptors, by what they refer to (files, pipes, sockets, memfds, eventfds); they
  may be closed a moment later.
* ``threads``: Python threads.
* ``maps``: mapped memfds and mapped files of /dev/shm.
* ``shm``: files in /dev/shm; not judged while another session of ours runs on the machine, as a
  file does not tell who made it.

What a fixture of a wider scope than one test makes in its set-up is not held against the test that
happened to ask for it first. ``@pytest.mark.leaves("fds", ...)`` exempts a test that accounts for
leftovers of these kinds itself. Leftover processes are killed, so that they fail one test only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from undaunted.base.process import children

if TYPE_CHECKING:
    import socket
    import subprocess
    from collections.abc import Callable, Generator, Iterator

KINDS = ("processes", "fds", "threads", "maps", "shm")
GRACE_S = 20.0  # how long what is already ending may take to end, on a busy machine too
KILLED_S = 20.0  # how long what is killed may take to end
CLOSED_S = 2.0  # how long a library's own thread may take to close its end of a connection
PR_SET_CHILD_SUBREAPER = 36
SHM = Path("/dev/shm")

# Helpers of multiprocessing: started once per interpreter on first use, by design never stopped.
HELPER_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
# The timer of pytest-timeout lives longer than the tear-down.
HELPER_THREADS = ("pytest_timeout",)
# Opened once per interpreter on first use and kept: entropy and the terminal.
HELPER_FDS = ("/dev/urandom", "/dev/random", "/dev/tty")


@dataclass(frozen=True)
class Process:
    """One descendant; the start time tells it from a later one with the same pid."""

    pid: int
    start: int
    parent: int
    state: str
    name: str

    @property
    def key(self) -> tuple[int, int]:
        return (self.pid, self.start)


@dataclass
class Snapshot:
    """What exists at one moment: per kind, how often each resource is there, under its name."""

    found: dict[str, Counter[str]] = field(default_factory=dict)

    def minus(self, other: Snapshot) -> Snapshot:
        kinds = {kind: here - other.found.get(kind, Counter()) for kind, here in self.found.items()}
        return Snapshot({kind: here for kind, here in kinds.items() if here})

    def plus(self, other: Snapshot) -> Snapshot:
        kinds = self.found.keys() | other.found.keys()
        return Snapshot(
            {k: self.found.get(k, Counter()) + other.found.get(k, Counter()) for k in kinds}
        )

    def lines(self) -> list[str]:
        return [
            f"{kind}: {described(kind, name)}" + (f" ({count} times)" if count > 1 else "")
            for kind in KINDS
            for name, count in sorted(self.found.get(kind, Counter()).items())
        ]


def described(kind: str, name: str) -> str:
    process = read_process(int(name.split()[1])) if kind == "processes" else None
    return name if process is None else f"{name} ({command_of(process)})"


def take(kinds: tuple[str, ...] = KINDS) -> Snapshot:
    """Looks at everything of these kinds."""
    return Snapshot({kind: Counter(LOOK[kind]()) for kind in kinds})


# --- one function per kind ------------------------------------------------------------------------


def processes() -> Iterator[str]:
    """Living descendants. Dead ones that nobody waited for are not running and hold nothing."""
    for process in descendants():
        if process.state not in "ZX":
            yield f"pid {process.pid}"  # a program may change its command


def fds() -> Iterator[str]:
    helpers = helper_fds()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one that listed the directory
        if target not in HELPER_FDS and int(fd) not in helpers:
            yield target


def count_fds() -> int:
    """How many descriptors are open, once the garbage of earlier tests has let go of its own."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def threads() -> Iterator[str]:
    for thread in threading.enumerate():
        # Dummies stand for threads of native libraries that once called into Python.
        if not isinstance(thread, threading._DummyThread) and not thread.name.startswith(
            HELPER_THREADS
        ):
            yield f"{thread.name} (ident {thread.ident})"


def maps() -> Iterator[str]:
    found = Path("/proc/self/maps").read_text()
    if "/memfd:" not in found and f"{SHM}/" not in found:
        return  # as mostly: with torch there are a thousand lines, twice a test
    for line in found.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(("/memfd:", f"{SHM}/")):
            yield f"{fields[5]} (inode {fields[4]})"


def shm() -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(SHM) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    yield entry.path


# Held by the session, see `session_lock`.
LOCK_FD: int | None = None

LOOK: dict[str, Callable[[], Iterator[str]]] = {
    "processes": processes,
    "fds": fds,
    "threads": threads,
    "maps": maps,
    "shm": shm,
}


# --- processes ------------------------------------------------------------------------------------


def become_subreaper() -> None:
    """Orphans of our descendants become our children, and thus stay visible."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants() -> list[Process]:
    """All but helpers, parents first; all of /proc is read only where there are others."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    mine = children()  # nothing where the kernel does not tell
    if mine and all(is_helper_alone(pid) for pid in mine):
        return []
    below: dict[int, list[Process]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        process = read_process(int(pid))
        if process is not None:
            below.setdefault(process.parent, []).append(process)
    found = list(below.get(os.getpid(), []))
    for process in found:  # grows while it is walked
        found.extend(below.get(process.pid, []))
    return [p for p in found if not is_helper(p)]


def read_process(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], name)


def command_of(process: Process) -> str:
    with contextlib.suppress(OSError):
        raw = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if raw:
            return raw.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    return process.name


def is_helper(process: Process) -> bool:
    served = warm_server()
    if served is not None and served[0].pid == process.pid:
        return True
    return any(name in command_of(process) for name in HELPER_PROCESSES)


def is_helper_alone(pid: int) -> bool:
    """Whether it is a helper that has started nothing."""
    process = read_process(pid)
    return process is not None and is_helper(process) and not children(pid)


def warm_server() -> tuple[subprocess.Popen[bytes], socket.socket] | None:
    """What `tests.warm` forks, and the socket it is asked through: kept until the session ends."""
    return getattr(sys.modules.get("tests.warm"), "_server", None)


def helper_fds() -> set[int]:
    """Descriptors through which multiprocessing talks to its helpers."""
    found = set()
    for module, instance, attribute in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_fd"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_alive_fd"),
    ):
        holder = getattr(sys.modules.get(module), instance, None)
        found.add(getattr(holder, attribute, None))
    if (served := warm_server()) is not None:
        found.add(served[1].fileno())
    return {fd for fd in found if fd is not None}


def wait_for_end(processes: list[Process], deadline: float) -> None:
    """Waits until all have ended or the deadline (time.monotonic) has passed."""
    for process in processes:
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            finally:
                os.close(fd)


def reap_new(known: set[tuple[int, int]]) -> None:
    """Waits for dead children that were not there before: mostly orphans we adopted."""
    for process in descendants():
        if process.state == "Z" and process.parent == os.getpid() and process.key not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def kill_new(known: set[tuple[int, int]]) -> None:
    while alive := [p for p in descendants() if p.state not in "ZX" and p.key not in known]:
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        before = time.monotonic()
        wait_for_end(alive, before + KILLED_S)
        if time.monotonic() - before >= KILLED_S:
            return  # cannot be killed: named in the failure, and the next test must go on


# --- judging --------------------------------------------------------------------------------------


def leftovers(before: Snapshot, allowed: Callable[[], Snapshot]) -> Snapshot:
    """What is new since ``before``, after whatever is ending has had its time to end."""

    def new() -> Snapshot:
        return take(tuple(before.found)).minus(before.plus(allowed()))

    if not new().found:
        return Snapshot()
    gc.collect()  # cycles hold descriptors and mappings until they are collected
    deadline = time.monotonic() + GRACE_S
    suspects = new().found
    if "processes" in suspects:
        pids = {int(name.split()[1]) for name in suspects["processes"]}
        wait_for_end([p for p in descendants() if p.pid in pids], deadline)
    for thread in threading.enumerate():
        if f"{thread.name} (ident {thread.ident})" in suspects.get("threads", ()):
            thread.join(max(0.0, deadline - time.monotonic()))
    left = new()
    deadline = time.monotonic() + CLOSED_S
    while left.found.keys() == {"fds"} and time.monotonic() < deadline:
        time.sleep(0.01)  # nothing tells when torch's server has noticed that a client is gone
        left = new()
    if "shm" in left.found:
        mine = [path for path in left.found["shm"] if only_session() and not used_by_others(path)]
        left.found["shm"] = Counter(mine)
    return Snapshot({kind: here for kind, here in left.found.items() if here})


def session_lock() -> int:
    """Every session holds this file's lock, shared; the descriptor is kept until the end."""
    path = Path(tempfile.gettempdir()) / f"undaunted-tests-{os.getuid()}.lock"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def only_session() -> bool:
    """Whether nobody else holds the lock at this moment."""
    assert LOCK_FD is not None
    try:
        fcntl.flock(LOCK_FD, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        fcntl.flock(LOCK_FD, fcntl.LOCK_SH)
    return True


def used_by_others(path: str) -> bool:
    """Whether the file is gone meanwhile, or a process that is not ours has it: not our leak."""
    if not Path(path).exists():
        return True
    ours = {os.getpid(), *(p.pid for p in descendants())}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) in ours:
            continue
        with contextlib.suppress(OSError):
            if path in Path(f"/proc/{pid}/maps").read_text(errors="replace"):
                return True
            with os.scandir(f"/proc/{pid}/fd") as fds_of_it:
                if any(os.readlink(fd.path) == path for fd in fds_of_it):
                    return True
    return False


# --- pytest ---------------------------------------------------------------------------------------


class LeakCheck:
    """The plugin: one per session."""

    def __init__(self) -> None:
        self.at_start = {p.key for p in descendants()}
        self.processes_before = self.at_start
        self.before = Snapshot()
        self.shared = Snapshot()  # made by fixtures of a wider scope in this test's set-up

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        exempt = {kind for mark in item.iter_markers("leaves") for kind in mark.args}
        if unknown := exempt - set(KINDS):
            raise pytest.UsageError(f"leaves({unknown.pop()!r}): the kinds are {', '.join(KINDS)}")
        self.shared = Snapshot()
        self.processes_before = {p.key for p in descendants()}
        self.before = take(tuple(kind for kind in KINDS if kind not in exempt))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object]
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before = take()
        try:
            return (yield)
        finally:
            self.shared = self.shared.plus(take().minus(before))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            result = yield
            left = leftovers(self.before, lambda: self.shared).lines()
        finally:
            self.end_processes()
        if left:
            pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)
        return result

    def end_processes(self) -> None:
        """So that one test's leftovers neither disturb the next nor are held against it."""
        here = descendants()
        shared = {int(name.split()[1]) for name in self.shared.found.get("processes", ())}
        known = self.processes_before | {p.key for p in here if p.pid in shared}
        if any(p.key not in known for p in here):
            kill_new(known)
            reap_new(known)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if warm_server() is not None:
            sys.modules["tests.warm"].stop()
        gc.collect()
        deadline = time.monotonic() + GRACE_S
        wait_for_end([p for p in descendants() if p.key not in self.at_start], deadline)
        left = [p for p in descendants() if p.state not in "ZX" and p.key not in self.at_start]
        if left:
            names = "".join(f"\n  pid {p.pid} ({command_of(p)})" for p in left)
            print(f"\nthe session left processes behind:{names}")
            kill_new(self.at_start)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaves(*kinds): leftovers of these kinds are accounted for")
    global LOCK_FD
    LOCK_FD = session_lock()
    become_subreaper()
    config.pluginmanager.register(LeakCheck(), "undaunted-leak-check")
