"""Slow ranks, under the names of Megatron Bridge's ``training.nvrx_straggler``."""

from __future__ import annotations

from undaunted.attribution.straggler.manager import (
    NVRxStragglerDetectionConfig,
    NVRxStragglerDetectionManager,
    check_nvrx_straggler_detection,
    safe_shutdown_nvrx_straggler_manager,
)

__all__ = [
    "NVRxStragglerDetectionConfig",
    "NVRxStragglerDetectionManager",
    "check_nvrx_straggler_detection",
    "safe_shutdown_nvrx_straggler_manager",
]
