"""Options of torchrun and NVRx whose areas are not built yet; they are refused, never ignored."""

from __future__ import annotations

# What the options belong to, and their names.
NOT_BUILT: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "configuration files",
        ("ft-cfg-path", "ft-ignore-missing-cfg", "ignore-missing-fault-tol-cfg"),
    ),
    ("the launcher's log levels", ("ft-log-level",)),
    (
        "health checks",
        (
            "ft-node-health-check-interval",
            "ft-node-health-check-endpoint",
            "ft-enable-nic-monitor",
            "ft-enable-nic-healthcheck",
            "ft-pci-topo-file",
            "ft-link-down-path-template",
            "ft-link-state-path-template",
            "ft-enable-dist-storage-healthcheck",
            "ft-storage-health-check-path",
            "ft-storage-healthcheck-path",
        ),
    ),
    ("learned timeouts", ("ft-safety-factor",)),
    ("restarts in layers", ("ft-restart-check-interval",)),
    ("replies to sections", ("ft-skip-section-response",)),
    (
        "rendezvous of several nodes",
        ("ft-use-infra-group-rank", "ft-segment", "ft-rdzv-impl", "elastic", "coordinator-store"),
    ),
    ("binding to NUMA nodes", ("ft-numa-bind-strict", "numa-binding")),
    (
        "the wait for GPU memory",
        (
            "ft-gpu-memory-reclaim-timeout",
            "ft-gpu-memory-tolerance-mb",
            "ft-gpu-memory-poll-interval",
            "ft-check-remaining-processes",
        ),
    ),
    (
        "tracking of progress",
        (
            "ft-max-no-progress-cycles",
            "ft-min-progress-iterations",
            "ft-checkpoint-iteration-file",
            "ft-num-warmup-iterations",
        ),
    ),
    (
        "the attribution service",
        (
            "ft-attribution-endpoint",
            "ft-attribution-startup-timeout",
            "ft-attribution-llm-api-key-file",
            "ft-attribution-llm-base-url",
            "ft-attribution-llm-model",
            "ft-attribution-analysis-backend",
            "ft-attribution-compute-timeout",
            "ft-attribution-log-level",
            "ft-attribution-stop-action",
            "ft-attribution-export-url",
            "ft-attrsvc-host",
            "ft-attrsvc-port",
            "ft-no-restart-exit-code",
        ),
    ),
    (
        "logs per cycle and the log server",
        (
            "ft-per-cycle-applog-prefix",
            "ft-nvrx-logfile",
            "ft-enable-log-server",
            "ft-log-server-port",
            "ft-log-aggregator-count",
            "ft-log-leaf-max-queue-chunks",
            "ft-log-server-log-prefix",
            "ft-log-server-graceful-shutdown-timeout",
            "ft-cycle-info-dir",
        ),
    ),
    (
        "plug-ins of torchrun's output",
        (
            "logs-specs",
            "event-log-handler",
            "duplicate-stdout-filters",
            "duplicate-stderr-filters",
        ),
    ),
    ("the choice of forwarded signals", ("signals-to-handle",)),
    ("virtual local ranks", ("virtual-local-rank",)),
)
