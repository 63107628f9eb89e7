"""The place at which a rank computes: a GPU, or a place of a machine."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from undaunted.base.ids import node_of_rank
from undaunted.base.machine import boot_id

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Slot:
    """The place at which a rank computes.

    Attributes:
        node: name of the machine.
        device: of the device there, for people, such as ``cuda:3``.
        identity: the same for the same hardware, and for no other, whatever it is called.
    """

    node: str
    device: str
    identity: str


def this_slot(environ: Mapping[str, str] | None = None) -> Slot:
    """Return where this process computes.

    Args:
        environ: ``LOCAL_RANK`` is the slot of a process that has no device.
    """
    environ = os.environ if environ is None else environ
    node = node_of_rank(environ)
    place = environ.get("LOCAL_RANK") or environ.get("SLURM_LOCALID") or "0"
    found = _device()
    if found is None:
        return Slot(node, f"cpu:{place}", f"{_boot_id()} {node} {place}")
    device, uuid = found
    return Slot(node, device, uuid or f"{_boot_id()} {node} {device} {place}")


def _device() -> tuple[str, str] | None:
    """Return the current device and its UUID, "" if it has none; None = the CPU."""
    torch: Any = sys.modules.get("torch")
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return None
    kind = accelerator.current_accelerator().type
    module = getattr(torch, kind, None)
    if not getattr(module, "is_initialized", lambda: True)():
        return None
    index = accelerator.current_device_index()
    properties = getattr(module, "get_device_properties", lambda _index: None)(index)
    return f"{kind}:{index}", str(getattr(properties, "uuid", "") or "")


def _boot_id() -> str:
    try:
        return boot_id()
    except OSError:
        return ""
