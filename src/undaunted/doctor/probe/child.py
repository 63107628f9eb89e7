"""Programs that are asked something and may hang or crash: each has a deadline and an owner."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import format_duration, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KILL_S = 2.0  # a process inside of a driver may not even die
_MOST_BYTES = 1024 * 1024


class Said(NamedTuple):
    """What a program has said.

    Attributes:
        output: its standard output, at most 1 MiB, as far as it came.
        problem: why that is not all, "" = it is.
        late: it was killed at its deadline.
    """

    output: bytes
    problem: str = ""
    late: bool = False


class Children:
    """Owner of the programs; its threads may ask at the same time. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __enter__(self) -> Children:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self, argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None
    ) -> Said:
        """Run a program in a session of its own, without input; return what it says.

        Args:
            argv: program and arguments.
            deadline_s: then it and what it has started in its session is killed, seconds.
            env: its environment, None = as here.
        """
        with self._lock:
            if self._closed:
                return Said(b"", "interrupted")
            try:
                child = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                return Said(b"", f"cannot be started: {error.strerror}")
            self._running.add(child)
        try:
            return _listen(child, deadline_s)
        finally:
            with self._lock:
                self._running.discard(child)

    def close(self) -> None:
        """Kill what still runs; nothing is started any more."""
        with self._lock:
            self._closed = True
            for child in self._running:
                _kill(child)


def _listen(child: subprocess.Popen[bytes], deadline_s: float) -> Said:
    try:
        output, errors = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _kill(child)
        problem = f"no answer within {format_duration(deadline_s)}"
        return Said(_rest(child)[:_MOST_BYTES], problem, late=True)
    problem = _ended_badly(child.returncode, errors)
    return Said(output[:_MOST_BYTES], problem)


def _rest(child: subprocess.Popen[bytes]) -> bytes:
    try:
        return child.communicate(timeout=_KILL_S)[0]
    except subprocess.TimeoutExpired as late:  # it is inside of the kernel, and stays there
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
        return late.output or b""


def _kill(child: subprocess.Popen[bytes]) -> None:
    # Not waited for yet, so that the number is still its own.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _ended_badly(code: int, errors: bytes) -> str:
    if not code:
        return ""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    last = f": {one_line(lines[-1], longest=200)}" if lines else ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}{last}"
    return f"exit code {code}{last}"
