from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.coordinator.etcd.server import Etcd, skip_without_etcd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    skip_without_etcd()
    server = Etcd(tmp_path)
    yield server
    server.kill()
