"""The files about each round. Under `undaunted run` the coordinator of the job writes them."""

from __future__ import annotations

from undaunted.coordinator.cycle_info import CycleInfo, node_ranges
from undaunted.fault_tolerance.cycle_info_files import read
from undaunted.fault_tolerance.cycle_info_place import CycleInfoPlace

__all__ = ["CycleInfo", "CycleInfoPlace", "node_ranges", "read"]
