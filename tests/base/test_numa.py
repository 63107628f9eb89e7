"""NUMA nodes of made-up machines, and binding to the first node of this one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from undaunted.base import numa

if TYPE_CHECKING:
    from collections.abc import Callable

needs_numa = pytest.mark.skipif(0 not in numa.nodes(), reason="the kernel has no NUMA nodes")


def machine(root: Path, **cpulists: str) -> Path:
    """A tree as in /sys/devices/system/node."""
    for name, cpulist in cpulists.items():
        (root / name).mkdir()
        (root / name / "cpulist").write_text(cpulist + "\n")
    (root / "online").write_text(f"0-{len(cpulists) - 1}\n")
    return root


def in_thread(call: Callable[[], object]) -> object:
    """Affinity and policy end with the thread."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except numa.NumaError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set()), ("0-1,4-5", {0, 1, 4, 5})],
)
def test_lists_of_the_kernel(text: str, expected: set[int]) -> None:
    assert numa.parse_list(text) == expected


@pytest.mark.parametrize("text", ["a", "1-b", "0x3"])
def test_anything_else_is_no_list(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        numa.parse_list(text)


def test_a_machine_of_two_nodes(tmp_path: Path) -> None:
    root = machine(tmp_path, node0="0-3,8-11", node1="4-7,12-15")
    assert numa.nodes(root) == [0, 1]
    assert numa.cpus(1, root) == {4, 5, 6, 7, 12, 13, 14, 15}


def test_a_kernel_without_numa(tmp_path: Path) -> None:
    assert numa.nodes(tmp_path) == []


def test_a_node_that_does_not_exist_is_named_with_those_that_do(tmp_path: Path) -> None:
    root = machine(tmp_path, node0="0", node1="1")
    with pytest.raises(numa.NumaError, match=r"no NUMA node 2 here \(there are: 0, 1\)"):
        numa.bind(2, strict=True, root=root)
    with pytest.raises(numa.NumaError, match="none that the kernel tells of"):
        numa.bind(0, strict=True, root=tmp_path / "nothing")


def test_a_node_whose_cpus_are_not_ours(tmp_path: Path) -> None:
    root = machine(tmp_path, node0="0", node1=str(max(os.sched_getaffinity(0)) + 1000), node2="")
    for node in (1, 2):
        with pytest.raises(numa.NumaError, match=f"NUMA node {node} has no CPU"):
            numa.try_bind(node, strict=True, root=root)


def test_only_cpus_that_were_allowed_before(tmp_path: Path) -> None:
    some = min(os.sched_getaffinity(0))
    root = machine(tmp_path, node0=f"{some},{max(os.sched_getaffinity(0)) + 1000}")

    def bind() -> object:
        return numa.bind(0, strict=False, root=root), os.sched_getaffinity(0)

    assert in_thread(bind) == ({some}, {some})


@needs_numa
@pytest.mark.parametrize(("strict", "policy"), [(True, "bind:0"), (False, "local")])
def test_memory_follows(strict: bool, policy: str) -> None:
    def bind() -> object:
        numa.bind(0, strict=strict)
        maps = Path(f"/proc/self/task/{threading.get_native_id()}/numa_maps").read_text()
        return maps.splitlines()[0].split()[1]

    assert in_thread(bind) == policy


@needs_numa
def test_trying_changes_nothing() -> None:
    before = Path("/proc/self/numa_maps").read_text().split()[1], os.sched_getaffinity(0)
    numa.try_bind(0, strict=True)
    after = Path("/proc/self/numa_maps").read_text().split()[1], os.sched_getaffinity(0)
    assert after == before


def test_an_unknown_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numa, "_NR_SET_MEMPOLICY", {})
    root = machine(tmp_path, node0=str(min(os.sched_getaffinity(0))))
    with pytest.raises(numa.NumaError, match=f"not known for {os.uname().machine} machines"):
        numa.bind(0, strict=True, root=root)


def test_a_kernel_that_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(numa, "_set_mempolicy", refuse)
    root = machine(tmp_path, node0=str(min(os.sched_getaffinity(0))))
    with pytest.raises(numa.NumaError, match=r"Operation not permitted.*SYS_NICE"):
        numa.try_bind(0, strict=True, root=root)
