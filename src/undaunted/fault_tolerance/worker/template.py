"""The warm template: a process that has imported torch and becomes workers by forking.

It has one thread, opens no device and no other socket, and ends when the agent does. See
docs/warm-workers.md for users.

The agent becomes the parent of the workers of a round: an intermediate process forks all of them
and ends; the kernel then gives them to the nearest subreaper, the agent. A worker goes on only when
the intermediate has sent the pids of all of them to the agent: a round is never started in part,
nor twice.

    template -- fork --> intermediate -- fork --> worker 0 .. N-1   each waits at the gate
                         intermediate -- Forked(pids) --> agent
                         intermediate -- opens the gate, ends       each is now the agent's child
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from msgspec.structs import replace

from undaunted.base import process
from undaunted.base.signals import NOT_FOR_OURS
from undaunted.fault_tolerance.worker import import_notes, messages
from undaunted.fault_tolerance.worker.imports import Imports, Later, set_variables

if TYPE_CHECKING:
    from undaunted.fault_tolerance.worker.messages import Fork, WorkerSpec
    from undaunted.fault_tolerance.worker.warm_imports import WarmImports

_TIMEOUT_S = 20.0
# Our modules that every worker imports; one that is missing is skipped.
_OURS = (
    "undaunted.fault_tolerance.worker.bootstrap",
    "undaunted.fault_tolerance.worker.run_program",
    "undaunted.fault_tolerance.worker.witness",
    "undaunted.progress.error_text",
    "undaunted.progress.writer",
)
# The agent waits longer than this before it gives up on the template.
FORK_DEADLINE_S = 20.0


def serve(fd: int) -> WorkerSpec | None:
    """Serve the agent on socket ``fd`` until it is gone.

    Returns:
        The spec in every worker forked from here, None in the template when the agent is gone.
    """
    process.die_with_parent(os.getppid())
    # Ctrl-C is for the launcher, and others for the program. Blocked, not ignored: a signal for a
    # worker that is only just starting waits until the worker can act on it (`run_program`).
    signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_OURS)
    os.set_inheritable(fd, False)  # or what imports start would keep it open
    with socket.socket(fileno=fd) as sock, contextlib.suppress(ConnectionError):
        return _serve(sock)
    return None  # the agent left before it had read an answer


def _serve(sock: socket.socket) -> WorkerSpec | None:
    imports = Imports()
    later = Later([])
    warm: WarmImports | None = None
    note = False
    while True:
        if sock.fileno() not in process.wait_for_any([sock.fileno(), later.fd]):
            later.go_on(imports, sock)
            continue
        message = messages.receive(sock, _TIMEOUT_S)
        if isinstance(message, messages.Prepare):
            ready, warm = _prepare(imports, message)
            messages.send(sock, ready, _TIMEOUT_S)
            later = Later(message.later)
            note = message.note
        elif isinstance(message, messages.Fork):
            reason = imports.objection()
            if reason:
                refused = messages.Refused(number=message.number, reason=reason, lasting=True)
                messages.send(sock, refused, _TIMEOUT_S)
                continue
            asked = import_notes.ranks_to_ask(message.specs)
            later.before_fork(len(asked))
            spec = fork_workers(message, sock)
            if spec is None:
                later.after_fork()
                continue
            later.begin_worker(asked=spec.local_rank in asked)
            if warm is not None:
                warm.begin_worker(spec.env)
            if note and spec.local_rank in asked:
                import_notes.begin(spec.env)
            return spec
        elif isinstance(message, messages.Stopping):
            later.end()
        else:
            return None


def _prepare(
    imports: Imports, request: messages.Prepare
) -> tuple[messages.Ready, WarmImports | None]:
    if request.learned_fd < 0:
        return _import(imports, request), None
    from undaunted.fault_tolerance.worker import warm_imports  # of no use to the first template

    learned, warm = warm_imports.read(request.learned_fd), warm_imports.WarmImports()
    left, problem = dict[str, str](), ""
    with warm_imports.lowest_priority() if learned.gives_way else contextlib.nullcontext():
        ready = _import(imports, request)
        try:
            warm.load(learned)
        except warm_imports.UnfitError as unfit:
            left = unfit.left
        except Exception as error:  # noqa: BLE001 - packages may have changed anything
            problem = f"{type(error).__name__}: {error}"
        _freeze()
    ready = replace(ready, left=left, problem=problem, learned=len(warm.modules))
    return ready, warm


def _import(imports: Imports, request: messages.Prepare) -> messages.Ready:
    started = time.monotonic_ns()
    ours = Imports()
    for name in _OURS:
        ours.load(name)
    set_variables(request.variables)
    for name in request.modules:
        imports.load(name)
    _freeze()
    return messages.Ready(
        modules=imports.done, import_ns=time.monotonic_ns() - started, failed=imports.failed
    )


def _freeze() -> None:
    """No later collection looks at what exists now: workers share its memory for longer."""
    gc.collect()
    gc.freeze()


def fork_workers(request: Fork, sock: socket.socket) -> WorkerSpec | None:
    """Fork one worker per spec and answer the agent.

    Returns:
        None in the template; in each worker its spec, once it is a child of the agent.
    """
    template = os.getpid()
    pid = os.fork()
    if pid == 0:
        return _intermediate(request, sock, template)
    problem = _wait(pid)
    if problem:
        messages.send(
            sock, messages.Refused(number=request.number, reason=problem), FORK_DEADLINE_S
        )
    return None


@dataclass
class _Gate:
    """Where workers wait until all of them exist and the agent knows it."""

    read_fd: int
    write_fd: int
    keeper: int  # pidfd of the intermediate

    @classmethod
    def create(cls) -> _Gate:
        keeper = process.open_pidfd(os.getpid())
        assert keeper is not None, "this process exists"
        read_fd, write_fd = os.pipe()
        return cls(read_fd, write_fd, keeper)

    def open(self, workers: int) -> None:
        os.write(self.write_fd, b"g" * workers)

    def pass_through(self, agent: int) -> None:
        """Wait for the gate, then for the agent to be the parent; end the process otherwise."""
        os.close(self.write_fd)
        came = process.wait_readable(self.read_fd, FORK_DEADLINE_S)
        if not came or os.read(self.read_fd, 1) != b"g":
            os._exit(1)  # the round was called off, which the agent knows; nothing has run yet
        if not process.wait_pidfd(self.keeper, FORK_DEADLINE_S) or os.getppid() != agent:
            os._exit(1)  # the agent is gone, and with it the job
        os.close(self.read_fd)
        os.close(self.keeper)


def _intermediate(request: Fork, sock: socket.socket, template: int) -> WorkerSpec:
    """Fork the workers, answer, end. Only the workers return from here."""
    pids: list[int] = []
    try:
        if not process.die_with_parent(template):
            os._exit(1)
        gate = _Gate.create()
        spec = _fork_each(request.specs, pids)
        if spec is None:
            answer = messages.Forked(number=request.number, pids=pids)
            messages.send(sock, answer, FORK_DEADLINE_S)
            gate.open(len(pids))
            os._exit(0)
    except Exception as error:  # noqa: BLE001 - sent to the agent
        _call_off(pids)
        _refuse(request, sock, f"forking workers failed: {type(error).__name__}: {error}")
    sock.close()
    gate.pass_through(spec.agent_pid)
    return spec


def _fork_each(specs: list[WorkerSpec], pids: list[int]) -> WorkerSpec | None:
    """Fork for every spec; return it in a worker, None in the parent, which fills ``pids``."""
    for spec in specs:
        pid = os.fork()
        if pid == 0:
            return spec
        pids.append(pid)
    return None


def _call_off(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)  # bounded: nothing stops a worker at the gate from dying


def _refuse(request: Fork, sock: socket.socket, reason: str) -> NoReturn:
    with contextlib.suppress(OSError):
        messages.send(sock, messages.Refused(number=request.number, reason=reason), FORK_DEADLINE_S)
    os._exit(0)


def _wait(pid: int) -> str:
    """Wait for the intermediate to end; return what went wrong if it could not answer itself."""
    pidfd = process.open_pidfd(pid)
    assert pidfd is not None, "a child that was not waited for"
    try:
        in_time = process.wait_pidfd(pidfd, FORK_DEADLINE_S)
        if not in_time:
            process.signal_pidfd(pidfd, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    finally:
        os.close(pidfd)
    if not in_time:
        return f"forking workers took longer than {FORK_DEADLINE_S:g} s"
    code = os.waitstatus_to_exitcode(status)
    return f"the process that forks workers ended with code {code}" if code != 0 else ""
