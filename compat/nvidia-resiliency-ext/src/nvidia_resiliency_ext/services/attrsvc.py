"""Answers of an attribution service to ``GET /logs``, undaunted's or NVRx's, as objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from undaunted.cli.main import nvrx_attrsvc


@dataclass(frozen=True)
class AttrSvcResult:
    """The answer of a service about a log; attributes are called as in its JSON.

    Attributes:
        status: ``completed``, ``in_flight`` or ``pending``.
        result: ``module``, ``result``, ``recommendation``, and ``state`` and ``error`` if there is
            none; empty unless it is completed.
        recommendation: ``action`` (RESTART, STOP, CONTINUE, UNKNOWN, TIMEOUT) and ``source``.
        wl_restart, wl_restart_count: which restart in the log it is about, and how many there are.
        mode: ``SINGLE``, ``SPLITLOG`` or ``PENDING``; "" = not said.
        sched_restarts: how often the scheduler has started the job again.
        log_file: the file that was read, "" = not said.
    """

    status: str = "completed"
    result: Mapping[str, Any] = field(default_factory=dict)
    recommendation: Mapping[str, str] = field(default_factory=dict)
    wl_restart: int = 0
    wl_restart_count: int = 0
    mode: str = ""
    sched_restarts: int = 0
    log_file: str = ""

    @property
    def action(self) -> str:
        """The recommendation; UNKNOWN if there is none."""
        return str(self.recommendation.get("action") or "UNKNOWN")


def parse_attrsvc_response(response: Mapping[str, Any] | str | bytes) -> AttrSvcResult:
    """Read an answer to ``GET /logs``; keys that are not known are passed over.

    Args:
        response: the body, as text or as the mapping that it stands for.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        said = json.loads(response) if isinstance(response, str | bytes) else response
    except RecursionError:
        raise ValueError("the answer is nested too deep") from None
    if not isinstance(said, Mapping):
        raise ValueError(f"the answer is no JSON object: {str(said)[:80]}")  # noqa: TRY004
    known = {one.name: said[one.name] for one in fields(AttrSvcResult) if said.get(one.name)}
    result = known.get("result", {})
    advice = known.get("recommendation", {})
    if not isinstance(result, Mapping):  # of a service that says a text only
        known["result"] = result = {"result": result}
    if not advice:
        advice = result.get("recommendation", {})
    known["recommendation"] = advice if isinstance(advice, Mapping) else {"action": str(advice)}
    return AttrSvcResult(**known)


def main() -> int:
    """Serve, as the script ``nvrx-attrsvc``."""
    return nvrx_attrsvc()
