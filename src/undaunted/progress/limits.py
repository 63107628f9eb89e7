"""The limits a rank is held to."""

from __future__ import annotations

from typing import Any

import msgspec

# NVRx 0.5's defaults: ceilings until limits are learned or given.
DEFAULT_INITIAL_HEARTBEAT_S = 3600.0
DEFAULT_HEARTBEAT_S = 2700.0

# No measured limit is shorter: it would gain nothing, as an unneeded restart costs about as much.
FLOOR_S = 60.0

CALCULATED = "calculated"  # source of limits that a rank has measured and asked for


class Limits(msgspec.Struct, kw_only=True, frozen=True):
    """Timeouts in seconds. None turns a test off.

    Attributes:
        initial_heartbeat_s: from initialisation (or, where a sibling rank is known to be
            monitored, from the start of the process) to the first heartbeat.
        heartbeat_s: between heartbeats.
        sections: limit per section name, judged for each open section on its own.
        out_of_section_s: while no section is open; counts once a section was used.
        warmup_s: limit that replaces the one of section ``step`` during warm-up.
        warmup_iterations: how many iterations after the first one of this round are warm-up.
        safety_factor: limits that a rank calculates are so many times what it has measured.
        floor_s: no limit that is learned or calculated is shorter.
        learn: limits that nobody gave are learned.
        confirm: every heartbeat and section is confirmed by the launcher (strict mode).
        sources: where each limit comes from (``default``, ``--ft-...``, ``calculated``, ``learned
            from ...``), for messages; keyed ``initial_heartbeat``, ``heartbeat``,
            ``out_of_section``, ``section:NAME``, ``warmup``.
        settings: of the job's other settings those that are not at their defaults, for ranks to
            know, by the name of the field of ``FaultToleranceConfig``.
    """

    initial_heartbeat_s: float | None = DEFAULT_INITIAL_HEARTBEAT_S
    heartbeat_s: float | None = DEFAULT_HEARTBEAT_S
    sections: dict[str, float | None] = {}
    out_of_section_s: float | None = None
    warmup_s: float | None = None
    warmup_iterations: int = 5
    safety_factor: float = 5.0
    floor_s: float = FLOOR_S
    learn: bool = True
    confirm: bool = False
    sources: dict[str, str] = {}
    settings: dict[str, Any] = {}
