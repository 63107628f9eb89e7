# Made from names/*.yaml by `make generated`.
"""Not built: importing this says so."""

from __future__ import annotations

raise ImportError(
    "undaunted has no nvidia_resiliency_ext.fault_tolerance.c10d_monkey_patch. Nothing of torch"
    " is patched; the store's connection is the coordinator's.",
    name=__name__,
)
