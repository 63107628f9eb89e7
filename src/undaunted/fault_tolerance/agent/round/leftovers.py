"""Processes of a round that went on outside of the agent's tree, where it cannot end them.

That takes somebody else who starts them: a service, a container, a terminal multiplexer. They are
known by a variable that every rank has, and are named, not ended.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base import process
from undaunted.base.deadline import within

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIND_S = 2.0  # /proc may have thousands of processes
_MOST_BYTES = 1 << 20
_WORDS_SHOWN = 4
_MOST_SHOWN = 10


class Leftover(NamedTuple):
    """A process. ``command`` is the beginning of its command line."""

    pid: int
    command: str


def find(
    variable: str, value: str, ours: Iterable[int], proc: Path = Path("/proc")
) -> list[Leftover]:
    """Return processes of this user, by pid, that have ``variable=value`` in their environment.

    Args:
        variable: its name.
        value: its value.
        ours: processes that are not looked at.
        proc: where the kernel describes processes.
    """
    wanted = f"{variable}={value}".encode(errors="surrogateescape")
    skipped = set(ours)
    pids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return [
        Leftover(pid, _command(proc / str(pid)))
        for pid in pids
        if pid not in skipped and wanted in _environment(proc / str(pid))
    ]


def of_round(run_dir: str) -> list[Leftover]:
    """Return what runs outside of the tree of the agent, which this is, and of the front."""
    ours = [os.getpid(), os.getppid(), *process.descendants(os.getpid())]
    return find("UNDAUNTED_RUN_DIR", run_dir, ours)


def describe(found: list[Leftover]) -> str:
    """Return ``77 (python serve.py), 78 (...)``."""
    text = ", ".join(f"{each.pid} ({each.command})" for each in found[:_MOST_SHOWN])
    more = len(found) - _MOST_SHOWN
    return f"{text} and {more} more" if more > 0 else text


def line(run_dir: str, number: int) -> str:
    """Name what a round has left behind; "" = nothing, as far as is found in time. Waits."""
    nothing: list[Leftover] = []
    found = within(_FIND_S, lambda: of_round(run_dir), nothing)
    if not found:
        return ""
    return (
        f"round {number} left processes behind that others have started for it, and that are not "
        f"ended: {describe(found)}"
    )


def _environment(directory: Path) -> list[bytes]:
    """The variables of a process; none of one that belongs to somebody else, or has ended."""
    try:
        if directory.stat().st_uid != os.getuid():
            return []
        with (directory / "environ").open("rb") as file:
            return file.read(_MOST_BYTES).split(b"\0")
    except OSError:
        return []


def _command(directory: Path) -> str:
    try:
        with (directory / "cmdline").open("rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return "ended"
    shown = [os.fsdecode(word) for word in words[:_WORDS_SHOWN] if word]
    return " ".join(shown) or "unknown"
