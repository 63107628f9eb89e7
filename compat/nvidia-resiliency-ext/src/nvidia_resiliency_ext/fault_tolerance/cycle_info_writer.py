"""The files about each round. Under `undaunted run` the coordinator of the job writes them."""

from __future__ import annotations

from undaunted.fault_tolerance.cycle_info import CycleInfo, node_ranges, read
from undaunted.fault_tolerance.run_config import CycleInfoPlace

__all__ = ["CycleInfo", "CycleInfoPlace", "node_ranges", "read"]
