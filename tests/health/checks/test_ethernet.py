from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING, Any

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import ethernet

if TYPE_CHECKING:
    import pytest

    from tests.health.checks.conftest import Tree


def card(tree: Tree, name: str, carrier: str, *, real: bool = True) -> None:
    tree.write(f"sys/class/net/{name}/carrier", f"{carrier}\n")
    if real:
        tree.write(f"sys/class/net/{name}/device/vendor", "0x15b3")


def run(tree: Tree, seen: dict[str, Any]) -> Finding | None:
    (check,) = ethernet.checks(Settings(root=str(tree.root), ethernet=True))
    return check.run(seen)


def test_a_carrier_that_was_there_must_stay(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    card(tree, "eth0", "1")
    card(tree, "eth1", "0")
    card(tree, "docker0", "1", real=False)
    assert run(tree, seen) is None
    card(tree, "docker0", "0", real=False)
    assert run(tree, seen) is None
    card(tree, "eth0", "0")
    assert run(tree, seen) == Finding("eth0 had a carrier and has none")
    shutil.rmtree(tree.root / "sys/class/net/eth0")
    assert run(tree, seen) == Finding("eth0 had a carrier and is gone")


def test_a_card_that_was_taken_down_has_none(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {"eth0": True}
    card(tree, "eth0", "1")

    def read(*_: object) -> str:
        raise OSError(number, "so")

    monkeypatch.setattr(ethernet, "read_text", read)
    number = errno.EINVAL
    assert run(tree, seen) == Finding("eth0 had a carrier and has none")
    number = errno.EACCES
    assert run(tree, seen) == Finding("eth0: so", failed=False)


def test_nothing_to_look_at(tree: Tree) -> None:
    assert ethernet.checks(Settings(root=str(tree.root))) == []
    found = run(tree, {})
    assert found is not None
    assert not found.failed
