"""Turns a process into the worker of a spec: session, environment, files, evidence, page."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.base import numa, oom_score, process, shield
from undaunted.fault_tolerance.worker import messages, numerics, store_server, witness

if TYPE_CHECKING:
    from undaunted.fault_tolerance.worker.messages import WorkerSpec
    from undaunted.progress.writer import PageWriter

# Ranks are ended before the agent when memory runs out: the agent can start them again.
_OOM_SCORE = 100
_OUTPUT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW


def become(spec: WorkerSpec, *, forked: bool) -> Page:
    """Make this process the worker of ``spec``, up to the first line of the user's program.

    Args:
        spec: the worker.
        forked: from the template: it needs what a new process has by itself.

    Returns:
        The rank's page. Does not return for a spec of kind ``program``.

    Raises:
        SystemExit: a file or directory of the spec cannot be used; the text says what to do.
    """
    if forked:
        _leave_template(spec)
    oom_score.raise_own(_OOM_SCORE)
    _bind(spec)
    _enter_directory(spec)
    _redirect(spec.stdout, spec.stderr)
    if spec.kind == "program":
        _exec(spec)
    _write_whole_lines()
    if forked:
        numerics.renew(spec.env)
        if spec.numa_node >= 0:
            numerics.limit_torch_threads()
        store_server.wait_before_connecting()
    page = Page.attach(spec)
    _arm_evidence(spec, page)
    witness.begin(spec.evidence_signal)
    shield.begin(spec.stop_signals)
    _note_signals(spec.signal_fd)
    return page


def _leave_template(spec: WorkerSpec) -> None:
    """Have what exec would give: own session, signals, environment, random numbers."""
    if not process.die_with_parent(spec.agent_pid):
        os._exit(1)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(spec.env)
    time.tzset()
    # A fork leaves it the template's, before Python 3.13.
    vars(threading.main_thread())["_native_id"] = threading.get_native_id()


def _bind(spec: WorkerSpec) -> None:
    """Keep this process on its NUMA node; memory that it shares with the template is elsewhere."""
    if spec.numa_node < 0:
        return
    try:
        numa.bind(spec.numa_node, strict=spec.numa_strict)
    except numa.NumaError as error:
        sys.exit(f"undaunted: local rank {spec.local_rank}: {error}")


def _enter_directory(spec: WorkerSpec) -> None:
    try:
        os.chdir(spec.cwd)
    except OSError as error:
        sys.exit(
            f"undaunted: local rank {spec.local_rank}: cannot enter the working directory "
            f"{spec.cwd!r}: {error.strerror}; start the launcher in one that exists on this node"
        )
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.ORIGINAL_DIR = spec.cwd


def _exec(spec: WorkerSpec) -> NoReturn:
    """Become the executable. Exit codes are as in a shell."""
    try:
        os.execvpe(spec.target, [spec.target, *spec.args], spec.env)  # noqa: S606 - the purpose
    except OSError as error:
        found = not isinstance(error, FileNotFoundError)
        what = "is not executable" if found else "is not found; give its path, or correct PATH"
        print(f"undaunted: cannot run {spec.target!r}: it {what} ({error.strerror})",
              file=sys.stderr)  # fmt: skip
        os._exit(126 if found else 127)


def _arm_evidence(spec: WorkerSpec, page: Page) -> None:
    """Have all stacks written when the agent asks with a signal, whatever holds the GIL."""
    if spec.evidence_signal <= 0 or spec.evidence_fd < 0:
        return
    try:
        faulthandler.register(
            spec.evidence_signal, file=spec.evidence_fd, all_threads=True, chain=False
        )
    except (OSError, RuntimeError, ValueError) as error:
        page.say("its stacks cannot be read if it hangs", error)
    else:
        page.arm_evidence(spec.evidence_signal)


def _note_signals(fd: int) -> None:
    """Have the agent know which signals this process has got, as long as the program lets it."""
    if fd < 0:
        return
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)

    def not_of_child() -> None:
        if (users := signal.set_wakeup_fd(-1)) != fd:
            signal.set_wakeup_fd(users)

    os.register_at_fork(after_in_child=not_of_child)


def report_stop_signal(spec: WorkerSpec) -> None:
    """Before an exit with a code: say that a stop signal may be why, if only the program hears it.

    Loops of asyncio, uvloop and trio have their own descriptor for signals.
    """
    if spec.signal_fd < 0 or not spec.stop_signals:
        return
    with contextlib.suppress(OSError, ValueError):  # the pipe is full; not the main thread
        users = signal.set_wakeup_fd(-1)
        if users == spec.signal_fd:
            signal.set_wakeup_fd(users, warn_on_full_buffer=False)
        else:
            os.write(spec.signal_fd, bytes(spec.stop_signals[:1]))


class Page:
    """Passes calls on to the writer of the page, as long as there is one that works."""

    def __init__(self, local_rank: int, writer: PageWriter | None) -> None:
        self._local_rank = local_rank
        self._writer = writer
        self._has_error = False

    @classmethod
    def attach(cls, spec: WorkerSpec) -> Page:
        """Attach to the page named in the environment, if there is one."""
        page = cls(spec.local_rank, None)
        value = os.environ.get("UNDAUNTED_PAGE", "")
        if value:
            try:
                # When it is needed, no file may be open any more, or sys.path be another one.
                import undaunted.progress.error_text  # noqa: F401
                from undaunted.progress.writer import PageWriter

                page._writer = PageWriter.attach(value)
                if not page._writer.attached:
                    page.say("it is not monitored", page._writer.reason)
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                page.say("it is not monitored", error)
        return page

    def milestone_first_line(self) -> None:
        """Say that the user's program begins now."""
        if self._writer is not None:
            try:
                self._writer.milestone("first_line")
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                self._lose(error)

    def arm_evidence(self, number: int) -> None:
        """Say that stacks are written on signal ``number``."""
        if self._writer is not None:
            try:
                self._writer.arm_evidence(number)
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                self._lose(error)

    def record_error(self, error: BaseException) -> None:
        """Record the exception that ends the program, the first one. Python reports it as well."""
        if self._writer is not None and not self._has_error:
            self._has_error = True
            try:
                self._writer.record_error(error)
            except Exception as problem:  # noqa: BLE001 - the report that follows matters more
                self._lose(problem)

    def program_ended(self) -> None:
        """Say that the interpreter shuts down, which has a separate limit."""
        if self._writer is not None:
            try:
                self._writer.leave()
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                self._lose(error)

    def say(self, consequence: str, reason: object) -> None:
        """Say on standard error what this rank goes without, and why."""
        print(f"undaunted: local rank {self._local_rank}: {consequence}: {reason}", file=sys.stderr)

    def _lose(self, error: Exception) -> None:
        self._writer = None
        self.say("it is not monitored from now on", error)


