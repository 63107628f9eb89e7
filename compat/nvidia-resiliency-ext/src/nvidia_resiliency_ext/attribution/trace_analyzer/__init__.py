# Made from names/*.yaml by `make generated`.
"""The ranks that keep the others waiting, from dumps of torch's Flight Recorder."""

from __future__ import annotations

from nvidia_resiliency_ext.attribution.trace_analyzer.fr_attribution import (
    CollectiveAnalyzer as CollectiveAnalyzer,
)
from nvidia_resiliency_ext.attribution.trace_analyzer.trace_collector import (
    TorchFRTraceCollector as TorchFRTraceCollector,
)
from nvidia_resiliency_ext.attribution.trace_analyzer.trace_collector import (
    TraceCollector as TraceCollector,
)
