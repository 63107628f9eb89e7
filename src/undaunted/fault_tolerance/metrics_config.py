"""Where a launcher's metrics go."""

from __future__ import annotations

import msgspec

# The bearer token of the endpoint, where no file holds it.
TOKEN_VARIABLE = "UNDAUNTED_METRICS_TOKEN"  # noqa: S105 - its name


class MetricsConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Metrics as the user wants them.

    Attributes:
        port: of ``/metrics``; 0 = a free one, None = it is not served.
        address: numeric address it is served at.
        token_file: absolute path, "" = the token is in ``UNDAUNTED_METRICS_TOKEN`` or there is
            none.
        tls_cert, tls_key: absolute paths, "" = plain HTTP.
        otlp_endpoint: URL of a collector of OpenTelemetry, ``env`` = as its variables say; "" =
            none.
    """

    port: int | None = None
    address: str = "127.0.0.1"
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    otlp_endpoint: str = ""
