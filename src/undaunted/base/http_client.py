"""One request to a server over HTTP, at an address or a Unix socket, within a deadline."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import http.client

_CONNECT_S = 5.0
_LONGEST_ANSWER = 1 << 20  # bytes
_UNIX = "unix://"


class Response(NamedTuple):
    """The answer of a server.

    Attributes:
        status: of HTTP, such as 200.
        body: at most 1 MiB.
        retry_after: the header that says when to come again, "" = it is not there.
    """

    status: int
    body: bytes
    retry_after: str = ""


class NoAnswerError(Exception):
    """The server was reached and gave no usable answer; the message says why."""


def exchange(
    url: str,
    method: str,
    path: str,
    body: str | None = None,
    *,
    limit_s: float,
    token: bytes = b"",
) -> Response:
    """Send one request and return the answer, whatever its status.

    Args:
        url: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:///PATH``.
        method: ``GET``, ``POST``, ...
        path: with its query.
        body: JSON; None = there is none.
        limit_s: longest wait, seconds; of these at most 5 to connect.
        token: shown as ``Authorization: Bearer``, b"" = none.

    Raises:
        OSError: the server cannot be reached.
        NoAnswerError: it does not answer in time, too much, or in another language than HTTP.
    """
    import http.client

    deadline = time.monotonic() + limit_s
    connection = _connection(url, min(limit_s, _CONNECT_S))
    try:
        connection.connect()
        connection.sock.settimeout(limit_s)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token:
            headers["Authorization"] = f"Bearer {token.decode('latin-1')}"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = _read(response, deadline)
        except TimeoutError:
            raise NoAnswerError(f"no answer within {limit_s:g} s") from None
        return Response(response.status, content, response.headers.get("Retry-After", ""))
    except http.client.HTTPException as error:
        raise NoAnswerError(str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    content = bytearray()
    while chunk := response.read1(65536):
        content += chunk
        if len(content) > _LONGEST_ANSWER:
            raise NoAnswerError(f"the answer is longer than {_LONGEST_ANSWER >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return bytes(content)


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    import http.client

    if url.startswith(_UNIX):
        return _over_unix(url.removeprefix(_UNIX), timeout_s)
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":  # the authorities of this machine, or of SSL_CERT_FILE
        return http.client.HTTPSConnection(host, port or 443, timeout=timeout_s)
    return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)


def _over_unix(path: str, timeout_s: float) -> http.client.HTTPConnection:
    import http.client

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(timeout_s)
            self.sock.connect(path)

    return Connection("localhost", timeout=timeout_s)
