"""The common part of commands that serve over HTTP: the port, the token, TLS."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from undaunted.cli.messages import UsageError

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from undaunted.cli.command import Parsed


def listen(parsed: Parsed[Any], *, is_open: bool, remedy: str = "") -> socket.socket:
    """Return a socket that listens at ``--host`` and ``--port``.

    Args:
        parsed: the command line, which has both.
        is_open: whether anybody may ask; only this machine may be listened at then.
        remedy: what may be given instead of a token, in words.

    Raises:
        UsageError: that is not possible, or not allowed.
    """
    host, port = parsed.options.host, parsed.options.port
    if is_open and not ipaddress.ip_address(host).is_loopback:
        raise UsageError(
            f"{parsed.source('host')} {host} can be reached from other machines: give "
            f"--token-file{remedy}"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(
            f"{parsed.source('port')} {port} of {host} cannot be listened at: "
            f"{error.strerror or error}; choose another one, or 0 for a free one"
        ) from None


def bearer_token(path: Path | None) -> bytes:
    """Return the token in a file, b"" if there is no path.

    Raises:
        UsageError: the file cannot be used.
    """
    if path is None:
        return b""
    from undaunted.coordinator.wire.credentials import TokenError, find_token

    try:
        return find_token({}, path)
    except TokenError as error:
        raise UsageError(str(error)) from None


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what a server shows, None if there is no certificate.

    Raises:
        UsageError: a file cannot be used, or one is missing.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError("--tls-cert and --tls-key are only of use together")
    from undaunted.coordinator.wire.credentials import TlsError, server_context

    try:
        return server_context(cert, key)
    except TlsError as error:
        raise UsageError(str(error)) from None
