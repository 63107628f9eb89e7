"""The front: the process the user, Slurm or Kubernetes started.

It forks the agent, passes signals on to it, and returns its exit code. It is also the agent's
safety net: as a subreaper it inherits every process of a dead agent, and ends it. As the first
process of a container it is the parent of all orphans there, and reaps them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base import process
from undaunted.base.deadline import within
from undaunted.base.signals import PROGRAMS_SIGNALS, Repeats
from undaunted.base.text import one_line
from undaunted.fault_tolerance import run_lock
from undaunted.fault_tolerance.output.lines import ERROR, TEXT
from undaunted.fault_tolerance.pulse import BEAT_S, Pulse, Standstill
from undaunted.fault_tolerance.run_config import SCRIPT_MAY_BE_LOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from undaunted.fault_tolerance.run_config import RunConfig

# The third Ctrl-C does not ask the agent any more.
_INTERRUPTS_TO_KILL_AGENT = 3
_SWEEP_DEADLINE_S = 5.0
_SWEEPS = 3
_MOST_NAMED = 5  # of the processes that outlived the job
_DIED_BADLY = 1
_IN_USE = _NOTHING_STARTED = 2
_NO_THREAD = "can't start new thread"  # as Python puts it
_MOST_LAUNCHERS = 256  # of one job on a host
# Its presence tells a script that starts jobs again (NeMo-Run) that this one is finished.
_FINISHED_FLAG = "FAULT_TOL_FINISHED_FLAG_FILE"
_FLAG_DEADLINE_S = 5.0
# These end the launcher where they are not among those that it handles. The agent hears it before.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)


def run(config: RunConfig, end_for_script: Callable[[RunConfig], None] | None = None) -> int:
    """Run the job of ``config``; return the launcher's exit code (docs/exit-codes.md).

    Must be called from the main thread of a process without other threads, which ends afterwards.

    Args:
        config: what to run.
        end_for_script: called at the end where ``config.script`` may be lost with its node.

    Raises:
        OSError: the machine refused a process or a socket.
    """
    # A script that starts a helper and then becomes us by exec leaves us a child that is not ours.
    strangers = {
        (pid, start)
        for pid in process.descendants(os.getpid())
        if (start := process.start_time(pid)) is not None
    }
    config, lock = _lock(config)
    if lock is None:
        return _IN_USE
    process.become_subreaper()
    # What was ignored when we were started stays so, also in the agent: SIGHUP under nohup, Ctrl-C
    # where a script says `undaunted run ... &`.
    heard = [number for number in config.signals if signal.getsignal(number) is not signal.SIG_IGN]
    config = msgspec.structs.replace(config, signals=heard)
    ours, agents = socket.socketpair()
    pulse = Pulse() if config.nodes is not None else None
    with _signals_to_pipe({*_ENDING, *PROGRAMS_SIGNALS, *config.signals}) as signals, ours:
        with agents:
            try:
                agent_pid = _fork_agent(config, ours, agents, signals, pulse, lock)
            except OSError as error:
                config.lines.show(_no_process(error.strerror or str(error)), level=ERROR)
                return _NOTHING_STARTED
        status, told = _stand_by(config, agent_pid, ours, signals, pulse)
        lost = _says(ours) == SCRIPT_MAY_BE_LOST
        # An agent that has ended by itself has killed what it left, and said what was not its own.
        dying = os.waitstatus_to_exitcode(status) < 0
        killed = process.end_descendants(_SWEEP_DEADLINE_S, strangers, dying=dying)
        code = _exit_code(config, status, agent_pid, killed)
        # Ranks that were told to stop may end with 0 as well, having saved what they had.
        if not code and not told:
            _flag_finished(config)
    if lost and end_for_script is not None:
        end_for_script(config)
    return code


def _lock(config: RunConfig) -> tuple[RunConfig, int | None]:
    """Lock the run directory, if need be under another name of this node; say what was found.

    Several launchers of one job may run on a host with one command: each is a node.

    Returns:
        With that name, and the lock, see `run_lock.lock`; None = somebody else has it.
    """
    for number in range(1, _MOST_LAUNCHERS + 1):
        node = config.node if number == 1 else f"{config.node}-{number}"
        if problem := run_lock.no_file(config.run_dir, node):
            config.lines.show(problem, level=ERROR)
            return config, None
        say = config.lines.show
        lock = run_lock.lock(config.run_dir, node, job=config.run_id, say=say)
        if lock is not None:
            if number > 1:
                say(
                    f"node {config.node} has a launcher of this job already: this one "
                    f"is node {node} (--node-name gives it another name)"
                )
            return msgspec.structs.replace(config, node=node), lock
        other = run_lock.owner(config.run_dir, node)
        beside = other is not None and other.lives and run_lock.same_job(other, config.run_id)
        if config.nodes is None or config.nodes.named or not beside:
            break
    config.lines.show(_in_use(config, node, other), level=ERROR)
    return config, None


def _in_use(config: RunConfig, node: str, owner: run_lock.Owner | None) -> str:
    """Say who has the lock, and what to do about it."""
    lives = owner is not None and owner.lives
    pid = owner.pid if owner is not None and lives else run_lock.holder(config.run_dir, node)
    if pid is not None and not lives:
        return (
            f"{config.run_dir} is in use: a launcher of node {node} has ended and left a process "
            f"(pid {pid}), which may still write; end it (kill -KILL {pid}), and start this job "
            "again"
        )
    which = "" if pid is None else f" (pid {pid})"
    if pid is not None and process.state(pid) in {"T", "t"}:
        which = f" (pid {pid}, which is stopped: kill -CONT {pid} lets it go on)"
    remedy = "give each its own --run-dir"
    if config.nodes is not None:
        remedy = "give each launcher of the job its own --node-name, and each job its own --run-dir"
    return (
        f"{config.run_dir} is in use by another launcher{which} of node {node}; "
        f"{remedy}, or wait until the other one has ended"
    )


def _fork_agent(
    config: RunConfig,
    ours: socket.socket,
    agents: socket.socket,
    signals: socket.socket,
    pulse: Pulse | None,
    lock: int,
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = _DIED_BADLY
    try:
        ours.close()
        signals.close()
        signal.set_wakeup_fd(-1)
        for ending in _ENDING:
            ignored = signal.getsignal(ending) is signal.SIG_IGN
            # Unlike SIG_IGN, a handler is not inherited by what is started.
            signal.signal(ending, (lambda *_: None) if ignored else signal.SIG_DFL)
        for number in {*config.signals, *PROGRAMS_SIGNALS}:
            signal.signal(number, signal.SIG_IGN)  # until the agent's loop handles them
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()  # Ctrl-C in the terminal reaches the front only, which passes it on
        from undaunted.fault_tolerance.agent.start import run_agent

        code = run_agent(config, agents, pulse, lock)
    except BaseException as error:  # noqa: BLE001 - the child must never return into the caller
        if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
            config.lines.show(_no_process(_NO_THREAD), level=ERROR)
        else:
            sys.excepthook(*sys.exc_info())
    finally:
        _flush_standard_streams()
        os._exit(code)


def _no_process(why: str) -> str:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    known = "" if limit == resource.RLIM_INFINITY else f", now {limit}"
    return (
        f"the launcher gets no further process or thread: {why}; raise the limit of "
        f"this user (ulimit -u{known}) or of its control group (pids.max), or end other processes"
    )


def _flush_standard_streams() -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        sys.stderr.flush()


@contextlib.contextmanager
def _signals_to_pipe(wanted: Iterable[int]) -> Iterator[socket.socket]:
    """Turn these signals, and SIGCHLD, into bytes (their numbers) on the yielded socket.

    Afterwards they do nothing: the process ends, with the exit code of the job.
    """
    readable, writable = socket.socketpair()
    readable.setblocking(False)
    writable.setblocking(False)
    signal.set_wakeup_fd(writable.fileno(), warn_on_full_buffer=False)
    numbers = [n for n in wanted if signal.getsignal(n) is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # were it ignored, children would vanish
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*numbers, signal.SIGCHLD})
    try:
        yield readable
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        readable.close()
        writable.close()


def _stand_by(
    config: RunConfig,
    agent_pid: int,
    agent: socket.socket,
    signals: socket.socket,
    pulse: Pulse | None,
) -> tuple[int, bool]:
    """Forward signals until the agent is gone; return its wait status, and if there was one.

    Ranks that may not outlive an agent which stands still are ended.

    After a signal that should have ended this process, the status has that instead.
    """
    interrupts, told, repeats, ends = 0, False, Repeats(), 0
    agent.setblocking(False)
    pidfd = process.open_pidfd(agent_pid)
    assert pidfd is not None, "an own child exists until it has been waited for"
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(signals, select.POLLIN)
    standstill = None if pulse is None else Standstill(pulse)
    look_ms = None if pulse is None else 1000 * BEAT_S
    try:
        while True:
            ready = {fd for fd, _ in poller.poll(look_ms)}
            if pulse is not None and standstill is not None and standstill.look(time.monotonic()):
                pulse.end_ranks(time.monotonic_ns())
                _end_ranks_of(config, agent_pid)
            if signals.fileno() in ready:
                now, came = time.monotonic(), signals.recv(64)
                if signal.SIGCHLD in came:
                    _reap_orphans(agent_pid)
                came = bytes(number for number in came if number != signal.SIGCHLD)
                told = told or bool(came)
                numbers = bytes(n for n in came if repeats.counts(n, now))
                interrupts += numbers.count(signal.SIGINT)
                if interrupts >= _INTERRUPTS_TO_KILL_AGENT:
                    process.signal_pidfd(pidfd, signal.SIGKILL)
                if numbers:
                    with contextlib.suppress(OSError):  # full buffer or dying agent: see the pidfd
                        agent.send(numbers)
                if numbers and (ends := ends or _end_by_itself(config, numbers)):
                    with contextlib.suppress(OSError):  # the agent has ended
                        agent.shutdown(socket.SHUT_RDWR)  # as if this process had
            if pidfd in ready:
                status = os.waitpid(agent_pid, 0)[1]
                return (128 + ends) << 8 if ends else status, told
    finally:
        os.close(pidfd)


def _end_ranks_of(config: RunConfig, agent_pid: int) -> None:
    """End what the agent has started; where it goes on, its node joins the job again."""
    for _ in range(_SWEEPS):  # who forks meanwhile may be missed
        for pid in process.descendants(agent_pid):
            pidfd = process.open_pidfd(pid)
            if pidfd is not None:
                with contextlib.suppress(OSError):
                    process.signal_pidfd(pidfd, signal.SIGKILL)
                os.close(pidfd)
    stands = f"the agent of node {config.node} (pid {agent_pid}) stands still"
    _say(config, f"{stands}: its ranks got SIGKILL, as others stop or go on without this node")


def _reap_orphans(agent_pid: int) -> None:
    """Take the status of children that have ended, until the agent is one of them."""
    ends = os.WEXITED | os.WNOHANG
    while (end := os.waitid(os.P_ALL, 0, ends | os.WNOWAIT)) and end.si_pid != agent_pid:
        os.waitid(os.P_PID, end.si_pid, ends)


def _says(agent: socket.socket) -> bytes:
    """Return what the agent has said at its end."""
    try:
        return agent.recv(64)
    except OSError:
        return b""


def _end_by_itself(config: RunConfig, numbers: bytes) -> int:
    """End this process as a signal does that it does not handle; the agent ends all others.

    Returns:
        The signal that could not: the first process of a container gets none from within. 0 = there
        was none to end it.
    """
    for number in numbers:
        if number not in config.signals and number not in PROGRAMS_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return number
    return 0


def _exit_code(config: RunConfig, status: int, agent_pid: int, killed: Mapping[int, str]) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        from undaunted.attribution.exits import signal_name
        from undaunted.fault_tolerance.agent import error_files

        error_files.remove_of(agent_pid)
        many = _processes(len(killed))
        left = f" and left {many} behind, which got SIGKILL" if killed else ""
        _say(
            config,
            f"the agent (pid {agent_pid}) was killed by {signal_name(-code)}{left}; "
            f"{_what_now(config)}",
        )
        return _DIED_BADLY
    if killed:  # what the job came to is decided all the same
        which = ", ".join(f"{name} (pid {pid})" for pid, name in [*killed.items()][:_MOST_NAMED])
        more = ", ..." if len(killed) > _MOST_NAMED else ""
        many = _processes(len(killed))
        _say(config, f"{many} that outlived the job got SIGKILL: {one_line(which)}{more}")
    return code


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _flag_finished(config: RunConfig) -> None:
    """Make the file that says so, if one is wanted. Trouble with it changes nothing else."""
    if not (path := os.environ.get(_FINISHED_FLAG, "")):
        return

    def touch() -> str:
        try:
            Path(path).touch(0o600)
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    problem = within(_FLAG_DEADLINE_S, touch, f"no answer within {_FLAG_DEADLINE_S:g} s")
    if problem:
        _say(config, f"the job is finished, but {_FINISHED_FLAG} cannot be written: {problem}")


def _what_now(config: RunConfig) -> str:
    if config.nodes is None:
        return "start the job again; it goes on from its last checkpoint, if there is one"
    return (
        f"the job goes on without node {config.node} if enough others are left (--nnodes: "
        f"{config.nodes.min_nodes}); start this launcher again and it joins them"
    )


def _say(config: RunConfig, text: str) -> None:
    """Say something when the agent is gone, and record it."""
    from undaunted.journal.events import Remark
    from undaunted.journal.writer import append_last

    now_ns = time.monotonic_ns()
    remark = Remark(t=now_ns, wall=time.time(), node=config.node, text=text, level="error")
    append_last(Path(config.run_dir, f"journal-{config.node}.jsonl"), remark)
    if config.launcher_log:
        from undaunted.fault_tolerance.output.messages import append_last_words

        append_last_words(config.launcher_log, config.node, TEXT.line(text))
    config.lines.show(text, level=ERROR)
