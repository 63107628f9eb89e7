"""The steps of each restart as events."""

from __future__ import annotations

from undaunted.fault_tolerance.profiling import (
    FaultToleranceProfiler,
    ProfilingEvent,
    record_profiling_event,
)

__all__ = ["FaultToleranceProfiler", "ProfilingEvent", "record_profiling_event"]
