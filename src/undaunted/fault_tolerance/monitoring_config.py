"""The settings of its job that a monitored rank knows: they are on its page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.fault_tolerance.config import FaultToleranceConfig, settings

if TYPE_CHECKING:
    from undaunted.progress.limits import Limits
    from undaunted.progress.writer import PageWriter


def read_limits(writer: PageWriter) -> Limits:
    """Read what the launcher says; without one, nothing is limited."""
    import msgspec

    from undaunted.progress.limits import Limits

    try:
        return msgspec.json.decode(writer.limits_json(), type=Limits)
    except msgspec.DecodeError:  # none there, or damaged
        return Limits(initial_heartbeat_s=None, heartbeat_s=None)


def config_of(
    limits: Limits, kind: type[FaultToleranceConfig] = FaultToleranceConfig
) -> FaultToleranceConfig:
    """Return the configuration that the rank's launcher has, with the limits in force now.

    Args:
        limits: from the page.
        kind: the class.
    """
    return kind(**{**limits.settings, **_of_limits(limits)})


def others(config: FaultToleranceConfig) -> dict[str, Any]:
    """Return what of a configuration limits do not hold themselves, for ``Limits.settings``.

    What is at its default is left out: a page has little room.
    """
    from undaunted.progress.limits import Limits

    defaults, known = FaultToleranceConfig(), _of_limits(Limits())
    values = {name: getattr(config, name) for name in settings() if name not in known}
    return {name: one for name, one in values.items() if one != getattr(defaults, name)}


def _of_limits(limits: Limits) -> dict[str, Any]:
    return {
        "initial_rank_heartbeat_timeout": limits.initial_heartbeat_s,
        "rank_heartbeat_timeout": limits.heartbeat_s,
        "rank_section_timeouts": limits.sections,
        "rank_out_of_section_timeout": limits.out_of_section_s,
        "num_warmup_iterations": limits.warmup_iterations,
        "safety_factor": limits.safety_factor,
        "min_measured_timeout": limits.floor_s,
        "learn_timeouts": limits.learn,
        "skip_section_response": not limits.confirm,
    }
