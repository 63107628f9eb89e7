"""The memory of a node's devices, and whether it keeps a restart waiting. Pure functions.

A provider is a program of its own, so that a driver that hangs can hang nobody but it. For every
line it reads it writes one line: a JSON object, either ``{"devices": [DeviceUse, ...]}`` or
``{"error": "why nothing can be said"}``. It ends at the end of its input. The one for NVIDIA is
`undaunted.health.nvml`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

MIB = 1024 * 1024
_DEVICE_FILE = re.compile(r"nvidia\d+")
_ROOT = Path("/")


class DeviceUse(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    Attributes:
        index: as the driver counts.
        uuid: name of the device in ``CUDA_VISIBLE_DEVICES``, "" if unknown.
        used: bytes that processes use, None if the driver does not tell.
        processes: bytes by pid as a decimal number, None where the driver does not tell.
        throttled: why its clocks are lower than they should be.
        problem: why the device could not be asked, "" if it was.
    """

    index: int
    uuid: str = ""
    used: int | None = None
    processes: dict[str, int | None] = {}
    throttled: list[str] = []
    problem: str = ""

    def pids(self) -> set[int]:
        """Processes the driver lists for this device."""
        return {int(pid) for pid in self.processes if pid.isdecimal()}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a provider."""

    devices: list[DeviceUse] = []
    error: str = ""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for which a device is not free: it lists ended processes, or too much is in use.

    Attributes:
        index: of the device.
        pids: processes of the stopped round that are still listed.
        used: bytes in use beyond what other processes hold, None if not known.
    """

    index: int
    pids: tuple[int, ...] = ()
    used: int | None = None


def present(root: Path = _ROOT) -> bool:
    """Return whether this node has an NVIDIA device a process could use."""
    try:
        return any(_DEVICE_FILE.fullmatch(path.name) for path in (root / "dev").iterdir())
    except OSError:
        return False


def decode(line: bytes) -> Answer:
    """Return the answer in a provider's line.

    Raises:
        ValueError: there is none.
    """
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ValueError(f"no answer of a device provider: {error}") from None


def visible(devices: Sequence[DeviceUse], environ: Mapping[str, str]) -> list[DeviceUse]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    Parts of a device (MIG) are named in a way that does not tell the device: then all are returned,
    but how much memory is in use is unknown, since others may use the rest.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return list(devices)
    if "MIG-" in listed:
        return [msgspec.structs.replace(device, used=None) for device in devices]
    found: list[DeviceUse] = []
    for entry in listed.split(","):
        device = _named(devices, entry.strip())
        if device is None:
            break  # as the driver does: the first entry that names none ends the list
        found.append(device)
    return found


def held(
    devices: Sequence[DeviceUse],
    ended: AbstractSet[int],
    *,
    tolerance: int,
    ranks: int,
    is_alive: Callable[[int], bool],
) -> list[Held]:
    """Return the devices that are not free for the next round; none means go on.

    Args:
        devices: see `visible`.
        ended: processes of the round that was stopped.
        tolerance: bytes that may stay in use on a device.
        ranks: local ranks; only the first so many devices are looked at for memory in use.
        is_alive: whether a process exists here. What others hold that do is not waited for; what
            the driver lists for processes nobody can see may well be of our own, which are ending.
    """
    found = []
    for position, device in enumerate(devices):
        listed = device.pids() & ended
        used = None
        if device.used is not None and position < ranks:
            others = (pid for pid in device.pids() - ended if is_alive(pid))
            used = max(0, device.used - sum(device.processes[str(pid)] or 0 for pid in others))
        if listed or (used is not None and used > tolerance):
            found.append(Held(index=device.index, pids=tuple(sorted(listed)), used=used))
    return found


def describe(devices: Iterable[Held], name_of: Callable[[int], str]) -> str:
    """Return ``GPU 0: 2048 MiB in use, pid 77 (python) listed; GPU 1: ...``."""
    return "; ".join(_describe(device, name_of) for device in devices)


def _describe(device: Held, name_of: Callable[[int], str]) -> str:
    parts = []
    if device.used is not None:
        parts.append(f"{device.used // MIB} MiB in use")
    if device.pids:
        pids = ", ".join(f"{pid} ({name_of(pid) or 'ended'})" for pid in device.pids)
        parts.append(f"pid {pids} listed")
    return f"GPU {device.index}: {', '.join(parts)}"


def _named(devices: Sequence[DeviceUse], entry: str) -> DeviceUse | None:
    if entry.isdecimal():
        return next((device for device in devices if device.index == int(entry)), None)
    if not entry.startswith("GPU-"):
        return None
    found = [device for device in devices if device.uuid.startswith(entry)]
    return found[0] if len(found) == 1 else None
