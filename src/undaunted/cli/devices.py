"""The number of workers that a node has room for, without importing torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.cgroups import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping

_NVIDIA_DEVICE = re.compile(r"nvidia\d+")


def worker_count(wanted: int | str, environ: Mapping[str, str]) -> int:
    """Return the number of workers: of ``auto``, ``gpu`` and ``cpu`` as this node has them.

    Args:
        wanted: a number, or one of these words.
        environ: see `gpu_count`.

    Raises:
        ValueError: ``gpu``, and there is none.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted == "cpu":
        return usable_cpus()
    gpus = gpu_count(environ)
    if gpus == 0 and wanted == "gpu":
        raise ValueError(
            "gpu: no NVIDIA or AMD GPU is visible here (see CUDA_VISIBLE_DEVICES); give the number "
            "of workers, or auto"
        )
    return gpus or usable_cpus()


def gpu_count(environ: Mapping[str, str], root: str = "/") -> int:
    """Number of NVIDIA or AMD GPUs that a worker would see.

    Args:
        environ: ``CUDA_VISIBLE_DEVICES``, ``HIP_VISIBLE_DEVICES`` and ``ROCR_VISIBLE_DEVICES``
            limit the number.
        root: where ``dev``, ``proc`` and ``sys`` are.
    """
    base = Path(root)
    nvidia = _nvidia_count(base)
    if nvidia:
        return _visible(nvidia, environ, "CUDA_VISIBLE_DEVICES")
    amd = _amd_count(base)
    return _visible(
        amd, environ, "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
    )


def _nvidia_count(base: Path) -> int:
    """Count device files; where the driver has not made them yet, what it says in /proc."""
    devices = [name for name in _names(base / "dev") if _NVIDIA_DEVICE.fullmatch(name)]
    return len(devices) or len(_names(base / "proc/driver/nvidia/gpus"))


def _amd_count(base: Path) -> int:
    """Count the nodes of the KFD topology that are GPUs and whose device file is here."""
    if not (base / "dev/kfd").exists():
        return 0
    topology = base / "sys/class/kfd/kfd/topology/nodes"
    count = 0
    for node in _names(topology):
        properties = dict(_pairs(topology / node / "properties"))
        minor = properties.get("drm_render_minor", "0")
        if properties.get("simd_count", "0") != "0":
            count += (base / f"dev/dri/renderD{minor}").exists()
    return count


def _visible(devices: int, environ: Mapping[str, str], *variables: str) -> int:
    """Apply the drivers' rule: a list of devices, ended by the first entry that names none."""
    for variable in variables:
        if variable not in environ:
            continue
        listed = 0
        for entry in environ[variable].split(","):
            name = entry.strip()
            if not name or name.startswith("-") or (name.isdigit() and int(name) >= devices):
                break
            listed += 1
        # Parts of a GPU (MIG) are listed by name and may be more than there are GPUs.
        devices = listed if "MIG" in environ[variable] else min(devices, listed)
    return devices


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return []
    return [(words[0], words[1]) for words in map(str.split, lines) if len(words) == 2]
