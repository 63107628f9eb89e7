"""Limits that ranks have calculated, and send to the launcher."""

from __future__ import annotations

import json
from typing import Annotated, Any, NamedTuple

import msgspec

from undaunted.progress.limits import CALCULATED, FLOOR_S, Limits

_KEY = "timeouts"
_CONFIRM = {"confirm": True}

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Taken(NamedTuple):
    """The limits after a request, and what the rank is answered."""

    limits: Limits
    reply: bytes


def take(payload: bytes, limits: Limits) -> Taken | None:
    """Do what a rank asks for in its mailbox; None if it is not about limits.

    To be asked whether a heartbeat or section has arrived is answered as well: the page has been
    read by then.

    Args:
        payload: the request.
        limits: as they are.
    """
    try:
        request = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if request == _CONFIRM:
        return Taken(limits, b"ok")
    if not isinstance(request, dict) or _KEY not in request:
        return None
    try:
        return Taken(with_calculated(limits, request[_KEY]), b"ok")
    except ValueError as error:
        return Taken(limits, f"limits that make no sense: {error}".encode())


def with_calculated(limits: Limits, request: Any) -> Limits:
    """Return the limits with those a rank has calculated put in.

    What was measured is raised to ``limits.floor_s`` at least, the first heartbeat to a minute.

    Args:
        limits: as they are.
        request: ``{"heartbeat": [initial, subsequent], "sections": {name: seconds},
            "out_of_section": seconds}``; what is missing stays as it is.

    Raises:
        ValueError: it is something else.
    """
    try:
        asked = msgspec.convert(request, type=_Calculated)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    changes: dict[str, Any] = {}
    sources = dict(limits.sources)
    if asked.heartbeat is not None:
        initial_s, between_s = asked.heartbeat
        changes["heartbeat_s"] = max(between_s, limits.floor_s)
        # Measured where there was nothing to load; after a restart there is a checkpoint.
        changes["initial_heartbeat_s"] = max(initial_s, limits.floor_s, FLOOR_S)
        sources |= {"initial_heartbeat": CALCULATED, "heartbeat": CALCULATED}
    if asked.sections:
        floored = {name: max(limit, limits.floor_s) for name, limit in asked.sections.items()}
        changes["sections"] = {**limits.sections, **floored}
        sources |= {f"section:{name}": CALCULATED for name in asked.sections}
    if asked.out_of_section is not None:
        changes["out_of_section_s"] = max(asked.out_of_section, limits.floor_s)
        sources["out_of_section"] = CALCULATED
    return msgspec.structs.replace(limits, sources=sources, **changes)


class _Calculated(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    heartbeat: tuple[PositiveSeconds, PositiveSeconds] | None = None
    sections: dict[str, PositiveSeconds] = {}
    out_of_section: PositiveSeconds | None = None
