"""Which GPU and which network cards are a rank's own. Looks only into ``/proc`` and ``/sys``."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.health.check import INFINIBAND, nics

if TYPE_CHECKING:
    from collections.abc import Mapping

_GPUS = "proc/driver/nvidia/gpus"  # a directory for each, named by its PCI address


def visible_device(index: int, environ: Mapping[str, str]) -> str | None:
    """Return what names the rank's GPU as in ``CUDA_VISIBLE_DEVICES``; None = it has none.

    Args:
        index: among those the process may use; where it may use one, that is its own.
        environ: of the process.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if len(entries) == 1:
        return entries[0]
    return entries[index] if index < len(entries) else None


def nearest_nics(gpu: int, root: str) -> list[str]:
    """Return the InfiniBand devices that are nearest to a GPU in the tree of PCI bridges.

    Args:
        gpu: as the driver counts.
        root: where ``/proc`` and ``/sys`` are.

    Returns:
        All devices if where the GPU is cannot be found out, or they are all equally far.
    """
    present = nics(root)
    there = _gpu_path(gpu, root)
    common = {nic: _common(there, _path(Path(root, INFINIBAND, nic, "device"))) for nic in present}
    most = max(common.values(), default=0)
    return [nic for nic in present if common[nic] == most]


def _gpu_path(gpu: int, root: str) -> tuple[str, ...]:
    try:
        addresses = sorted(os.listdir(Path(root, _GPUS)))
    except OSError:
        return ()
    if gpu >= len(addresses):
        return ()
    return _path(Path(root, "sys/bus/pci/devices", addresses[gpu].lower()))


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many steps two paths have in common."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _path(link: Path) -> tuple[str, ...]:
    """Return the bridges on the way to a device, and the device."""
    return link.resolve().parts if link.exists() else ()
