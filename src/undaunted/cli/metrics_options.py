"""Options that say where a launcher's metrics go."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from undaunted.cli import values
from undaunted.cli.option import METRICS, Option
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE
from undaunted.journal.metrics import otlp

PORT = "metrics-port"
ADDRESS = "metrics-address"
TOKEN = "metrics-token-file"  # noqa: S105 - a name
CERT = "metrics-tls-cert"
KEY = "metrics-tls-key"
OTLP = "otlp-endpoint"


def _address(text: str) -> str:
    """Read a numeric address."""
    if text.strip() == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(text.strip().removeprefix("[").removesuffix("]")))
    except ValueError:
        raise ValueError(
            f"{text!r} is no address such as 10.0.0.7 or ::1; 0.0.0.0 means all of this machine"
        ) from None


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


METRICS_OPTIONS: tuple[Option, ...] = (
    Option(
        PORT,
        METRICS,
        "Serve metrics for Prometheus at http://ADDRESS:PORT/metrics; 0 = a free port",
        values.port,
        "PORT",
        default_text="none",
    ),
    Option(
        ADDRESS,
        METRICS,
        "Address they are served at; other than 127.0.0.1 or ::1 only with a token",
        _address,
        "ADDRESS",
        default="127.0.0.1",
    ),
    Option(
        TOKEN,
        METRICS,
        "File, mode 0600, with the token that Prometheus shows (Authorization: Bearer TOKEN)",
        str,
        "FILE",
        default_text=f"{TOKEN_VARIABLE}, else none",
    ),
    Option(CERT, METRICS, "Certificate for HTTPS, PEM", str, "FILE"),
    Option(KEY, METRICS, "Its key", str, "FILE"),
    Option(
        OTLP,
        METRICS,
        "Send metrics to a collector of OpenTelemetry every 15 s, by OTLP over HTTP; env = where "
        "OTEL_EXPORTER_OTLP_ENDPOINT says",
        _collector,
        "URL",
        default_text="none",
    ),
)
