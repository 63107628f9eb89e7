"""The warm template: a process that has imported torch and becomes workers by forking.

It has one thread, opens no device and no socket of its own, and ends when the agent does. See
docs/warm-workers.md for what users see of it, and `forking` for how it forks.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.fault_tolerance.worker import messages
from undaunted.fault_tolerance.worker.forking import fork_workers
from undaunted.fault_tolerance.worker.imports import Imports, Later

if TYPE_CHECKING:
    from undaunted.fault_tolerance.worker.messages import WorkerSpec

_TIMEOUT_S = 20.0
# What every worker needs of ours; absent ones are no reason to stop.
_OURS = (
    "undaunted.fault_tolerance.worker.bootstrap",
    "undaunted.fault_tolerance.worker.run_program",
    "undaunted.progress.writer",
)


def serve(fd: int) -> WorkerSpec | None:
    """Serve the agent on socket ``fd`` until it is gone.

    Returns:
        The spec in every worker forked from here, None in the template when the agent is gone.
    """
    process.die_with_parent(os.getppid())
    # Ctrl-C is for the launcher. Blocked, not ignored: an interrupt for a worker that is only
    # just starting waits until the worker can act on it (`run_program`), and is not lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with socket.socket(fileno=fd) as sock, contextlib.suppress(ConnectionError):
        return _serve(sock)
    return None  # the agent left before it had read an answer


def _serve(sock: socket.socket) -> WorkerSpec | None:
    imports = Imports()
    later = Later([])
    while True:
        if sock.fileno() not in process.wait_for_any([sock.fileno(), later.fd]):
            later.end(imports)
            continue
        message = messages.receive(sock, _TIMEOUT_S)
        if isinstance(message, messages.Prepare):
            messages.send(sock, _prepare(imports, message), _TIMEOUT_S)
            later = Later(message.later)
        elif isinstance(message, messages.Fork):
            reason = imports.objection()
            if reason:
                refused = messages.Refused(number=message.number, reason=reason, lasting=True)
                messages.send(sock, refused, _TIMEOUT_S)
            elif (spec := fork_workers(message, sock)) is not None:
                later.forget()
                return spec
            else:
                later.begin(sock)
        else:
            return None


def _prepare(imports: Imports, request: messages.Prepare) -> messages.Ready:
    started = time.monotonic_ns()
    ours = Imports()
    for name in _OURS:
        ours.load(name)
    for name in request.modules:
        imports.load(name)
    # What exists now is never looked at by a collection again: workers share its memory for longer.
    gc.collect()
    gc.freeze()
    return messages.Ready(
        modules=imports.done,
        import_ns=time.monotonic_ns() - started,
        failed=imports.failed,
    )
