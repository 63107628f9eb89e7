"""A provider of device memory that says what a test tells it to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
answers = open(__file__ + ".answers").read().splitlines()
with sock.makefile("rwb") as stream:
    for number, _ in enumerate(stream):
        answer = answers[min(number, len(answers) - 1)]
        if answer == "hang":
            time.sleep(600)
        if answer == "end":
            break
        stream.write(answer.encode() + b"\\n")
        stream.flush()
"""


def provider(directory: Path, *answers: dict[str, Any] | str) -> str:
    """Return the path of a provider that gives these answers, the last one again and again.

    The first one answers the question that is asked while the ranks end. ``hang`` and ``end`` are
    what it does instead of answering.
    """
    program = directory / "provider.py"
    program.write_text(_PROGRAM)
    lines = [each if isinstance(each, str) else json.dumps(each) for each in answers]
    program.with_name("provider.py.answers").write_text("\n".join(lines))
    return str(program)


def device(index: int = 0, *, mib: int = 0, pids: tuple[int, ...] = ()) -> dict[str, Any]:
    """A device with so much memory in use, and these processes listed."""
    processes = {str(pid): None for pid in pids}
    return {"index": index, "used": mib << 20, "processes": processes}


def devices(*found: dict[str, Any]) -> dict[str, Any]:
    """An answer."""
    return {"devices": list(found)}
