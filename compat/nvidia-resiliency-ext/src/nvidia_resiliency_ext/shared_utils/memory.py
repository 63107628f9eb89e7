"""Memory of the GPUs of this node, asked of NVIDIA's driver."""

from __future__ import annotations

from undaunted.health.nvml import Nvml, NvmlError

__all__ = ["Nvml", "NvmlError"]
