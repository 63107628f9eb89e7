"""Programs that are asked something and may hang or crash: each has a deadline and an owner."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import format_duration, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

_KILL_S = 2.0  # a process inside of a driver may not even die
_MOST_BYTES = 1024 * 1024
_CHUNK = 1 << 16


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

    def __enter__(self) -> Self:
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
    assert child.stdout is not None
    assert child.stderr is not None
    output, errors = bytearray(), bytearray()
    with child.stdout, child.stderr, selectors.DefaultSelector() as streams:
        streams.register(child.stdout, selectors.EVENT_READ, output)
        streams.register(child.stderr, selectors.EVENT_READ, errors)
        if _ends_within(child, streams, deadline_s):
            return Said(bytes(output), _ended_badly(child.returncode, errors))
        _kill(child)
        _ends_within(child, streams, _KILL_S)  # inside of the kernel it stays
    problem = f"no answer within {format_duration(deadline_s)}"
    return Said(bytes(output), problem, late=True)


def _ends_within(
    child: subprocess.Popen[bytes], streams: selectors.DefaultSelector, seconds: float
) -> bool:
    """Read the streams to their ends, keep what there is room for, and wait for the program."""
    deadline = time.monotonic() + seconds
    while streams.get_map():
        ready = streams.select(max(0.0, deadline - time.monotonic()))
        for key, _ in ready:
            said = os.read(key.fd, _CHUNK)
            key.data.extend(said[: _MOST_BYTES - len(key.data)])
            if not said:
                streams.unregister(key.fileobj)
        if time.monotonic() >= deadline and streams.get_map():
            return False
    try:
        child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill(child: subprocess.Popen[bytes]) -> None:
    # Not waited for yet, so that the number is still its own.
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def _ended_badly(code: int, errors: bytearray) -> str:
    if not code:
        return ""
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    last = f": {one_line(lines[-1], longest=200)}" if lines else ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}{last}"
    return f"exit code {code}{last}"
