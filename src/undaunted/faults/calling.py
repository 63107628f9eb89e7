"""Tells a process outside of the rank that the moment of a fault has come, and waits for it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

VARIABLE = "UNDAUNTED_NEMESIS"
"""Names the Unix socket on which somebody makes faults from outside."""

_PATIENCE_S = 30.0
_MAX_ANSWER = 4096


def call(fault: str, *, rank: int, iteration: int, patience_s: float = _PATIENCE_S) -> None:
    """Say that it is time, and go on when there is an answer, whatever it is.

    Sends one line of JSON, ``{"fault": ..., "rank": ..., "iteration": ..., "pid": ...}``, to the
    Unix socket ``UNDAUNTED_NEMESIS``, and waits for one line. Problems go to standard error.

    Args:
        fault: its id.
        rank: the global one.
        iteration: the one about to begin, -1 = not known.
        patience_s: how long all of it may take, seconds.
    """
    path = os.environ.get(VARIABLE, "")
    if not path:
        _complain(fault, f"{VARIABLE} names no socket; only `undaunted chaos` makes this fault")
        return
    line = {"fault": fault, "rank": rank, "iteration": iteration, "pid": os.getpid()}
    try:
        _ask(path, json.dumps(line).encode() + b"\n", time.monotonic() + patience_s)
    except TimeoutError:
        _complain(fault, f"no answer from {path} in {patience_s:g} s")
    except OSError as error:
        _complain(fault, f"{path}: {error}")


def _ask(path: str, line: bytes, deadline: float) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _until(connection, deadline)
        connection.connect(path)
        connection.sendall(line)
        answer = b""
        while b"\n" not in answer and len(answer) < _MAX_ANSWER:
            _until(connection, deadline)
            part = connection.recv(_MAX_ANSWER)
            if not part:
                return
            answer += part


def _until(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _complain(fault: str, problem: str) -> None:
    print(f"undaunted: fault {fault} from outside: {problem}", file=sys.stderr, flush=True)
