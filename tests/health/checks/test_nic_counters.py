from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import nic_counters

if TYPE_CHECKING:
    from tests.health.checks.conftest import Tree

COUNTER = "/counters/link_downed"


def run(tree: Tree, seen: dict[str, Any], **settings: Any) -> Finding | None:
    (check,) = nic_counters.checks(Settings(root=str(tree.root), nic_monitor=True, **settings))
    return check.run(seen)


def test_only_if_asked_for_and_periodic_only_with_devices(tree: Tree) -> None:
    settings = Settings(root=str(tree.root))
    assert nic_counters.checks(settings) == []
    (check,) = nic_counters.checks(settings._replace(nic_monitor=True))
    assert not check.periodic
    assert check.run({}) == Finding("no InfiniBand device", failed=False)
    tree.write(tree.port("mlx5_0") + COUNTER, "0")
    (check,) = nic_counters.checks(settings._replace(nic_monitor=True))
    assert check.periodic


def test_a_counter_that_rises(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    path = tree.write(tree.port("mlx5_0") + COUNTER, "3\n")
    assert run(tree, seen) is None
    assert run(tree, seen) is None
    path.write_text("5\n")
    for _ in range(2):  # it stays a fault
        found = run(tree, seen)
        assert found == Finding("mlx5_0 port 1 has lost its link (link_downed 3 -> 5)")


def test_a_counter_that_was_reset(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    path = tree.write(tree.port("mlx5_0") + COUNTER, "3\n")
    assert run(tree, seen) is None
    path.write_text("0\n")
    assert run(tree, seen) is None
    path.write_text("1\n")
    found = run(tree, seen)
    assert found is not None
    assert found.failed


@pytest.mark.parametrize("text", ["", "abc", "-1", "1.5", "9" * 21, "9" * 400, "٣"])
def test_garbage_is_no_fault(tree: Tree, text: str) -> None:
    tree.write(tree.port("mlx5_0") + COUNTER, text)
    found = run(tree, {"mlx5_0 port 1": 0})
    assert found is not None
    assert not found.failed


def test_what_was_seen_may_be_garbage(tree: Tree) -> None:
    tree.write(tree.port("mlx5_0") + COUNTER, "7")
    seen: dict[str, Any] = {"mlx5_0 port 1": "x"}
    assert run(tree, seen) is None
    assert seen == {"mlx5_0 port 1": 7}


def test_only_nics_beside_gpus(tree: Tree) -> None:
    for nic, address in (("mlx5_0", "0000:01:00.0"), ("mlx5_1", "0000:02:00.0")):
        tree.write(tree.port(nic) + COUNTER, "1")
        link = tree.root / "sys/class/infiniband" / nic / "device"
        link.symlink_to(f"../../../devices/{address}")
    topology = tree.write(
        "topology.xml",
        '<system><pci busid="ffff:ff:01.0" class="0x060400">'
        '<pci busid="0000:0A:00.0" class="0x030200"/>'
        '<pci busid="0000:01:00.0" class="0x020700"/></pci>'
        '<pci busid="0000:02:00.0" class="0x020700"/></system>',
    )
    seen: dict[str, Any] = {}
    assert run(tree, seen, pci_topology=str(topology)) is None
    assert seen == {"mlx5_0 port 1": 1}


@pytest.mark.parametrize("content", ["not XML", "<system/>"])
def test_a_topology_of_no_use(tree: Tree, content: str) -> None:
    tree.write(tree.port("mlx5_0") + COUNTER, "1")
    topology = tree.write("topology.xml", content)
    seen: dict[str, Any] = {}
    found = run(tree, seen, pci_topology=str(topology))
    assert found is not None
    assert not found.failed
    assert str(topology) in found.text
    assert seen == {"mlx5_0 port 1": 1}


def test_a_topology_that_is_not_there(tree: Tree) -> None:
    tree.write(tree.port("mlx5_0") + COUNTER, "1")
    found = run(tree, {}, pci_topology=str(tree.root / "none.xml"))
    assert found is not None
    assert not found.failed
    assert "No such file" in found.text


def test_a_template_of_ones_own(tree: Tree) -> None:
    (tree.root / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    tree.write("counters/mlx5_0", "2")
    seen: dict[str, Any] = {}
    path = str(tree.root / "counters/{dev_name}")
    assert run(tree, seen, link_down_path=path) is None
    assert seen == {"mlx5_0": 2}


def test_only_some_count(tree: Tree) -> None:
    near, far = (tree.write(tree.port(f"mlx5_{n}") + COUNTER, "0") for n in (0, 1))
    check = nic_counters.NicCounters(Settings(root=str(tree.root)), ["mlx5_0"])
    seen: dict[str, Any] = {}
    assert check.run(seen) is None
    far.write_text("1")
    assert check.run(seen) is None
    near.write_text("1")
    assert check.run(seen) == Finding("mlx5_0 port 1 has lost its link (link_downed 0 -> 1)")