def _redirect(stdout: str, stderr: str) -> None:
    """Append descriptors 1 and 2 to these files from now on; "" leaves one as it is.

    Missing directories are created (0700), and files (0600); a symbolic link is refused. Both files
    are opened before either stream is touched, so that an error still reaches the standard error of
    the launcher.

    Raises:
        SystemExit: a file cannot be opened; the text names the remedy.
    """
    opened = {path: _open_output(path) for path in dict.fromkeys((stdout, stderr)) if path}
    for path, target in ((stdout, 1), (stderr, 2)):
        if path:
            os.dup2(opened[path], target)
    for fd in opened.values():
        os.close(fd)


def _write_whole_lines() -> None:
    """Have each line written in one piece, as on a terminal: many ranks share an output.

    Unbuffered, `print` writes text and newline one after the other, and another rank in between.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _open_output(path: str) -> int:
    try:
        _make_directory(Path(path).parent)
        return os.open(path, _OUTPUT_FLAGS, 0o600)
    except OSError as error:
        sys.exit(
            f"undaunted: cannot write the output of a rank to {path!r}: {error.strerror}; make "
            "room or correct its permissions, or choose another directory with --log-dir"
        )


def _make_directory(path: Path) -> None:
    """Create it and what is missing above it, all of them private (mkdir's own way is not)."""
    if not path.exists():
        _make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)  # another rank may have been faster


def read_spec(fd: int) -> WorkerSpec:
    """Read this worker's spec from the descriptor the agent passed; the environment is ours.

    Ends the process if it is no longer below the agent. What PYTHON_EXEC names may start the
    interpreter as its child: then that is the parent.
    """
    with os.fdopen(fd, "rb") as file:
        body = file.read(messages.MAX_BODY)
    message = messages.decode(body)
    assert isinstance(message, messages.Fork), "the agent puts one Fork into it"
    (spec,) = message.specs
    parent = os.getppid()
    if not process.die_with_parent(parent) or not process.is_below(parent, spec.agent_pid):
        sys.exit(1)
    return spec
