# Made from names/*.yaml by `make generated`.
"""Checks of a rank that goes on after a fault."""

from __future__ import annotations

from undaunted.inprocess.health_check import ChainedGPUHealthCheck as ChainedGPUHealthCheck
from undaunted.inprocess.health_check import ChainedNicHealthCheck as ChainedNicHealthCheck
from undaunted.inprocess.health_check import ChainedNVLHealthCheck as ChainedNVLHealthCheck
from undaunted.inprocess.health_check import CudaHealthCheck as CudaHealthCheck
from undaunted.inprocess.health_check import FaultCounter as FaultCounter
from undaunted.inprocess.health_check import FaultCounterExceeded as FaultCounterExceeded
from undaunted.inprocess.health_check import HealthCheck as HealthCheck
