# Made from names/*.yaml by `make generated`.
"""The cause of a job's end, from its log."""

from __future__ import annotations

from nvidia_resiliency_ext.attribution.log_analyzer.nvrx_logsage import (
    NVRxLogAnalyzer as NVRxLogAnalyzer,
)
from nvidia_resiliency_ext.attribution.log_analyzer.nvrx_logsage import (
    RawAnalysisResultItem as RawAnalysisResultItem,
)
