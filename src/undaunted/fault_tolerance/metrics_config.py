"""Where a launcher's metrics go."""

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from undaunted.base import values
from undaunted.base.options import Kind, Opt
from undaunted.base.values import Port, Text
from undaunted.journal.metrics import otlp

METRICS = "Metrics"
# The bearer token of the endpoint, where no file holds it.
TOKEN_VARIABLE = "UNDAUNTED_METRICS_TOKEN"  # noqa: S105 - its name


def _collector(text: str) -> str:
    """Read the URL of a collector."""
    if text == otlp.FROM_ENVIRONMENT:
        return text
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"{text!r} is no URL such as http://127.0.0.1:4318; give one, or "
            f"{otlp.FROM_ENVIRONMENT}"
        )
    return text


class MetricsConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Metrics as the user wants them; `undaunted run` makes paths absolute.

    ``port`` None = ``/metrics`` is not served; "" = not given.
    """

    port: Annotated[
        Port | None,
        Kind(values.port, "PORT"),
        Opt("Serve Prometheus metrics at http://ADDRESS:PORT/metrics; 0 = a free port", METRICS),
    ] = None
    address: Annotated[
        str,
        Kind(values.address, "ADDRESS"),
        Opt("Address of /metrics; other than 127.0.0.1 or ::1 only with a token", rare=True),
    ] = "127.0.0.1"
    token_file: Annotated[
        Text,
        Opt(
            "File, mode 0600, with the token that Prometheus shows (Authorization: Bearer TOKEN)",
            metavar="FILE",
            shown=f"{TOKEN_VARIABLE}, else none",
            rare=True,
        ),
    ] = ""
    tls_cert: Annotated[
        Text, Opt("Certificate of /metrics for HTTPS, PEM", metavar="FILE", rare=True)
    ] = ""
    tls_key: Annotated[Text, Opt("Key of that certificate", metavar="FILE", rare=True)] = ""
    otlp_endpoint: Annotated[
        str,
        Kind(values.optional(_collector, ""), "URL"),
        Opt(
            "Send metrics to an OpenTelemetry collector every 15 s, by OTLP over HTTP; env = to "
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            name="otlp-endpoint",
        ),
    ] = ""
