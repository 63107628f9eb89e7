"""Checks whether a rank can go on after a fault. Hardware that is absent is healthy."""

from __future__ import annotations

import abc
import logging
import os
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.health.check import INFINIBAND, Check, Finding, Settings, has_gpus, nics
from undaunted.health.checks.gpu import Gpus
from undaunted.health.checks.nic_counters import NicCounters
from undaunted.health.checks.nvlink import NvLinks
from undaunted.inprocess.exception import HealthCheckError, RestartError
from undaunted.inprocess.exception import TimeoutError as TookTooLong
from undaunted.inprocess.threads import call_within, cuda

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.inprocess.state import FrozenState

_logger = logging.getLogger("undaunted")


class FaultCounterExceeded(RestartError):  # noqa: N818 - the name users know
    """The function has raised too often in this rank."""


class HealthCheck(abc.ABC):
    """Raises if the rank cannot go on. After a fault an error ends the rank."""

    @abc.abstractmethod
    def __call__(self, state: FrozenState) -> FrozenState:
        """Check, and return ``state``."""
        raise NotImplementedError


class CudaHealthCheck(HealthCheck):
    """The CUDA device of the process finishes its work. Does nothing where CUDA is not in use."""

    def __init__(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Wait for the device for ``timeout`` (30 s)."""
        self.timeout = timeout

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `HealthCheck`.

        Raises:
            TimeoutError: the device hangs.
            RuntimeError: CUDA has failed in this process, which cannot be repaired.
        """
        device_api = cuda()
        if device_api is not None:
            call_within(self.timeout, device_api.synchronize, "CudaHealthCheck")
            device_api.synchronize()  # does not wait; errors of the context show up here
        return state


class FaultCounter(HealthCheck):
    """Ends a rank in which the function has raised too often."""

    def __init__(self, max_rank_faults: int | None = None) -> None:
        """Set the limit.

        Args:
            max_rank_faults: how often the function may raise in this rank; None = without limit.
        """
        self.max_rank_faults = max_rank_faults
        self.faults_count = 0

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `HealthCheck`.

        Raises:
            FaultCounterExceeded: there were more faults.
        """
        if state.fn_exception is None:
            return state
        self.faults_count += 1
        if self.max_rank_faults is not None and self.faults_count > self.max_rank_faults:
            raise FaultCounterExceeded(
                f"rank {state.rank} has raised {self.faults_count} times, of "
                f"max_rank_faults={self.max_rank_faults}; the last was {state.fn_exception!r}"
            )
        return state


class _DeviceCheck(HealthCheck):
    """A check of hardware, by the checks of `undaunted.health`."""

    def __init__(
        self, device_index: int | None = None, *, root: str = "/", library: Any = None
    ) -> None:
        """Check hardware of this rank.

        Args:
            device_index: its GPU, among those the process may use; None = all of them.
            root: directory of ``/dev``, ``/proc`` and ``/sys``.
            library: in place of the driver's library, for tests.
        """
        self.device_index = device_index
        self._root = root
        self._library = library
        self._seen: dict[str, Any] = {}
        self._check = self._make()

    @abc.abstractmethod
    def _make(self) -> Check | None:
        """Return the check, None if there is nothing to check."""

    def _device(self) -> str | None:
        """Return the GPUs to look at as in ``CUDA_VISIBLE_DEVICES``, None = all."""
        if self.device_index is None:
            return os.environ.get("CUDA_VISIBLE_DEVICES")
        device = visible_device(self.device_index, os.environ)
        return "" if device is None else device

    def _number(self) -> int | None:
        """Return the driver's number of the GPU; None = unknown, or it is not one GPU."""
        device = self._device()
        return int(device) if device and device.isdecimal() else None

    def _find(self) -> Finding | None:
        """Return the finding of a failed check; None = the check has passed, or cannot tell."""
        check = self._check
        if check is None:
            return None
        limit = timedelta(seconds=check.deadline_s)
        try:
            found: Finding | None = call_within(limit, lambda: check.run(self._seen), check.name)
        except TookTooLong as error:
            return Finding(str(error))
        return found if found is not None and found.failed else None

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `HealthCheck`.

        Raises:
            HealthCheckError: the hardware has failed the check.
        """
        if (found := self._find()) is not None:
            raise HealthCheckError(f"rank {state.rank}: {found.text}")
        return state


class ChainedGPUHealthCheck(_DeviceCheck):
    """The driver answers for the GPU, and does not ask for its recovery."""

    def _make(self) -> Check | None:
        return Gpus(self._device(), self._library) if has_gpus(self._root) else None


class ChainedNVLHealthCheck(_DeviceCheck):
    """NVLinks of the GPU that were active still are. A lost one is only logged."""

    def _make(self) -> Check | None:
        number = self._number()
        if number is None or not has_gpus(self._root):
            return None
        return NvLinks(number, self._library)

    def __call__(self, state: FrozenState) -> FrozenState:
        """See `HealthCheck`."""
        if (found := self._find()) is not None:
            _logger.warning("rank %s: NVLink of its GPU: %s", state.rank, found.text)
        return state


class ChainedNicHealthCheck(_DeviceCheck):
    """The network cards nearest to the GPU have not lost their links since this was made."""

    def _make(self) -> Check | None:
        number = self._number()
        cards = nearest_nics(number, self._root) if number is not None else []
        check = NicCounters(Settings(root=self._root), cards)
        if not check.periodic:  # there are no such cards
            return None
        check.run(self._seen)  # keeps the present values of the counters
        return check


_GPUS = "proc/driver/nvidia/gpus"  # a directory for each, named by its PCI address


def visible_device(index: int, environ: Mapping[str, str]) -> str | None:
    """Return the name of the rank's GPU, as in ``CUDA_VISIBLE_DEVICES``; None = it has none.

    Args:
        index: among the GPUs the process may use; if there is only one, it is that one.
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
        gpu: number of the GPU for the driver.
        root: directory of ``/proc`` and ``/sys``.

    Returns:
        All devices if the place of the GPU is unknown, or they are all equally far.
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
