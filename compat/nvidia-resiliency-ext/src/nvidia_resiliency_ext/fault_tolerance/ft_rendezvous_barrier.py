# Made from names/*.yaml by `make generated`.
"""Not built: importing this says so."""

from __future__ import annotations

raise ImportError(
    "undaunted has no nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier. Nodes do not"
    " meet in a store; the coordinator of `undaunted run` decides who takes part.",
    name=__name__,
)
