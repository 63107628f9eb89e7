"""Settings that a rank monitor gets when it is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.fault_tolerance.monitoring_config import others
from undaunted.progress.limits import Limits

if TYPE_CHECKING:
    from undaunted.fault_tolerance.config import FaultToleranceConfig

_WARMUP = "warmup"


class MonitorSettings(msgspec.Struct, kw_only=True, frozen=True):
    """Settings of a rank monitor.

    Attributes:
        path: of its Unix socket.
        limits: what the rank is held to.
        signal: that ends a rank which has passed one.
        again_s: how long after that it is sent again if the rank is still there, seconds.
        parent: process that it ends with, 0 = none.
    """

    path: str
    limits: Limits
    signal: int
    again_s: float
    parent: int = 0


def settings_of(cfg: FaultToleranceConfig, path: str, parent: int = 0) -> MonitorSettings:
    """Return the settings of a monitor that holds its rank to a configuration. Nothing is learned.

    Args:
        cfg: the configuration.
        path: of the Unix socket.
        parent: process that the monitor ends with, 0 = none.
    """
    sections = dict(cfg.rank_section_timeouts)
    kinds = ["initial_heartbeat", "heartbeat", "out_of_section", _WARMUP]
    kinds += [f"section:{name}" for name in sections]
    limits = Limits(
        initial_heartbeat_s=cfg.initial_rank_heartbeat_timeout,
        heartbeat_s=cfg.rank_heartbeat_timeout,
        sections=sections,
        out_of_section_s=cfg.rank_out_of_section_timeout,
        warmup_s=sections.get(_WARMUP),
        warmup_iterations=cfg.num_warmup_iterations,
        safety_factor=cfg.safety_factor,
        floor_s=cfg.min_measured_timeout,
        learn=False,
        confirm=not cfg.skip_section_response,
        sources=dict.fromkeys(kinds, "configured"),
        settings=others(cfg),
    )
    return MonitorSettings(
        path=path,
        limits=limits,
        signal=int(cfg.rank_termination_signal),
        again_s=cfg.workload_check_interval,
        parent=parent,
    )
