"""Programs that check a node: of other vendors, of a site. Their exit code, or JSON, is the answer.

Exit code 0 is healthy, and any other unhealthy. What a program prints may be an object instead:
``{"healthy": false, "text": "GPU 3 has lost its fan"}``; ``null`` for ``healthy`` means that it
could not tell. There is no shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import Any

from undaunted.health.check import DEADLINE_S, Check, Finding, Settings, reason, skipped

_MOST = 64 * 1024  # bytes of what it prints
_SHOWN = 200


class CommandCheck(Check):
    """One program."""

    name = "command"
    deadline_s = 2 * DEADLINE_S

    def __init__(self, words: tuple[str, ...], limit_s: float = DEADLINE_S) -> None:
        """Run ``words``, for ``limit_s`` at most."""
        self.subject = words[0]
        self._words = words
        self._limit_s = limit_s

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        try:
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return skipped(f"it cannot be started: {reason(error)}")
        with process:
            try:
                output, _ = process.communicate(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                return Finding(f"it did not end within {self._limit_s:g} s")
        return judge(process.returncode, output[-_MOST:])


def judge(code: int, output: bytes) -> Finding | None:
    """Return what a program that has ended says of the node."""
    text = output.decode("utf-8", "replace").strip()
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if isinstance(told, dict) and "healthy" in told:
        said = str(told.get("text") or "no reason given")[:_SHOWN]
        if told["healthy"] is None:
            return skipped(said)
        return None if told["healthy"] is True else Finding(said)
    if code == 0:
        return None
    last = text.splitlines()[-1][:_SHOWN] if text else "it printed nothing"
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return Finding(f"{how}: {last}")


def checks(settings: Settings) -> list[Check]:
    """Return a check per program."""
    return [CommandCheck(tuple(words)) for words in settings.commands if words]
