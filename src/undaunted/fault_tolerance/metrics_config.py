"""The destination of a launcher's metrics, and the needs of serving them: port and secrets."""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec

from undaunted.base import values
from undaunted.base.options import Kind, Opt
from undaunted.base.values import Port, Text
from undaunted.journal.metrics import otlp

if TYPE_CHECKING:
    import socket
    import ssl

METRICS = "Metrics"
# The bearer token of the endpoint, where no file holds it.
TOKEN_VARIABLE = "UNDAUNTED_METRICS_TOKEN"  # noqa: S105 - its name
_BACKLOG = 128


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
            "Send metrics and spans to an OpenTelemetry collector every 15 s, by OTLP over HTTP; "
            "env = to OTEL_EXPORTER_OTLP_ENDPOINT",
            name="otlp-endpoint",
            rare=True,
        ),
    ] = ""


def listen(config: MetricsConfig) -> "socket.socket | None":
    """Return the listening socket of ``/metrics``, None if it is not served.

    Raises:
        OSError: it cannot be had; the message says why and what to do.
    """
    import socket  # not on the way to a run without metrics

    if config.port is None:
        return None
    family = socket.AF_INET6 if ":" in config.address else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise _refused(config, error) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.address, config.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(config, error) from None
    return listener


def secrets(config: MetricsConfig) -> "tuple[bytes, ssl.SSLContext | None]":
    """Return the token, b"" = none, and what TLS needs, None = there is none.

    Waits for the disk, within a deadline.

    Raises:
        TokenError: the token cannot be read.
        TlsError: a file of TLS cannot be used.
    """
    from undaunted.coordinator.wire.credentials import find_token, server_context

    path = Path(config.token_file) if config.token_file else None
    token = find_token(os.environ, path, variable=TOKEN_VARIABLE)
    if not config.tls_cert:
        return token, None
    return token, server_context(Path(config.tls_cert), Path(config.tls_key))


def _refused(config: MetricsConfig, error: OSError) -> OSError:
    remedy = {
        errno.EADDRINUSE: "; choose another --metrics-port, or 0 for a free one",
        errno.EADDRNOTAVAIL: "; --metrics-address must be one of this machine",
        errno.EACCES: "; choose a --metrics-port above 1023",
    }.get(error.errno or 0, "")
    place = f"port {config.port} of {config.address}"
    reason = error.strerror or error
    return OSError(error.errno, f"metrics cannot be served at {place}: {reason}{remedy}")
