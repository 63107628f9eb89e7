"""GPUs: each that the job may use answers, and its driver asks for no recovery.

The driver of NVIDIA (since 570) says what an administrator would have to do about a device: reset
it, restart the node. A device that wants that, or is lost, makes the node unhealthy. Where the
library of the driver is missing or refuses to begin, nothing is known, which is no fault: the job
may not want GPUs.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from undaunted.health.check import (
    GPU_DEADLINE_S,
    Check,
    Finding,
    Settings,
    has_gpus,
    join,
    skipped,
)
from undaunted.health.nvml import Nvml, NvmlError

_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_ACTIONS = {
    1: "a reset of the GPU",
    2: "a restart of the node",
    3: "its peer-to-peer traffic to be drained",
    4: "to be drained and reset",
    5: "a recovery of the IMEX domain",
    6: "a reset of the bus",
    7: "a restart of the system",
}


class _Value(ctypes.Union):
    _fields_ = (("unsigned_int", ctypes.c_uint), ("widest", ctypes.c_ulonglong))


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", _Value),
    )


class GpuState(NamedTuple):
    """One device.

    Attributes:
        number: as the driver counts.
        uuid: its name in ``CUDA_VISIBLE_DEVICES``, "" if it could not be asked.
        problem: why it could not be asked, "" if it could.
        action: what the driver wants done, 0 = nothing, None if it does not tell.
    """

    number: int
    uuid: str = ""
    problem: str = ""
    action: int | None = None


class RecoveryNvml(Nvml):
    """Asks the driver what is to be done about each device."""

    def states(self) -> list[GpuState]:
        """Return all devices.

        Raises:
            NvmlError: the driver does not even count them.
        """
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._state(index) for index in range(count.value)]

    def _state(self, index: int) -> GpuState:
        handle = ctypes.c_void_p()
        try:
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            uuid = self._uuid(handle)
        except NvmlError as error:
            return GpuState(index, problem=str(error))
        value = _FieldValue(field=_RECOVERY_ACTION)
        try:
            self._call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(value))
        except NvmlError:
            return GpuState(index, uuid)
        return GpuState(index, uuid, action=None if value.code else value.value.unsigned_int)


class Gpus(Check):
    """All GPUs that the job may use."""

    name = "GPU"
    deadline_s = GPU_DEADLINE_S
    periodic = True

    def __init__(self, visible: str | None, library: Any = None) -> None:
        """Check GPUs.

        Args:
            visible: ``CUDA_VISIBLE_DEVICES`` of the ranks, None = all.
            library: stands in for the driver's in tests.
        """
        self._visible = visible
        self._library = library
        self._nvml: RecoveryNvml | None = None  # kept: to begin takes the driver long

    def run(self, seen: dict[str, Any]) -> Finding | None:  # noqa: ARG002 - nothing to keep
        """See `Check`."""
        try:
            self._nvml = self._nvml or RecoveryNvml(self._library)
            states = self._nvml.states()
        except (OSError, NvmlError) as error:
            self._nvml = None
            return skipped(str(error))
        return judge(states, self._visible)


def judge(states: list[GpuState], visible: str | None) -> Finding | None:
    """Return what is wrong with the devices that ``CUDA_VISIBLE_DEVICES`` leaves."""
    problems: list[str] = []
    silent: list[int] = []
    for state in states:
        if not _counts(state, visible):
            continue
        if state.problem:
            problems.append(f"GPU {state.number} does not answer: {state.problem}")
        elif state.action is None:
            silent.append(state.number)
        elif state.action:
            what = _ACTIONS.get(state.action, f"recovery action {state.action}")
            problems.append(f"GPU {state.number} ({state.uuid}) needs {what}")
    silence = "the driver does not tell whether GPUs need recovery: older than 570?"
    return join(problems, [silence] if silent else [])


def _counts(state: GpuState, visible: str | None) -> bool:
    """Return whether the job may use a device; one without a name counts if it may be meant."""
    if visible is None or "MIG-" in visible:
        return True
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            if int(entry) == state.number:
                return True
        elif not entry.startswith("GPU-"):
            return False  # as the driver does: the first entry that names none ends the list
        elif state.uuid.startswith(entry) or not state.uuid:
            return True
    return False


def checks(settings: Settings) -> list[Check]:
    """Return the check if there are GPUs, unless the job is to use none."""
    wanted = settings.gpus and settings.visible_devices != ""
    return [Gpus(settings.visible_devices)] if wanted and has_gpus(settings.root) else []
