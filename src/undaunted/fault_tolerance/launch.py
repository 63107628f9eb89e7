"""`elastic_launch`: a job from Python, as in torch, with everything `undaunted run` does.

The launcher is a separate process: the caller may be a notebook or have any number of threads,
and nothing of it is forked.
"""

from __future__ import annotations

import contextlib
import copyreg
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base.ids import file_name, new_run_id
from undaunted.base.process import code_command, open_pidfd
from undaunted.base.signals import SAME_S
from undaunted.base.text import one_line
from undaunted.fault_tolerance.launch_config import environment, options, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.fault_tolerance.launch_config import LaunchConfig
    from undaunted.journal.events import AnyEvent, JobEnded, Verdict

Entrypoint = Callable[..., Any] | str | Sequence[str]

_USAGE_ERROR = 2
_STDERR = "stderr"
_LONGEST_REASON = 1000
_DIRECTORY = "undaunted-call-"
_KILL_S = 30.0  # for a launcher that was told to kill all processes of the job, or was killed
_NEW_S = 60.0  # until then a caller may not have locked its directory yet
# Never without the caller.
_LAUNCHER = (
    # It comes from the caller alone; one that a shell has started with & ignores it.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from undaunted.base.process import die_with_parent; "
    "die_with_parent(int(sys.argv.pop(1))) or sys.exit(1); "
    "from undaunted.base.streams import copy_stderr; copy_stderr(sys.argv.pop(1)); "
    "from undaunted.cli.main import main; sys.exit(main())"
)


class LaunchError(RuntimeError):
    """The job did not finish. The message is the first cause, with the traceback of its rank.

    Attributes:
        exit_code: what `undaunted run` ends with, see docs/exit-codes.md.
        outcome: ``failed``, ``preempted``, ``excluded``, ``no_restart``, ``suspect``, ``invalid``,
            ``straggler``, ``too_few_nodes``; "" if nothing was started.
        rank: global rank of the first cause, None if no rank of this node is to blame.
        message: the verdict in one line, or why the job ended; of several nodes, the first cause
            wherever it was.
        traceback: of the exception of that rank, "" if there is none.
        run_dir: directory of the run, for `undaunted report`; None if there is none.
    """

    def __init__(
        self,
        exit_code: int,
        ended: JobEnded | None,
        verdict: Verdict | None,
        run_dir: Path | None,
        said: str = "",
    ) -> None:
        self.exit_code = exit_code
        self.outcome = ended.outcome if ended else ""
        self.rank = verdict.rank if verdict else None
        self.traceback = verdict.traceback if verdict else ""
        self.run_dir = run_dir
        if verdict is not None:
            self.message = verdict.line
        elif ended is not None:
            self.message = ended.reason or ended.outcome
        elif exit_code == _USAGE_ERROR:
            why = f": {said}" if said else "; the launcher has said why on standard error"
            self.message = f"nothing was started{why}"
        else:
            why = f": {said}" if said else ""
            self.message = f"the launcher ended with {exit_code}{why}"
        super().__init__("\n".join(filter(None, (self.message, self.traceback.rstrip()))))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it travel to another process, as out of a pool of processes."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class elastic_launch:  # noqa: N801 - torch's name
    """Runs a program or a function in every rank: ``elastic_launch(config, entrypoint)(*args)``."""

    def __init__(self, config: LaunchConfig, entrypoint: Entrypoint) -> None:
        """Keep what to start.

        Args:
            config: how.
            entrypoint: a function; a Python script (``train.py``); an executable, also with
                arguments: ``["python", "-m", "package.train"]``.
        """
        self._config = config
        self._entrypoint = entrypoint

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job, restarts included, and wait for its end.

        An exception in the caller, KeyboardInterrupt above all, ends the job; a second one kills
        it.

        Args:
            args: of the function, or of the program (text, numbers and paths).

        Returns:
            What the function returned, by rank; None for each rank of a program. Of several nodes,
            the ranks of this one; none where it was a spare.

        Raises:
            LaunchError: the job did not finish.
            TypeError: the function or an argument cannot travel to the ranks, or a return value
                back; the ranks have finished then.
            OSError: the machine refused a directory or a process.
        """
        run_id = self._config.run_id or new_run_id()
        with _own_directory() as directory:
            env = environment()
            if callable(self._entrypoint):
                from undaunted.fault_tolerance import function_call

                function_call.write_call(directory, self._entrypoint, args)
                env[function_call.DIRECTORY_VARIABLE] = str(directory)
                env.pop("PYTHON_EXEC", None)  # the interpreter that knows the function
                program = function_call.program(self._entrypoint)
            else:
                program = _program(self._entrypoint, args)
            how = [*options(self._config, run_id), *settings(self._config, directory)]
            code = _run(["run", *how, *program], env, directory / _STDERR)
            launched = _Launched(self._config, run_id)
            if code:
                said = _last_line(directory / _STDERR)
                raise LaunchError(code, launched.ended, launched.verdict, launched.run_dir, said)
            if not callable(self._entrypoint):
                return dict.fromkeys(launched.ranks)
            return function_call.read_results(directory, launched.ranks)


def coordinate(config: LaunchConfig) -> tuple[int, str]:
    """Be the caller of a coordinator on a separate host, which trains nothing, until it ends.

    Args:
        config: as of the launchers, which must not serve the coordinator themselves
            (``is_host=0`` in ``rdzv_configs``).

    Returns:
        Its exit code, that of the job where it has seen the end; below 0 = killed by a signal. And
        what it has said last.

    Raises:
        OSError: the machine refused a directory or a process.
    """
    with _own_directory() as directory:
        how = [*options(config, config.run_id), *settings(config, directory)]
        code = _run(["coordinator", *how], environment(), directory / _STDERR)
        return code, _last_line(directory / _STDERR)


@contextlib.contextmanager
def _own_directory() -> Iterator[Path]:
    """Make a directory for one call; remove those that callers left who were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*"):
        with contextlib.suppress(OSError):  # in use, or somebody else removes it
            _remove_if_left(path)
    with tempfile.TemporaryDirectory(prefix=_DIRECTORY) as name:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: nothing is removed
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(fd)


