# Made from names/*.yaml by `make generated`.
"""The files about each round. Under `undaunted run` the coordinator of the job writes them."""

from __future__ import annotations

from undaunted.fault_tolerance.cycle_info import CycleInfo as CycleInfo
from undaunted.fault_tolerance.cycle_info import node_ranges as node_ranges
from undaunted.fault_tolerance.cycle_info import read as read
from undaunted.fault_tolerance.run_config import CycleInfoPlace as CycleInfoPlace
