"""`elastic_launch`: a job from Python, as in torch, with everything `undaunted run` does.

The launcher is a process of its own: the caller may be a notebook or have any number of threads,
and nothing of it is forked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base.ids import file_name, new_run_id

if TYPE_CHECKING:
    from undaunted.fault_tolerance.config import FaultToleranceConfig
    from undaunted.journal.events import AnyEvent, JobEnded, Verdict

Entrypoint = Callable[..., Any] | str | Sequence[str]

_USAGE_ERROR = 2
_DEFAULT_TERM_S = 30
# The caller's package, not one that may lie in the current directory; and never without the caller.
_LAUNCHER = (
    "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; "
    "from undaunted.base.process import die_with_parent; "
    "die_with_parent(int(sys.argv.pop(1))) or sys.exit(1); "
    "from undaunted.cli.main import main; sys.exit(main())"
)


@dataclasses.dataclass
class LaunchConfig:
    """What to start and how; names and defaults of torch's, where one node has a use for them.

    Attributes:
        min_nodes, max_nodes: 1; more are not built yet.
        nproc_per_node: number of ranks; also ``auto``, ``gpu`` or ``cpu``.
        run_id: name of the run; "" = a new one by date and time.
        role: name of the workers in prefixes and ROLE_NAME.
        max_restarts: how often the job may be restarted.
        local_addr: MASTER_ADDR of the ranks, None = 127.0.0.1.
        local_ranks_filter: local ranks shown on the console, None = all.
        log_line_prefix_template: prefix of lines that ``tee`` shows, None = torch's.
        shutdown_timeout: seconds from SIGTERM to SIGKILL when ranks are stopped; None = by cause
            before a restart, 30 when the caller is interrupted.
        rdzv_backend, rdzv_endpoint, rdzv_configs, rdzv_timeout, monitor_interval, start_method,
            metrics_cfg: accepted, not used: one node needs no meeting point, nothing is polled.
        fault_tol_cfg: timeouts, progress and the other settings, None = the defaults.
        run_dir: directory of journal and stacks, None = ``undaunted-runs/RUN_ID``.
        log_dir: directory of redirected output, None = ``logs`` in the run directory.
        redirects: streams that go to files: 0 none, 1 stdout, 2 stderr, 3 both; or by rank,
            ``{0: 3}``.
        tee: streams that go to files and the console, in the same way.
        worker_start: ``warm`` or ``fresh``.
        preload: modules to import once for warm workers.
        inject_fault: fault plan, "" = none.

    Raises:
        ValueError: a value makes no sense.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int | str
    _: dataclasses.KW_ONLY
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "c10d"
    rdzv_configs: dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: str | None = None
    local_ranks_filter: Sequence[int] | None = None
    shutdown_timeout: float | None = None
    fault_tol_cfg: FaultToleranceConfig | None = None
    run_dir: str | os.PathLike[str] | None = None
    log_dir: str | os.PathLike[str] | None = None
    redirects: int | Mapping[int, int] = 0
    tee: int | Mapping[int, int] = 0
    worker_start: str = "warm"
    preload: Sequence[str] = ()
    inject_fault: str = ""

    def __post_init__(self) -> None:
        if (self.min_nodes, self.max_nodes) != (1, 1):
            raise ValueError(
                f"min_nodes {self.min_nodes}, max_nodes {self.max_nodes}: jobs of several nodes "
                "are not built yet; give 1 and 1"
            )
        if self.shutdown_timeout is not None and self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout {self.shutdown_timeout}: give 0 or more seconds")


