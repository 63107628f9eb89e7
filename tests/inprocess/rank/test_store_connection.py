from __future__ import annotations

from typing import Any

import pytest

from undaunted.inprocess import background
from undaunted.inprocess.rank.store_connection import StoreConnection

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Keys:
    """A client that has keys."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete_key(self, key: str) -> None:
        self.deleted.append(key)


class NamedKeys(Keys):
    def list_keys(self) -> list[str]:
        return ["0/a", "1/a", "0/b"]


@pytest.mark.parametrize(("client", "deleted"), [(NamedKeys(), ["0/a", "0/b"]), (Keys(), [])])
def test_keys_are_deleted_where_the_store_can_name_them(client: Any, deleted: list[str]) -> None:
    """One of torch 2.8 cannot."""
    StoreConnection(lambda: client).forget("0/")
    background.settle(20)
    assert client.deleted == deleted
