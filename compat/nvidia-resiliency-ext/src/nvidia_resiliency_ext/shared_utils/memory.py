# Made from names/*.yaml by `make generated`.
"""Memory of the GPUs of this node, asked of NVIDIA's driver."""

from __future__ import annotations

from undaunted.health.nvml import Nvml as Nvml
from undaunted.health.nvml import NvmlError as NvmlError
