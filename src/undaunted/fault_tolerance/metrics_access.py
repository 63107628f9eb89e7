"""What serving metrics needs from the machine: a port, and secrets."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE

if TYPE_CHECKING:
    import ssl

    from undaunted.fault_tolerance.metrics_config import MetricsConfig

_BACKLOG = 128


def listen(config: MetricsConfig) -> socket.socket | None:
    """Return the listening socket of ``/metrics``, None if it is not served.

    Raises:
        OSError: it cannot be had; the message says why and what to do.
    """
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


def secrets(config: MetricsConfig) -> tuple[bytes, ssl.SSLContext | None]:
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
