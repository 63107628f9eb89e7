from __future__ import annotations

import pytest

from tests.coordinator.wire.certificates import Certificate, make_certificate


@pytest.fixture(scope="session")
def of_server(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    directory = tmp_path_factory.mktemp("tls")
    return make_certificate(directory, "server", "IP:127.0.0.1,DNS:localhost")


@pytest.fixture(scope="session")
def of_client(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"), "client", "DNS:n3")
