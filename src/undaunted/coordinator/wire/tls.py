"""TLS contexts from files, and errors that name the file."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path


class TlsError(Exception):
    """A file of TLS cannot be used; the message names it and says why."""


def server_context(cert: Path, key: Path, ca: Path | None = None) -> ssl.SSLContext:
    """Return what a server shows and asks for.

    Args:
        cert: its certificate and those between it and the authority, PEM.
        key: the private key of the certificate, PEM, without a password.
        ca: authorities of the clients' certificates, PEM; None = clients need no certificate.

    Raises:
        TlsError: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_own(context, cert, key)
    if ca is not None:
        _load_authorities(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: Path, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Return what a client asks for and shows.

    The server's certificate must be for the name or address that is connected to.

    Args:
        ca: authorities of the server's certificate, PEM.
        cert: the client's own, where the server asks for it, PEM.
        key: the private key of ``cert``, PEM, without a password.

    Raises:
        TlsError: a file cannot be used, or only one of ``cert`` and ``key`` is given.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _load_authorities(context, ca)
    if cert is not None and key is not None:
        _load_own(context, cert, key)
    elif cert is not None or key is not None:
        raise TlsError(f"{cert or key}: certificate and key are only of use together")
    return context


def _load_own(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    _check_readable(cert)
    _check_readable(key)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except TlsError:
        raise TlsError(f"{key}: the key has a password; give one without") from None
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"certificate {cert} with key {key}: {_reason(error)}") from None


def _load_authorities(context: ssl.SSLContext, ca: Path) -> None:
    _check_readable(ca)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"certificates of authorities {ca}: {_reason(error)}") from None


def _check_readable(path: Path) -> None:
    """Errors of ssl do not say which file could not be read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror or error}") from None


def _no_password() -> NoReturn:
    """Keep openssl from asking at the terminal."""
    raise TlsError


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).lower().replace("_", " ")
