"""The proofs of a node: the job's token, and certificates of TLS."""

from __future__ import annotations

import os
import secrets
import ssl
import stat
from typing import TYPE_CHECKING, NoReturn

from undaunted.base.deadline import within
from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOKEN_VARIABLE = "UNDAUNTED_TOKEN"  # noqa: S105 - its name
SHORTEST = 16  # characters: who records a handshake can try tokens until one fits
LONGEST = 4096  # bytes of a file

_DISK_S = 10.0  # longest wait for the disk
_MAKE_ONE = "make one with: python3 -c 'import secrets; print(secrets.token_hex(32))'"


class TokenError(Exception):
    """There is no usable token; the message says why and what to do. It never shows the token."""


def find_token(
    environ: Mapping[str, str],
    path: Path | None = None,
    *,
    create: bool = False,
    variable: str = TOKEN_VARIABLE,
) -> bytes:
    """Return the job's token, b"" if none was given.

    Args:
        environ: the environment; its ``variable`` is used when there is no ``path``.
        path: file with the token.
        create: make the file, with a random token, if it does not exist.
        variable: where the token is if not in a file.

    Raises:
        TokenError: the file cannot be used, or the token is too short.
    """
    if path is None:
        text = environ.get(variable, "")
        return _checked(text.encode("utf-8", "surrogateescape"), variable) if text else b""
    late: bytes | TokenError = TokenError(
        f"token file {path}: the disk has not answered for {_DISK_S:.0f} s"
    )
    found = within(_DISK_S, lambda: _attempt(path, create=create), late)
    if isinstance(found, TokenError):
        raise found
    return found


def _attempt(path: Path, *, create: bool) -> bytes | TokenError:
    try:
        if create:
            _create(path)
        return _checked(_read(path), f"token file {path}")
    except TokenError as error:
        return error
    except OSError as error:
        return TokenError(f"token file {path}: {error.strerror or error}")


def _create(path: Path) -> None:
    """Make the file with all of its content at once, unless there is one."""
    if path.is_symlink() or path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(fd)
        os.link(draft, path)
    except FileExistsError:
        return  # another launcher was faster; its token counts
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    # Non-blocking, or the open of a pipe would wait for somebody who writes.
    # A link is followed, as Kubernetes mounts a Secret: what counts is the file it leads to.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if problem := _problem(os.fstat(fd)):
            raise TokenError(f"token file {path}: {problem}")
        return os.read(fd, LONGEST + 1)
    finally:
        os.close(fd)


def _problem(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file"
    if status.st_uid not in {os.geteuid(), 0}:
        return f"belongs to user {status.st_uid}, not to you (user {os.geteuid()})"
    # Its group may read what nobody writes: a Secret's file of root, where the pod has an fsGroup.
    mode = status.st_mode & 0o777
    if mode & 0o077 and mode != 0o440:
        return (
            f"others may use it (mode {mode:04o}); run chmod 600 on it, or mount a Secret of "
            "Kubernetes with defaultMode: 0400"
        )
    if status.st_size > LONGEST:
        return f"has {status.st_size} bytes, a token has at most {LONGEST}"
    return ""


def _checked(content: bytes, where: str) -> bytes:
    token = content.strip()
    if len(content) > LONGEST:
        raise TokenError(f"{one_line(where)}: longer than {LONGEST} bytes")
    if not token:
        raise TokenError(f"{one_line(where)}: is empty; {_MAKE_ONE}")
    if len(token) < SHORTEST:
        raise TokenError(
            f"{one_line(where)}: the token has {len(token)} characters, it needs at least "
            f"{SHORTEST}; {_MAKE_ONE}"
        )
    return token


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
    if "PEM lib" in reason or "PEM_LIB" in reason:  # openssl does not say more
        return "one of the files is not, or not wholly, PEM of its kind"
    return str(reason).lower().replace("_", " ")
