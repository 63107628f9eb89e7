"""Trees like /sys, in a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


class Tree:
    """Something that looks like ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def port(self, nic: str, number: int = 1) -> str:
        return f"sys/class/infiniband/{nic}/ports/{number}"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)
