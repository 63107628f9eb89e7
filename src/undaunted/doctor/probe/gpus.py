"""NVIDIA GPUs: devices, driver, fabric manager."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.process import script_command
from undaunted.doctor.facts import Gpus
from undaunted.doctor.probe.kernel import ROOT, read_text
from undaunted.health.check import GPU_DEADLINE_S, has_gpus

if TYPE_CHECKING:
    from undaunted.doctor.probe.child import Children

_PROGRAM = Path(__file__).with_name("driver_program.py")
_KERNEL_VERSION = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")
_MANAGER = "nv-fabricmanage"  # the kernel keeps 15 characters of a name


class _Answer(msgspec.Struct):
    version: str = ""
    count: int | None = None
    states: str = ""
    problem: str = ""


def of_gpus(
    children: Children, root: Path = ROOT, deadline_s: float = GPU_DEADLINE_S
) -> tuple[Gpus, str]:
    """Return what there is, and the version of the driver's library, "" = unknown."""
    if not has_gpus(str(root)):
        return Gpus(), ""
    said = children.ask(script_command(_PROGRAM), deadline_s)
    answer = parse_answer(said.output, said.problem)
    switches = (root / "proc/driver/nvidia-nvswitch/devices").is_dir()
    gpus = Gpus(
        present=True,
        count=answer.count,
        kernel_driver=kernel_driver(read_text(root / "proc/driver/nvidia/version") or ""),
        problem=answer.problem,
        nvswitch=switches,
        fabric_manager=manager_runs(root) if switches else None,
        states=answer.states,
    )
    return gpus, answer.version


def parse_answer(output: bytes, problem: str) -> _Answer:
    """Return what the program has said; ``problem`` if that is nothing."""
    try:
        return msgspec.json.decode(output, type=_Answer)
    except (msgspec.DecodeError, ValueError):
        return _Answer(problem=problem or "what it says cannot be read")


def kernel_driver(text: str) -> str:
    """Return the version in ``/proc/driver/nvidia/version``, "" = none."""
    found = _KERNEL_VERSION.search(text + " ")
    return found[1] if found is not None else ""


def manager_runs(root: Path) -> bool | None:
    """Whether a process has the name of the fabric manager; None = processes cannot be listed."""
    try:
        pids = [name for name in os.listdir(root / "proc") if name.isdecimal()]
    except OSError:
        return None
    return any(read_text(root / "proc" / pid / "comm") == _MANAGER for pid in pids)
