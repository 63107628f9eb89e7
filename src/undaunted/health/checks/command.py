"""Programs that check a node: of other vendors, of a site. Their exit code, or JSON, is the answer.

Exit code 0 is healthy, and any other unhealthy. What a program prints may be an object instead:
``{"healthy": false, "text": "GPU 3 has lost its fan"}``; ``null`` for ``healthy`` means that it
could not tell. There is no shell.
"""

from __future__ import annotations

import json
from typing import Any

from undaunted.base.child import Program, run
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
            end = run(Program(self._words, self._limit_s, merged=True, most=_MOST, tail=True))
        except OSError as error:
            return skipped(f"it cannot be started: {reason(error)}")
        if end.code is None:
            return Finding(f"it did not end within {self._limit_s:g} s")
        return judge(end.code, end.output)


def judge(code: int, output: bytes) -> Finding | None:
    """Return what a program that has ended says of the node."""
    text = output.decode("utf-8", "replace").strip()
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, dict) and "healthy" in told:
        healthy = told["healthy"]
        is_clear = healthy is None or isinstance(healthy, bool)
        why = "no reason given" if is_clear else f"healthy is {healthy!r}: true, false or null"
        said = str(told.get("text") or why)[:_SHOWN]
        if healthy is None:
            return skipped(said)
        return None if healthy is True else Finding(said)
    if code == 0:
        return None
    last = text.splitlines()[-1][:_SHOWN] if text else "it printed nothing"
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return Finding(f"{how}: {last}")


def checks(settings: Settings) -> list[Check]:
    """Return a check per program."""
    return [CommandCheck(tuple(words)) for words in settings.commands if words]
