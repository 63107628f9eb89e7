"""Names that left undaunted for this distribution say where they are."""

from __future__ import annotations

import importlib

import pytest

MOVED = {
    "undaunted.fault_tolerance": {
        "FaultToleranceProfiler": "shared_utils.profiling",
        "ProfilingEvent": "shared_utils.profiling",
        "profiling_events": "shared_utils.profiling",
        "record_profiling_event": "shared_utils.profiling",
        "ipc_connector": "fault_tolerance.ipc_connector",
        "rank_monitor": "fault_tolerance.rank_monitor_server",
    },
    "undaunted.integrations.lightning": {
        "FaultToleranceCallback": "ptl_resiliency.fault_tolerance_callback",
        "FaultToleranceSectionsCallback": "ptl_resiliency.fault_tolerance_sections_callback",
        "SimulatedFaultParams": "ptl_resiliency",
        "StragglerDetectionCallback": "ptl_resiliency.straggler_det_callback",
    },
}


@pytest.mark.parametrize(
    ("module", "name", "place"),
    [(module, name, place) for module, names in MOVED.items() for name, place in names.items()],
)
def test_a_name_that_left_says_where_it_is(module: str, name: str, place: str) -> None:
    with pytest.raises(ImportError, match=f"nvidia_resiliency_ext.{place} now"):
        getattr(importlib.import_module(module), name)
    there = importlib.import_module(f"nvidia_resiliency_ext.{place}")
    assert name.islower() or hasattr(there, name)
