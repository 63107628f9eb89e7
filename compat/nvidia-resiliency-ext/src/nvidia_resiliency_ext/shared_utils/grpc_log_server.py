# Made from names/*.yaml by `make generated`.
"""Not built: importing this says so."""

from __future__ import annotations

raise ImportError(
    "undaunted has no nvidia_resiliency_ext.shared_utils.grpc_log_server. The log server does "
    "not speak gRPC; --ft-enable-log-server starts undaunted's.",
    name=__name__,
)
