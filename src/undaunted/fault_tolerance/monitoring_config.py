"""What a monitored rank knows of the limits it is held to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.timeouts_calc import HeartbeatTimeouts, SectionTimeouts

if TYPE_CHECKING:
    from undaunted.progress.writer import PageWriter


@dataclass(frozen=True)
class MonitoringConfig:
    """The limits the launcher holds this rank to, in seconds; None = no limit.

    Empty where there is no launcher, or where its limits are too long for the page. Limits that the
    launcher learns by itself are not among them.

    ``safety_factor`` is for calculated limits; ``calculated`` names those that are, as in
    ``heartbeat``, ``section:NAME``, ``out_of_section``. In strict mode
    ``skip_section_response`` is False.
    """

    initial_rank_heartbeat_timeout: float | None = None
    rank_heartbeat_timeout: float | None = None
    rank_section_timeouts: dict[str, float | None] = field(default_factory=dict)
    rank_out_of_section_timeout: float | None = None
    safety_factor: float = 5.0
    skip_section_response: bool = True
    calculated: frozenset[str] = frozenset()


def read_config(writer: PageWriter) -> MonitoringConfig:
    """Read from the page what the launcher says."""
    import msgspec

    from undaunted.progress.limits import Limits

    try:
        limits = msgspec.json.decode(writer.limits_json(), type=Limits)
    except msgspec.DecodeError:  # none there, or damaged
        return MonitoringConfig()
    return MonitoringConfig(
        initial_rank_heartbeat_timeout=limits.initial_heartbeat_s,
        rank_heartbeat_timeout=limits.heartbeat_s,
        rank_section_timeouts=limits.sections,
        rank_out_of_section_timeout=limits.out_of_section_s,
        safety_factor=limits.safety_factor,
        skip_section_response=not limits.confirm,
        calculated=frozenset(limits.sources),
    )


def configured_timeouts(cfg: MonitoringConfig) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """Limits in force when monitoring begins; a round before this one may have calculated them."""
    heartbeat = HeartbeatTimeouts(
        cfg.initial_rank_heartbeat_timeout,
        cfg.rank_heartbeat_timeout,
        were_calculated="heartbeat" in cfg.calculated,
    )
    names = (key.removeprefix("section:") for key in cfg.calculated if key.startswith("section:"))
    section = SectionTimeouts(
        dict(cfg.rank_section_timeouts),
        cfg.rank_out_of_section_timeout,
        calculated_sections=frozenset(names),
        is_out_of_section_calculated="out_of_section" in cfg.calculated,
    )
    return heartbeat, section
