"""Checks this node; run by path, as a program of its own: what hangs, hangs only here.

    python -I -S check_node.py FD

It speaks on the socket FD, in lines of JSON. The first line it reads is ``{"settings": {...},
"seen": {...}}``: `Settings`, and what checks have seen earlier. Every further line, ``{"request":
1, "periodic": true}``, asks for all checks, or only for those that are repeated in a round. It
answers with ``{"request": 1, "checks": [...]}``, the ones that begin now, and then with a line for
each as it ends, in any order. It ends at the end of its input. Only the standard library is used,
and what of ours needs nothing else; the other side is `undaunted.health.answers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from undaunted.health.check import Check, Finding, Settings

if TYPE_CHECKING:
    from io import BufferedRWPair


def checks_of(settings: Settings) -> list[Check]:
    """Make every check that is needed on this node. None of them has begun."""
    from undaunted.health.checks import (
        clock,
        command,
        disk_space,
        ecc,
        endpoint,
        ethernet,
        gpu,
        kernel_log,
        mounts,
        nic_counters,
        nic_link,
        segment,
        storage,
    )

    of_devices = (gpu, kernel_log, ecc, nic_link, nic_counters, ethernet)
    kinds = (*of_devices, mounts, storage, segment, disk_space, clock, command, endpoint)
    return [check for kind in kinds for check in kind.checks(settings)]


def finding_of(check: Check, seen: dict[str, Any]) -> Finding | None:
    """Run a check; one that fails itself has found out nothing."""
    try:
        return check.run(seen)
    except Exception as error:  # noqa: BLE001 - a bug of ours must not make a node unhealthy
        return Finding(f"could not be made: {type(error).__name__}: {error}", failed=False)


class Server:
    """Answers one side that asks."""

    def __init__(self, stream: BufferedRWPair, settings: Settings, seen: dict[str, Any]) -> None:
        """Answer on ``stream``; ``seen`` is by name of check, as in the answers."""
        self._stream = stream
        self._lock = threading.Lock()
        self._checks = checks_of(settings)
        self._seen = seen

    def begin(self, request: int, *, periodic: bool) -> None:
        """Begin to check, each in a thread, since any may hang."""
        chosen = [
            (number, check)
            for number, check in enumerate(self._checks)
            if check.periodic or not periodic
        ]
        described = [_describe(number, check) for number, check in chosen]
        self._say({"request": request, "checks": described})
        for number, check in chosen:
            work = (request, number, check)
            threading.Thread(target=self._run, args=work, daemon=True).start()

    def _run(self, request: int, number: int, check: Check) -> None:
        seen = self._seen.setdefault(f"{check.name} {check.subject}", {})
        began = time.monotonic()
        finding = finding_of(check, seen)
        took = time.monotonic() - began
        answer: dict[str, Any] = {"request": request, "check": number, "seconds": took}
        if finding is not None:
            answer |= {"text": finding.text, "failed": finding.failed}
        self._say({**answer, "seen": seen})

    def _say(self, answer: dict[str, Any]) -> None:
        line = json.dumps(_valid(answer)).encode("ascii") + b"\n"
        try:
            with self._lock:
                self._stream.write(line)
                self._stream.flush()
        except (OSError, ValueError):  # nobody listens any more
            os._exit(1)


def _describe(number: int, check: Check) -> dict[str, Any]:
    return {
        "check": number,
        "name": check.name,
        "subject": check.subject,
        "deadline_s": check.deadline_s,
        "periodic": check.periodic,
        "must_answer": check.must_answer,
    }


def _valid(value: Any) -> Any:
    """Replace what is no text in names of files, which may hold any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_valid(key): _valid(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_valid(item) for item in value]
    return value


def serve(sock: socket.socket) -> None:
    """Answer until the other side is gone."""
    with sock.makefile("rwb") as stream:
        first = json.loads(stream.readline() or b"null")
        if first is None:
            return
        server = Server(stream, Settings(**first["settings"]), first["seen"])
        for line in stream:
            asked = json.loads(line)
            server.begin(asked["request"], periodic=asked["periodic"])


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _SOCKET:
        with contextlib.suppress(ConnectionError):
            serve(_SOCKET)
        os._exit(0)  # without waiting for checks that hang
