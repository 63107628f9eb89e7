# Made from names/*.yaml by `make generated`.
"""Not built: importing this says so."""

from __future__ import annotations

raise ImportError(
    "undaunted has no nvidia_resiliency_ext.fault_tolerance.per_cycle_logs. The launcher writes"
    " the logs of each round itself, with --ft-per-cycle-applog-prefix.",
    name=__name__,
)
