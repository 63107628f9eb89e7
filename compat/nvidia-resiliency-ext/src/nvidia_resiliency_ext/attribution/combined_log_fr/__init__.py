# Made from names/*.yaml by `make generated`.
"""Not built: importing this says so."""

from __future__ import annotations

raise ImportError(
    "undaunted has no nvidia_resiliency_ext.attribution.combined_log_fr. A language model is "
    "not asked about logs and traces; `undaunted explain` reads both, and says who it was and "
    "what next.",
    name=__name__,
)
