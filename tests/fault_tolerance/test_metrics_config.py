from __future__ import annotations

import errno
import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.certificates import make_certificate
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE, MetricsConfig, listen, secrets

if TYPE_CHECKING:
    from pathlib import Path


def test_none_where_metrics_are_not_served() -> None:
    assert listen(MetricsConfig(otlp_endpoint="http://c")) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_free_port(address: str) -> None:
    try:
        listener = listen(MetricsConfig(port=0, address=address))
    except OSError as error:
        if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            pytest.skip(f"no {address} here")
        raise
    assert listener is not None
    with listener:
        assert listener.getsockname()[0] == address
        assert not listener.get_inheritable()


def test_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use; choose another --metrics-port"):
            listen(MetricsConfig(port=port))


def test_an_address_of_another_machine() -> None:
    with pytest.raises(OSError, match="--metrics-address must be one of this machine"):
        listen(MetricsConfig(port=0, address="192.0.2.1"))


def test_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert secrets(MetricsConfig(port=0)) == (b"", None)
    monkeypatch.setenv(TOKEN_VARIABLE, "0123456789abcdef")
    made = make_certificate(tmp_path, "server", "IP:127.0.0.1")
    token, tls = secrets(MetricsConfig(port=0, tls_cert=str(made.cert), tls_key=str(made.key)))
    assert token == b"0123456789abcdef"
    assert isinstance(tls, ssl.SSLContext)
