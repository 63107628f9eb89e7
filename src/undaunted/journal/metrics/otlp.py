"""The collector of OpenTelemetry for metrics and spans, if any. Imports nothing heavy."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

REMEDY = (
    "needs the packages opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http: "
    "pip install 'undaunted[otlp]'"
)
# As the environment says: OTEL_EXPORTER_OTLP_ENDPOINT, or those for metrics and spans alone.
FROM_ENVIRONMENT = "env"
_METRICS = "/v1/metrics"
_SPANS = "/v1/traces"


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
    return None if endpoint == FROM_ENVIRONMENT else _base(endpoint) + _METRICS


def spans_url(endpoint: str) -> str | None:
    """Return where spans go for an endpoint; None = as the environment says."""
    return None if endpoint == FROM_ENVIRONMENT else _base(endpoint) + _SPANS


def wants_spans(endpoint: str, environ: Mapping[str, str]) -> bool:
    """Tell whether spans are sent as well: not where the environment names no place for them."""
    if not endpoint or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    named = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return endpoint != FROM_ENVIRONMENT or any(map(environ.get, named))


def _base(endpoint: str) -> str:
    return endpoint.removesuffix(_METRICS).rstrip("/")