def _remove_if_left(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        if found.st_uid == os.getuid() and time.time() - found.st_mtime > _NEW_S:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(fd)


def _run(arguments: list[str], env: dict[str, str], stderr: Path) -> int:
    """Run a command of undaunted until it ends, or we are told to end."""
    command = code_command(_LAUNCHER, str(os.getpid()), str(stderr), *arguments)
    # In a new session: Ctrl-C in a terminal reaches it once, from us.
    launcher = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return _wait(launcher)
    except BaseException as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        launcher.send_signal(number)
        _wait_for_end(launcher)
        raise


def _wait(launcher: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a launcher, or for what interrupts the main thread.

    `_thread.interrupt_main`, by which Ray cancels a task, wakes up no system call that waits, but
    writes to this descriptor as a signal does.
    """
    if threading.current_thread() is not threading.main_thread():
        return launcher.wait()
    pidfd = open_pidfd(launcher.pid)
    assert pidfd is not None, "an own child exists until it has been waited for"
    ours, signals = socket.socketpair()
    signals.setblocking(False)
    old_fd = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    try:
        if old_fd != -1:  # somebody else's, such as an event loop's
            signal.set_wakeup_fd(old_fd)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.register(ours, select.POLLIN)
        while all(fd != pidfd for fd, _ in poller.poll()):
            ours.recv(64)  # its handler, if Python has one, has run
        return launcher.wait()
    finally:
        signal.set_wakeup_fd(old_fd)
        ours.close()
        signals.close()
        os.close(pidfd)


def _last_line(path: Path) -> str:
    """Return what the launcher said last on standard error, for an exception in a notebook."""
    try:
        lines = path.read_text("utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    last = next(filter(None, map(str.strip, reversed(lines))), "")
    for prefix in ("undaunted run: error: ", "undaunted coordinator: error: ", "[undaunted] "):
        last = last.removeprefix(prefix)
    return one_line(last, longest=_LONGEST_REASON)


def _wait_for_end(launcher: subprocess.Popen[bytes]) -> None:
    """Wait for a launcher that was told to end, which it does within its ``--term-timeout``."""
    told = time.monotonic()
    while True:
        try:
            _wait(launcher)
        except BaseException:
            if time.monotonic() - told < SAME_S:
                continue  # a signal that came twice
            launcher.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(2 * SAME_S)
                raise
            launcher.send_signal(signal.SIGINT)  # the second one kills
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(_KILL_S)
                raise
            launcher.kill()  # its agent ends all others
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(_KILL_S)
            raise
        return


def _program(entrypoint: str | Sequence[str], args: Sequence[Any]) -> list[str]:
    """Return the program as it stands at the end of the command line of `undaunted run`."""
    if not isinstance(entrypoint, (str, list, tuple)):
        raise TypeError(
            f"the entrypoint is {entrypoint!r}; give a function, a script, or a list that names an "
            "executable and its arguments"
        )
    first = [entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
    words = [*first, *map(_word, args)]
    if not words:
        raise ValueError("the entrypoint is empty; name a script or an executable")
    if words[0] == sys.executable:  # the launcher starts it itself, faster
        rest = words[2:] if words[1:2] == ["-u"] else words[1:]
        if len(rest) > 1 and rest[0] == "-m":
            return ["--module", *rest[1:]]
        if rest and not rest[0].startswith("-"):
            return rest
    return words if words[0].endswith(".py") else ["--no-python", *words]


def _word(arg: Any) -> str:
    if isinstance(arg, (str, int, float, os.PathLike)):
        return str(arg)
    raise TypeError(f"{arg!r} cannot be an argument of a program; give text, a number or a path")


class _Launched:
    """Read from the journal how the launch ended that is just over."""

    def __init__(self, config: LaunchConfig, run_id: str) -> None:
        from undaunted.journal.events import JobEnded, RoundBlamed, RoundStarted, Verdict
        from undaunted.journal.query import every

        self.run_dir: Path | None = None
        events: list[AnyEvent] = []
        for candidate in _run_dirs(config, run_id):
            if found := _last_launch(candidate, config, run_id):
                self.run_dir, events = candidate, found
                break
        rounds = every(events, RoundStarted)
        self.ranks = rounds[-1].ranks if rounds else []
        self.ended = next(iter(every(events, JobEnded)), None)
        verdict = next(reversed(every(events, Verdict)), None)
        blamed = next(reversed(every(events, RoundBlamed)), None)
        if self.ended and self.ended.alone:
            verdict = None  # this node gave up, whatever had happened here before
        if verdict and blamed and blamed.node != config.node and blamed.number >= verdict.round:
            verdict = None  # what happened here came of something elsewhere
        self.verdict = verdict


def _run_dirs(config: LaunchConfig, run_id: str) -> list[Path]:
    """Return where the launcher may have put its run, as `undaunted run` chooses it."""
    if config.run_dir is not None:
        return [Path(config.run_dir).absolute()]
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - only read
    bases = (Path.cwd() / "undaunted-runs", temporary / f"undaunted-{os.getuid()}")
    return [base / file_name(run_id) for base in bases]


def _last_launch(run_dir: Path, config: LaunchConfig, run_id: str) -> list[AnyEvent]:
    from undaunted.journal.events import JobStarted
    from undaunted.journal.query import first
    from undaunted.journal.reader import find_journals, read_journal

    with contextlib.suppress(OSError):
        for path in find_journals(run_dir):
            events = (read_journal(path).launches() or [[]])[-1]
            started = first(events, JobStarted)
            if started is None or started.run_id != run_id:
                continue
            if not config.of_several_nodes or started.node == config.node:
                return events
    return []
