"""In a rank: tells the agent, when it asks, what the Flight Recorder of this process holds.

One thread, which sleeps in a read of a socket. Nothing in here raises, keeps the rank waiting, or
needs an agent that answers. Imported before the user's program: at the time of a hang an import may
wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import warnings

from undaunted.attribution.flight.recorder import record
from undaunted.attribution.flight.recording import encode

# Set by `undaunted run`: name of the agent's abstract Unix socket, without the leading NUL.
VARIABLE = "UNDAUNTED_RECORDINGS"
# The number of the question, then how many bytes follow: none, if there is no recording.
HEAD_BYTES = 1 + 4
MOST_BYTES = 64 * 1024


def begin() -> None:
    """Connect to the agent, if the environment names it, and answer it from now on."""
    name = os.environ.pop(VARIABLE, "")
    if not name:
        return
    with contextlib.suppress(OSError, RuntimeError):  # it is looked at without
        _begin(name)


def _begin(name: str) -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)  # where the agent does not accept, it goes without
        sock.connect(f"\0{name}")
        sock.setblocking(True)
        _let_the_rank_fork()
        _start(sock)
    except BaseException:
        sock.close()
        raise
    os.register_at_fork(after_in_child=sock.close)


def _start(sock: socket.socket) -> None:
    """Start the thread, which takes no signal: all of them are for the main thread."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=_serve, args=(sock,), name="undaunted-witness", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _let_the_rank_fork() -> None:
    """This thread holds no lock that a forked child could miss: Python need not warn of it."""
    if sys.version_info >= (3, 12):
        warnings.filterwarnings(
            "ignore", r"This process \(pid=\d+\) is multi-threaded", DeprecationWarning
        )


def _are_mixed() -> bool:
    """Whether groups were aborted and made again under the same names: then nothing is sure."""
    abort = sys.modules.get("undaunted.inprocess.abort")
    return abort is not None and abort.aborted.is_set()


def _serve(sock: socket.socket) -> None:
    try:
        while number := sock.recv(1):
            recording = None if _are_mixed() else record()
            body = b"" if recording is None else encode(recording)
            body = body if len(body) <= MOST_BYTES else b""
            sock.sendall(number + len(body).to_bytes(4, "big") + body)
    except OSError:
        pass  # the agent is gone
