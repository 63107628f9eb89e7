from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from undaunted.doctor.probes import of_etcd

if TYPE_CHECKING:
    from collections.abc import Callable


def served(answer: bytes, ask: Callable[[int], tuple[str, str]]) -> tuple[str, str]:
    """What ``ask`` says of a server that gives this answer once."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            sock.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return ask(listener.getsockname()[1])
        finally:
            thread.join(60)


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_an_etcd() -> None:
    body = b'{"etcdserver":"3.5.2","etcdcluster":"3.5.0"}'
    assert served(http(body), lambda port: of_etcd("127.0.0.1", port)) == ("3.5.2", "")


def test_something_else() -> None:
    version, problem = served(http(b"hello"), lambda port: of_etcd("127.0.0.1", port))
    assert version == ""
    assert problem.endswith("is no etcd, or wants TLS")
    version, problem = served(b"\x15\x03\x01", lambda port: of_etcd("127.0.0.1", port))
    assert (version, bool(problem)) == ("", True)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert of_etcd("127.0.0.1", port) == ("", f"127.0.0.1:{port}: Connection refused")


def test_somebody_who_says_nothing() -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = of_etcd("127.0.0.1", port, deadline_s=0.05)
    assert found == ("", f"127.0.0.1:{port} has not answered within 0 s")
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
