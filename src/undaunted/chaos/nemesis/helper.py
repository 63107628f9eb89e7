"""Helper processes of the nemesis: one makes a namespace and keeps it until others have it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_READY = "ready"
_START_S = 30.0
_ANSWER_BYTES = 1000


class NotPossibleError(Exception):
    """This machine does not allow a fault; the message says why."""


@contextlib.contextmanager
def running(module: str, words: Sequence[str], fds: Sequence[int] = ()) -> Iterator[int]:
    """Start a module that calls `answer`; give its pid when it is ready, end it afterwards.

    Args:
        module: its name.
        words: its arguments.
        fds: descriptors that it needs.

    Raises:
        NotPossibleError: it could not do its work.
    """
    helper = subprocess.Popen(
        process.module_command(module, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=tuple(fds),
    )
    try:
        _wait_until_ready(helper)
        yield helper.pid
    finally:
        _end(helper)


def answer(problem: str = "") -> None:
    """In the helper: say that it is ready, or its problem, and stay until it is to end."""
    with contextlib.suppress(OSError):
        os.write(1, (problem or _READY).encode())
        os.read(0, 1)


def open_namespaces(pid: int, names: Sequence[str]) -> tuple[int, ...]:
    """Return descriptors of namespaces of a process that are not ours, in the order to enter them.

    Args:
        pid: of the process.
        names: as in ``/proc/PID/ns``; ``user`` first, as it gives the right to enter the others.

    Raises:
        OSError: they cannot be opened; none is.
    """
    found: tuple[int, ...] = ()
    try:
        for name in names:
            place = Path(f"/proc/{pid}/ns/{name}")
            if place.stat().st_ino != Path(f"/proc/self/ns/{name}").stat().st_ino:
                found += (os.open(place, os.O_RDONLY | os.O_CLOEXEC),)
    except OSError:
        for fd in found:
            os.close(fd)
        raise
    return found


def _wait_until_ready(helper: subprocess.Popen[bytes]) -> None:
    assert helper.stdout is not None
    fd = helper.stdout.fileno()
    if not process.wait_readable(fd, _START_S):
        raise NotPossibleError(f"the helper process did not answer within {_START_S:g} s")
    said = os.read(fd, _ANSWER_BYTES).decode(errors="replace").strip()
    if said != _READY:
        raise NotPossibleError(said or "the helper process has died")


def _end(helper: subprocess.Popen[bytes]) -> None:
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdin.close()
    helper.stdout.close()
    try:
        helper.wait(_START_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel holds it
            helper.wait(_START_S)
