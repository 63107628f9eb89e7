"""In the rank: connects to the agent of `undaunted run`, or starts a guard of its own."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from undaunted.base.process import module_command
from undaunted.coordinator.wire.sockets import check_own, peer
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard import startup
from undaunted.inprocess.guard.meeting import meeting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.inprocess.guard.meeting import Place

# Set by `undaunted run`: name of the agent's abstract Unix socket, without the leading NUL.
VARIABLE = "UNDAUNTED_INPROCESS"

_PROGRAM = "undaunted.inprocess.guard.program"
_AGENT_S = 10.0  # for the agent to take a connection
_BEYOND_S = 10.0  # for the guard's start, beside what it waits for itself


@dataclass(frozen=True)
class Options:
    """The options of a guard, as given to `Wrapper`.

    Attributes:
        job_rank: RANK as the launcher has set it.
        world_size: WORLD_SIZE as the launcher has set it.
        heartbeat_interval_s, heartbeat_timeout_s, barrier_timeout_s: seconds.
        store_kwargs: where rank 0's guard listens: ``host_name``, ``port``.
        logfile: absolute path of the guard's log, "" = none; ``{rank}`` is the job rank.
        pidfile: absolute path of a file with the guard's pid, "" = none; ``{rank}`` likewise.
    """

    job_rank: int
    world_size: int
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 30.0
    barrier_timeout_s: float = 120.0
    store_kwargs: Mapping[str, Any] = field(default_factory=dict)
    logfile: str = ""
    pidfile: str = ""


def connect(
    options: Options, *, base_store: Any = None, environ: Mapping[str, str] = os.environ
) -> socket.socket:
    """Return a connection to this rank's guard, which is ready: the next frame is `Enter`.

    After it is closed, a guard that was started here ends when it has reported everything.

    Args:
        options: of this rank.
        base_store: result of a custom `store_factory`, None = there is none.
        environ: the environment.

    Raises:
        InternalError: there is no guard; the message says why, and what to do.
    """
    name = environ.get(VARIABLE)
    return _connect_to_agent(name, options) if name else _start(options, base_store, environ)


def guard_pid(sock: socket.socket) -> int:
    """Return the process id of the guard that `connect` has just connected to."""
    found = peer(sock).pid
    return _guards[-1].pid if found == os.getpid() and _guards else found


def own_guard(pid: int) -> subprocess.Popen[bytes] | None:
    """Return the guard with this pid if this process has started it, else None."""
    return next((guard for guard in _guards if guard.pid == pid), None)


def _connect_to_agent(name: str, options: Options) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_AGENT_S)
        sock.connect(f"\0{name}")
        check_own(sock)
        sock.settimeout(None)
    except OSError as error:
        sock.close()
        raise InternalError(
            f"rank {options.job_rank}: the agent of undaunted run cannot be reached ({error}); a "
            f"process that is no rank of it must not have {VARIABLE} in its environment"
        ) from error
    except BaseException:
        sock.close()
        raise
    return sock


# --- a guard of our own ---------------------------------------------------------------------------


class _GuardProcess(subprocess.Popen[bytes]):
    """A child that is to outlive this process; if it ends first, this process reaps it."""

    def __del__(self) -> None:
        """Without the warning that it still runs."""


_guards: list[_GuardProcess] = []


def _start(options: Options, base_store: Any, environ: Mapping[str, str]) -> socket.socket:
    _guards[:] = [guard for guard in _guards if guard.poll() is None]
    ours, theirs = socket.socketpair()
    try:
        # It loads its modules while this rank looks for the controller.
        with theirs:
            _guards.append(_execute(theirs, environ))
        where = meeting(
            options.job_rank,
            options.world_size,
            environ,
            base_store=base_store,
            store_kwargs=options.store_kwargs,
            timeout_s=options.barrier_timeout_s,
        )
        port = _begin(ours, options, where.find())
        if options.job_rank == 0:
            where.publish(port)
        ours.settimeout(None)
    except BaseException:
        ours.close()
        raise
    return ours


def _execute(theirs: socket.socket, environ: Mapping[str, str]) -> _GuardProcess:
    """Start the program, in a session of its own: signals to our process group do not reach it."""
    # Standard streams take the numbers below, which may be free where a service has closed them.
    fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return _GuardProcess(
            module_command(_PROGRAM, str(fd)),
            pass_fds=[fd],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise InternalError(f"the guard cannot be started: {error}") from error
    finally:
        os.close(fd)


def _begin(ours: socket.socket, options: Options, place: Place) -> int:
    """Tell the guard what to do; return the port it listens at, when it is ready."""
    rank = str(options.job_rank)
    begin = startup.Begin(
        job_rank=options.job_rank,
        world_size=options.world_size,
        hosts=place.hosts,
        address=place.address,
        run=place.run,
        token=place.token,
        heartbeat_interval_s=options.heartbeat_interval_s,
        heartbeat_timeout_s=options.heartbeat_timeout_s,
        barrier_timeout_s=options.barrier_timeout_s,
        logfile=options.logfile.replace("{rank}", rank),
        pidfile=options.pidfile.replace("{rank}", rank),
        append_pid="{rank}" not in options.pidfile,
    )
    wait_s = options.barrier_timeout_s + _BEYOND_S
    try:
        startup.send(ours, begin)
        answer = startup.receive(ours, startup.Answer, time.monotonic() + wait_s)
    except TimeoutError:
        raise InternalError(f"rank {rank}: its guard is not ready after {wait_s:.0f} s") from None
    except ConnectionError:
        answer = None
    except (OSError, ValueError) as error:
        raise InternalError(f"rank {rank}: its guard is of no use: {error}") from error
    match answer:
        case startup.Ready(port=port):
            return port
        case startup.Refused(text=text):
            raise InternalError(f"rank {rank}: its guard cannot serve: {text}")
        case _:
            raise InternalError(
                f"rank {rank}: its guard has ended before it was ready; run "
                f"{sys.executable} -m {_PROGRAM} to see whether it can be started"
            )
