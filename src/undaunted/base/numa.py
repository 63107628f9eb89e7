"""NUMA nodes: which there are, and how a process is kept on one. Linux only.

Affinity and memory policy belong to a thread. They pass to the threads it starts, to its children
and to the programs it becomes.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

NODES = Path("/sys/devices/system/node")
# From the kernel's uapi/linux/mempolicy.h.
_MPOL_BIND = 2
_MPOL_LOCAL = 4
_NR_SET_MEMPOLICY = {
    "x86_64": 238,
    "aarch64": 237,
    "riscv64": 237,
    "loongarch64": 237,
    "ppc64le": 261,
    "s390x": 270,
}
_BITS = 64


class NumaError(Exception):
    """A process cannot be bound to a node; the text says why, and what to do."""


def nodes(root: Path = NODES) -> list[int]:
    """Return the numbers of the nodes that are online; none where the kernel does not say."""
    try:
        return sorted(parse_list((root / "online").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return []


def cpus(node: int, root: Path = NODES) -> set[int]:
    """Return the CPUs of a node.

    Raises:
        NumaError: there is no such node.
    """
    try:
        return parse_list((root / f"node{node}" / "cpulist").read_text(encoding="ascii"))
    except (OSError, ValueError):
        there = ", ".join(map(str, nodes(root))) or "none that the kernel tells of"
        raise NumaError(f"there is no NUMA node {node} here (there are: {there})") from None


def parse_list(text: str) -> set[int]:
    """Return the numbers in a list as the kernel writes it, for example ``0-3,8``.

    Raises:
        ValueError: it is not one.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            low, _, high = part.partition("-")
            found |= set(range(int(low), int(high or low) + 1))
    return found


def bind(node: int, *, strict: bool, root: Path = NODES) -> set[int]:
    """Keep this thread on the CPUs of a node, and its memory there too.

    Args:
        node: number of the node.
        strict: memory comes from this node only; otherwise from the node of the CPU that asks for
            it, and from others when that one is full.
        root: where the kernel describes the nodes.

    Returns:
        The CPUs it may run on now: those of the node that it might use before.

    Raises:
        NumaError: it cannot be done.
    """
    usable = cpus(node, root) & os.sched_getaffinity(0)
    if not usable:
        raise NumaError(f"NUMA node {node} has no CPU that this process may use")
    number = _NR_SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        raise NumaError(f"binding of memory is not known for {os.uname().machine} machines")
    try:
        os.sched_setaffinity(0, usable)
        if strict:
            _set_mempolicy(number, _MPOL_BIND, node)
        else:
            _set_mempolicy(number, _MPOL_LOCAL, None)
    except OSError as error:
        raise NumaError(
            f"the kernel does not let this process be bound to NUMA node {node} "
            f"({error.strerror}); in a container, add the capability SYS_NICE"
        ) from error
    return usable


def try_bind(node: int, *, strict: bool, root: Path = NODES) -> None:
    """Raise what `bind` would raise, but leave everything as it is.

    It is tried in a thread of its own, which takes affinity and policy with it when it ends.

    Raises:
        NumaError: as `bind`.
    """
    problems: list[NumaError] = []

    def attempt() -> None:
        try:
            bind(node, strict=strict, root=root)
        except NumaError as error:
            problems.append(error)

    thread = threading.Thread(target=attempt, name="undaunted-numa")
    thread.start()
    thread.join()  # a few system calls, none of which waits
    if problems:
        raise problems[0]


def _set_mempolicy(number: int, mode: int, node: int | None) -> None:
    """Call the kernel, which has no wrapper in libc.

    Raises:
        OSError: it refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if node is None:
        result = libc.syscall(ctypes.c_long(number), ctypes.c_int(mode), None, ctypes.c_ulong(0))
    else:
        words = node // _BITS + 1
        mask = (ctypes.c_ulong * words)()
        mask[node // _BITS] = 1 << (node % _BITS)
        # The kernel takes one bit less than it is told.
        size = ctypes.c_ulong(words * _BITS + 1)
        result = libc.syscall(ctypes.c_long(number), ctypes.c_int(mode), mask, size)
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
