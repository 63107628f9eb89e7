from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import nic_link

if TYPE_CHECKING:
    from tests.health.checks.conftest import Tree


def run(tree: Tree, seen: dict[str, Any], path: str = "") -> Finding | None:
    settings = Settings(root=str(tree.root), link_state_path=path)
    (check,) = nic_link.checks(settings)
    return check.run(seen)


def test_no_check_without_devices(tree: Tree) -> None:
    assert nic_link.checks(Settings(root=str(tree.root))) == []
    assert (
        nic_link.checks(Settings(root=str(tree.root), nic_link=False, link_state_path="/x")) == []
    )
    asked_for = run(tree, {}, "/x/{nic}")
    assert asked_for == Finding("no InfiniBand device", failed=False)


def test_a_link_that_was_active_must_stay_so(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    tree.write(tree.port("mlx5_0") + "/state", "4: ACTIVE\n")
    tree.write(tree.port("mlx5_1") + "/state", "1: DOWN\n")
    assert run(tree, seen) is None
    tree.write(tree.port("mlx5_0") + "/state", "1: DOWN\n")
    tree.write(tree.port("mlx5_1") + "/state", "4: ACTIVE\n")
    assert run(tree, seen) == Finding("mlx5_0 port 1 was ACTIVE and is DOWN")
    tree.write(tree.port("mlx5_0") + "/state", "4: ACTIVE\n")
    assert run(tree, seen) is None
    tree.write(tree.port("mlx5_1") + "/state", "2: INIT\n")
    assert run(tree, seen) == Finding("mlx5_1 port 1 was ACTIVE and is INIT")


def test_every_port_counts(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    for port in (1, 2):
        tree.write(tree.port("mlx5_0", port) + "/state", "4: ACTIVE\n")
    assert run(tree, seen) is None
    tree.write(tree.port("mlx5_0", 2) + "/state", "3: ARMED\n")
    found = run(tree, seen)
    assert found == Finding("mlx5_0 port 2 was ACTIVE and is ARMED")


def test_a_device_that_is_gone(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    for nic in ("mlx5_0", "mlx5_1"):
        tree.write(tree.port(nic) + "/state", "4: ACTIVE\n")
    assert run(tree, seen) is None
    shutil.rmtree(tree.root / "sys/class/infiniband/mlx5_0")
    assert run(tree, seen) == Finding("mlx5_0 port 1 was ACTIVE and is gone")


@pytest.mark.parametrize("text", ["", "ACTIVE", "99: ACTIVE", "4" * 300, "\x00\x01"])
def test_garbage_is_no_fault(tree: Tree, text: str) -> None:
    tree.write(tree.port("mlx5_0") + "/state", "4: ACTIVE")
    seen: dict[str, Any] = {}
    assert run(tree, seen) is None
    tree.write(tree.port("mlx5_0") + "/state", text)
    found = run(tree, seen)
    assert found is not None
    assert not found.failed
    assert "no state of a link" in found.text


def test_a_template_of_ones_own(tree: Tree) -> None:
    (tree.root / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    state = tree.write("states/mlx5_0", "4: ACTIVE")
    path = str(tree.root / "states/{nic}")
    seen: dict[str, Any] = {}
    assert run(tree, seen, path) is None
    state.unlink()
    found = run(tree, seen, path)
    assert found is not None
    assert found.failed
    assert "No such file" in found.text
