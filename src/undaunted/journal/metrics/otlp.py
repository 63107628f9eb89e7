"""Whether and where metrics can be sent to a collector of OpenTelemetry. Imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec

REMEDY = (
    "needs the packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http: "
    "pip install 'undaunted[otlp]'"
)
# As the environment says: OTEL_EXPORTER_OTLP_ENDPOINT, or the one for metrics alone.
FROM_ENVIRONMENT = "env"
_PATH = "/v1/metrics"


def is_possible() -> bool:
    """Tell whether the packages are there."""
    try:
        return (
            find_spec("opentelemetry.sdk") is not None
            and find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        )
    except ModuleNotFoundError:  # not even the package around it
        return False


def metrics_url(endpoint: str) -> str | None:
    """Return where metrics go for an endpoint; None = as the environment says."""
    if endpoint == FROM_ENVIRONMENT:
        return None
    return endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
