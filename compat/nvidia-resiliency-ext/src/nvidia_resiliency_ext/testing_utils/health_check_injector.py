"""Checks of GPUs that fail on purpose: ``NVRX_INJECT_GPU_FAILURE=CYCLE:INFRA_RANK,...``.

`undaunted run` reads the variable itself. Here it counts for `GPUHealthCheck` of a program that
says which cycle it is in.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.simulated_faults import injected, parse_gpu_failures
from undaunted.fault_tolerance.topology import infrastructure_rank

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = "NVRX_INJECT_GPU_FAILURE"
_current_cycle = -1


def set_current_cycle(cycle: int) -> None:
    """Say which cycle begins; before the first call nothing fails."""
    global _current_cycle  # noqa: PLW0603 - NVRx's interface
    _current_cycle = cycle


class HealthCheckInjector:
    """Knows in which cycles the check of GPUs fails on this node.

    Raises:
        ValueError: the variable cannot be read.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read the environment."""
        self._failures = parse_gpu_failures(environ.get(_VARIABLE, ""))
        self._infra_rank = (infrastructure_rank(environ) or 0) if self._failures else 0

    def should_fail(self, cycle: int) -> bool:
        """Return whether the check fails in this cycle."""
        return bool(injected(self._failures, cycle, self._infra_rank))


def fails_now() -> bool:
    """Return whether the check of GPUs of this node fails in the current cycle."""
    return bool(os.environ.get(_VARIABLE)) and HealthCheckInjector().should_fail(_current_cycle)