class LaunchError(RuntimeError):
    """The job did not finish. The message is the first cause, with the traceback of its rank.

    Attributes:
        exit_code: what `undaunted run` ends with, see docs/exit-codes.md.
        outcome: ``failed``, ``preempted``, ``excluded``, ``no_restart``; "" if nothing was started.
        rank: global rank of the first cause, None if no rank is to blame.
        message: the verdict in one line, or why the job ended.
        traceback: of the exception of that rank, "" if there is none.
        run_dir: directory of the run, for `undaunted report`; None if there is none.
    """

    def __init__(
        self,
        exit_code: int,
        ended: JobEnded | None,
        verdict: Verdict | None,
        run_dir: Path | None,
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
            self.message = "nothing was started; the launcher has said why on standard error"
        else:
            self.message = f"the launcher ended with {exit_code} and left no journal"
        super().__init__("\n".join(filter(None, (self.message, self.traceback.rstrip()))))


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
            What the function returned, by rank; None for each rank of a program.

        Raises:
            LaunchError: the job did not finish.
            TypeError: the function or an argument cannot travel to the ranks.
            OSError: the machine refused a directory or a process.
        """
        run_id = self._config.run_id or new_run_id()
        with tempfile.TemporaryDirectory(prefix="undaunted-call-") as name:
            directory = Path(name)
            environment = _environment(self._config)
            if callable(self._entrypoint):
                from undaunted.fault_tolerance import function_call

                function_call.write_call(directory, self._entrypoint, args)
                environment[function_call.DIRECTORY_VARIABLE] = name
                environment.pop("PYTHON_EXEC", None)  # the interpreter that knows the function
                program = [str(Path(__file__).parent / "worker" / "call_function.py")]
            else:
                program = _program(self._entrypoint, args)
            options = [*_options(self._config, run_id), *_settings(self._config, directory)]
            code = _run([*options, *program], environment)
            launched = _Launched(self._config, run_id)
            if code:
                raise LaunchError(code, launched.ended, launched.verdict, launched.run_dir)
            if not callable(self._entrypoint):
                return dict.fromkeys(range(launched.ranks))
            return function_call.read_results(directory, launched.ranks)


def _run(arguments: list[str], environment: dict[str, str]) -> int:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _LAUNCHER, root, str(os.getpid()), "run", *arguments]
    # In a session of its own: Ctrl-C in a terminal reaches it once, from us.
    launcher = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return launcher.wait()
    except BaseException as error:
        number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        launcher.send_signal(number)
        _wait_for_end(launcher)
        raise


def _wait_for_end(launcher: subprocess.Popen[bytes]) -> None:
    """Wait for a launcher that was told to end, which it does within its ``--term-timeout``."""
    try:
        launcher.wait()
    except BaseException:
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGINT)  # the second one kills
        launcher.wait()
        raise


def _environment(config: LaunchConfig) -> dict[str, str]:
    """Return this process's environment without what would change the configuration."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("PET_")}
    if config.log_line_prefix_template is not None:
        found["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = config.log_line_prefix_template
    return found


def _options(config: LaunchConfig, run_id: str) -> list[str]:
    term = _DEFAULT_TERM_S if config.shutdown_timeout is None else config.shutdown_timeout
    given: dict[str, object] = {
        "nproc-per-node": config.nproc_per_node,
        "max-restarts": config.max_restarts,
        "rdzv-id": run_id,
        "role": config.role,
        "worker-start": config.worker_start,
        "term-timeout": term,
        "workers-stop-timeout": config.shutdown_timeout,
        "local-addr": config.local_addr,
        "local-ranks-filter": ",".join(map(str, config.local_ranks_filter or ())) or None,
        "run-dir": config.run_dir,
        "log-dir": config.log_dir,
        "redirects": _streams(config.redirects),
        "tee": _streams(config.tee),
        "preload": ",".join(config.preload) or None,
        "inject-fault": config.inject_fault or None,
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def _streams(value: int | Mapping[int, int]) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{rank}:{int(streams)}" for rank, streams in value.items()) or "0"
    return str(int(value))


def _settings(config: LaunchConfig, directory: Path) -> list[str]:
    if config.fault_tol_cfg is None:
        return []
    path = directory / "fault_tolerance.yaml"
    config.fault_tol_cfg.to_yaml_file(path)
    return [f"--ft-cfg-path={path}"]


def _program(entrypoint: str | Sequence[str], args: Sequence[Any]) -> list[str]:
    """Return the program as it stands at the end of the command line of `undaunted run`."""
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
    """What the journal says about the launch that has just ended."""

    def __init__(self, config: LaunchConfig, run_id: str) -> None:
        from undaunted.journal.events import JobEnded, JobStarted, Verdict
        from undaunted.journal.query import every

        self.run_dir: Path | None = None
        events: list[AnyEvent] = []
        for candidate in _run_dirs(config, run_id):
            if found := _last_launch(candidate, run_id):
                self.run_dir, events = candidate, found
                break
        self.ranks = next((e.nproc_per_node for e in every(events, JobStarted)), 0)
        self.ended = next(iter(every(events, JobEnded)), None)
        self.verdict = next(reversed(every(events, Verdict)), None)


def _run_dirs(config: LaunchConfig, run_id: str) -> list[Path]:
    """Return where the launcher may have put its run, as `undaunted run` chooses it."""
    if config.run_dir is not None:
        return [Path(config.run_dir).absolute()]
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - only read
    bases = (Path.cwd() / "undaunted-runs", temporary / f"undaunted-{os.getuid()}")
    return [base / file_name(run_id) for base in bases]


def _last_launch(run_dir: Path, run_id: str) -> list[AnyEvent]:
    from undaunted.journal.events import JobStarted
    from undaunted.journal.query import first
    from undaunted.journal.reader import find_journals, read_journal

    with contextlib.suppress(OSError):
        for path in find_journals(run_dir):
            events = (read_journal(path).launches() or [[]])[-1]
            started = first(events, JobStarted)
            if started is not None and started.run_id == run_id:
                return events
    return []
