"""Options whose areas are not built yet; they are refused, never ignored.

Those that set a field of `FaultToleranceConfig` are not here: the field says so itself.
"""

from __future__ import annotations

# What the options belong to, and their names.
NOT_BUILT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torchrun's binding to NUMA nodes", ("numa-binding",)),
    (
        "an attribution service that the launcher starts",
        (
            "ft-attribution-startup-timeout",
            "ft-attribution-llm-api-key-file",
            "ft-attribution-llm-base-url",
            "ft-attribution-llm-model",
            "ft-attribution-analysis-backend",
            "ft-attribution-compute-timeout",
            "ft-attribution-log-level",
        ),
    ),
)
