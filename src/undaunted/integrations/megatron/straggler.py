"""Slow ranks, under the names of Megatron Bridge's ``training.nvrx_straggler``."""

from __future__ import annotations

from undaunted.attribution.straggler import manager
from undaunted.attribution.straggler.manager import (
    NVRxStragglerDetectionConfig,
    check_nvrx_straggler_detection,
    safe_shutdown_nvrx_straggler_manager,
)
from undaunted.training.stopping import StopReason, tell_launcher

__all__ = [
    "NVRxStragglerDetectionConfig",
    "NVRxStragglerDetectionManager",
    "check_nvrx_straggler_detection",
    "safe_shutdown_nvrx_straggler_manager",
]


class NVRxStragglerDetectionManager(manager.NVRxStragglerDetectionManager):
    """The manager of `undaunted.attribution.straggler`, which has the launcher know of a stop.

    Ranks that stop for a straggler end with 0, as in Megatron, but have not finished their work.
    """

    def check_stragglers(self, global_rank: int) -> bool:
        """Report, if it is time; see there."""
        stop = super().check_stragglers(global_rank)
        if stop:
            slow = next(iter(self.stragglers), None)
            tell_launcher(StopReason.STRAGGLER, slow, f"stragglers: {self.stragglers}")
        return stop
