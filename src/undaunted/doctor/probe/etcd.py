"""The version of an etcd."""

from __future__ import annotations

import http.client

import msgspec

from undaunted.base.deadline import within

_DEADLINE_S = 10.0
_CONNECT_S = 5.0
_MOST_BYTES = 4096


class _Answer(msgspec.Struct):
    etcdserver: str


def of_etcd(host: str, port: int, deadline_s: float = _DEADLINE_S) -> tuple[str, str]:
    """Ask an etcd without TLS; return its version and the problem."""
    late = ("", f"{host}:{port} has not answered within {deadline_s:.0f} s")
    return within(deadline_s, lambda: _ask(host, port), late)


def _ask(host: str, port: int) -> tuple[str, str]:
    connection = http.client.HTTPConnection(host, port, timeout=_CONNECT_S)
    try:
        connection.request("GET", "/version")
        content = connection.getresponse().read(_MOST_BYTES)
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        return "", f"{host}:{port}: {getattr(error, 'strerror', None) or error}"
    finally:
        connection.close()
    try:
        return msgspec.json.decode(content, type=_Answer).etcdserver, ""
    except (msgspec.DecodeError, ValueError):
        return "", f"{host}:{port} is no etcd, or wants TLS"
