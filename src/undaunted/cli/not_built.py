"""Options whose areas are not built yet; they are refused, never ignored.

Those that set a field of `FaultToleranceConfig` are not here: the field says so itself.
"""

from __future__ import annotations

# What the options belong to, and their names.
NOT_BUILT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("health checks", ("ft-node-health-check-endpoint",)),
    ("rendezvous of several nodes", ("elastic", "coordinator-store")),
    ("torchrun's binding to NUMA nodes", ("numa-binding",)),
    (
        "the attribution service",
        (
            "ft-attribution-startup-timeout",
            "ft-attribution-llm-api-key-file",
            "ft-attribution-llm-base-url",
            "ft-attribution-llm-model",
            "ft-attribution-analysis-backend",
            "ft-attribution-compute-timeout",
            "ft-attribution-log-level",
            "ft-no-restart-exit-code",
        ),
    ),
    (
        "the log server",
        (
            "ft-enable-log-server",
            "ft-log-server-port",
            "ft-log-aggregator-count",
            "ft-log-leaf-max-queue-chunks",
            "ft-log-server-log-prefix",
            "ft-log-server-graceful-shutdown-timeout",
        ),
    ),
    (
        "plug-ins of torchrun's output",
        (
            "event-log-handler",
            "duplicate-stdout-filters",
            "duplicate-stderr-filters",
        ),
    ),
    ("the choice of forwarded signals", ("signals-to-handle",)),
    ("virtual local ranks", ("virtual-local-rank",)),
)
