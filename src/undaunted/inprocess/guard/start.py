"""In the rank: connects to the agent of `undaunted run`, or has a guard made for it.

The ranks of a job on one node start one program, which forks a guard for each of them: that is most
of the memory, once. Each rank looks for the program at an abstract Unix socket. The first one finds
nobody, listens there itself, and hands the listening socket to the program that it starts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted import __version__
from undaunted.base.process import module_command
from undaunted.coordinator.wire.sockets import check_own, peer
from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard import startup
from undaunted.inprocess.guard.meeting import job_name, meeting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.inprocess.guard.meeting import Place

# Set by `undaunted run`: name of the agent's abstract Unix socket, without the leading NUL.
VARIABLE = "UNDAUNTED_INPROCESS"

_PROGRAM = "undaunted.inprocess.guard.program"
_CONNECT_S = 10.0  # for an agent or a program to take a connection
_BEYOND_S = 10.0  # for the guard's start, beside what it waits for itself
_BACKLOG = 4096


@dataclass(frozen=True)
class Options:
    """The options of a guard, as given to `Wrapper`.

    Attributes:
        job_rank: RANK as the launcher has set it.
        world_size: WORLD_SIZE as the launcher has set it.
        heartbeat_interval_s: seconds.
        limits: of the first call.
        store_kwargs: where rank 0's guard listens: ``host_name``, ``port``.
        logfile: absolute path of the guard's log, "" = none; ``{rank}`` is the job rank.
        pidfile: absolute path of a file with the guard's pid, "" = none; ``{rank}`` likewise.
    """

    job_rank: int
    world_size: int
    heartbeat_interval_s: float = 1.0
    limits: Limits = field(default_factory=Limits)
    store_kwargs: Mapping[str, Any] = field(default_factory=dict)
    logfile: str = ""
    pidfile: str = ""


class Guard(NamedTuple):
    """A rank's connection to its guard, which is ready: the next frame is `Enter`.

    Attributes:
        sock: after it is closed, a guard of this rank alone ends when it has reported everything.
        pid: of the guard.
        own: it serves this rank alone; False = it is the agent.
    """

    sock: socket.socket
    pid: int
    own: bool


def connect(
    options: Options, *, base_store: Any = None, environ: Mapping[str, str] = os.environ
) -> Guard:
    """Connect to this rank's guard.

    Args:
        options: of this rank.
        base_store: result of a custom `store_factory`, None = there is none.
        environ: the environment.

    Raises:
        InternalError: there is no guard; the message says why, and what to do.
    """
    name = environ.get(VARIABLE)
    return _connect_to_agent(name, options) if name else _start(options, base_store, environ)


def _connect_to_agent(name: str, options: Options) -> Guard:
    try:
        sock = _connect(name)
    except OSError as error:
        raise InternalError(
            f"rank {options.job_rank}: the agent of undaunted run cannot be reached ({error}); a "
            f"process that is no rank of it must not have {VARIABLE} in its environment"
        ) from error
    return Guard(sock, peer(sock).pid, own=False)


def _connect(name: str) -> socket.socket:
    """Connect to an abstract Unix socket of a process of this user.

    Raises:
        OSError: nobody listens there, or another user does.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_CONNECT_S)
        sock.connect(f"\0{name}")
        check_own(sock)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


# --- a guard of our own ---------------------------------------------------------------------------


class _Program(subprocess.Popen[bytes]):
    """A child that is to outlive this process; if it ends first, this process reaps it."""

    def __del__(self) -> None:
        """Without the warning that it still runs."""


_programs: list[_Program] = []


def _start(options: Options, base_store: Any, environ: Mapping[str, str]) -> Guard:
    place: Place | None = None
    for name in _names(options, environ):
        # The program loads its modules while this rank looks for the controller.
        sock = _reach(name, environ)
        if sock is None:
            continue
        try:
            if place is None:
                where = meeting(
                    options.job_rank,
                    options.world_size,
                    environ,
                    base_store=base_store,
                    store_kwargs=options.store_kwargs,
                    timeout_s=options.limits.barrier_timeout,
                )
                place = where.find()
            ready = _begin(sock, options, place)
            if ready is not None:
                if options.job_rank == 0:
                    where.publish(ready.port)
                sock.settimeout(None)
                return Guard(sock, ready.pid, own=True)
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise InternalError(
        f"rank {options.job_rank}: its guard has ended before it was ready; run "
        f"{sys.executable} -m {_PROGRAM} to see whether it can be started"
    )


def _names(options: Options, environ: Mapping[str, str]) -> Iterator[str]:
    """Return the names of the socket to try in turn, the last of which is this rank's alone.

    A program may end, as its last guard has, while a rank connects to it.
    """
    job = job_name(environ)
    if job and options.world_size > 1 and environ.get("LOCAL_WORLD_SIZE") != "1":
        # Containers may share the network, and with it these names, and nothing else.
        worlds = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("pid", "mnt")]
        place = (sys.prefix, Path(__file__).parent, __version__)
        words = (job, options.world_size, *place, *worlds)
        digest = hashlib.sha256(repr(words).encode()).hexdigest()[:32]
        yield from [f"undaunted-guards-{os.geteuid()}-{digest}"] * 2
    yield f"undaunted-guards-{os.geteuid()}-{secrets.token_hex(16)}"


def _reach(name: str, environ: Mapping[str, str]) -> socket.socket | None:
    """Return a connection to the program at ``name``, which is started if nobody listens there.

    None = another user listens there, or a rank that is about to.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        try:
            listening.bind(f"\0{name}")
        except OSError:
            pass  # it runs
        else:
            listening.listen(_BACKLOG)
            _execute(listening, environ)
        try:
            return _connect(name)
        except OSError:
            return None


def _execute(listening: socket.socket, environ: Mapping[str, str]) -> None:
    """Start the program, in another session: signals to our process group do not reach it."""
    _programs[:] = [program for program in _programs if program.poll() is None]
    # Standard streams take the numbers below, which may be free where a service has closed them.
    fd = fcntl.fcntl(listening, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        program = _Program(
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
    _programs.append(program)


def _begin(ours: socket.socket, options: Options, place: Place) -> startup.Ready | None:
    """Tell the guard what to do; return its answer when it is ready, None = it has ended."""
    rank = str(options.job_rank)
    begin = startup.Begin(
        job_rank=options.job_rank,
        world_size=options.world_size,
        hosts=place.hosts,
        address=place.address,
        run=place.run,
        token=place.token,
        heartbeat_interval_s=options.heartbeat_interval_s,
        limits=options.limits,
        logfile=options.logfile.replace("{rank}", rank),
        pidfile=options.pidfile.replace("{rank}", rank),
        append_pid="{rank}" not in options.pidfile,
    )
    wait_s = options.limits.barrier_timeout + _BEYOND_S
    answer: startup.Answer | None
    try:
        startup.send(ours, begin)
        answer = startup.receive(ours, startup.Answer, time.monotonic() + wait_s)
    except TimeoutError:
        raise InternalError(f"rank {rank}: its guard is not ready after {wait_s:.0f} s") from None
    except ConnectionError:
        return None
    except (OSError, ValueError) as error:
        raise InternalError(f"rank {rank}: its guard is of no use: {error}") from error
    if isinstance(answer, startup.Refused):
        raise InternalError(f"rank {rank}: its guard cannot serve: {answer.text}")
    return answer
