"""Health checks of NVRx, as callables that return whether all is well.

They are the checks that `undaunted run` makes before each round. What cannot be checked, for want
of a driver or of gRPC, is healthy, and said once.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nvidia_resiliency_ext.testing_utils.health_check_injector import fails_now
from undaunted.base.deadline import in_time
from undaunted.health.check import Check, Settings, has_gpus, nics
from undaunted.health.checks import mounts, storage
from undaunted.health.checks.endpoint import Endpoint
from undaunted.health.checks.gpu import Gpus
from undaunted.health.checks.nic_counters import NicCounters
from undaunted.health.checks.nic_link import NicLink
from undaunted.health.checks.nvlink import NvLinks
from undaunted.inprocess.health_check import nearest_nics, visible_device

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    OnFailure = Callable[[], Awaitable[None]]

_logger = logging.getLogger(__name__)
_said: set[str] = set()
_MOST_SAID = 1000
_P = ParamSpec("_P")
_T = TypeVar("_T")
_nvml = threading.RLock()
_ASKED = ("--no-slurm", "--group", "prolog", "epilog", "logs", "gpu")


def with_pynvml_lock(func: Callable[_P, _T]) -> Callable[_P, _T]:
    """Have a function that opens and closes pynvml run in one thread at a time, as a decorator.

    The checks here need no lock: they ask the driver by another library handle.
    """

    @functools.wraps(func)
    def locked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _nvml:
            return func(*args, **kwargs)

    return locked


class _Checks:
    """Some checks of undaunted as one callable."""

    def __init__(self, interval: float = 60, on_failure: OnFailure | None = None) -> None:
        self.interval = interval
        self.on_failure = on_failure
        self._checks: list[Check] = []
        self._seen: dict[Check, dict[str, Any]] = {}

    def __call__(self) -> bool:
        """Check; return whether nothing is wrong."""
        results = [self._is_well(check) for check in self._checks]
        return all(results)

    async def async_check(self) -> None:
        """Check every ``interval`` seconds, for ever; await ``on_failure`` when one fails."""
        while True:
            await asyncio.sleep(self.interval)
            if not await asyncio.to_thread(self) and self.on_failure is not None:
                await self.on_failure()

    def _is_well(self, check: Check) -> bool:
        seen = self._seen.setdefault(check, {})
        what = f"the {check.name} check" + (f" of {check.subject}" if check.subject else "")
        try:
            found = in_time(check.deadline_s, lambda: check.run(seen))
        except TimeoutError:
            _logger.warning("%s did not answer within %g s", what, check.deadline_s)
            return not check.must_answer
        except Exception as error:  # noqa: BLE001 - it has found out nothing
            _say_once(f"{what} could not be made: {type(error).__name__}: {error}")
            return True
        if found is None:
            return True
        if found.failed:
            _logger.warning("%s failed: %s", what, found.text)
            return False
        _say_once(f"{what} could not tell: {found.text}")
        return True


def _say_once(text: str) -> None:
    if text not in _said and len(_said) < _MOST_SAID:
        _said.add(text)
        _logger.warning("%s", text)


class GPUHealthCheck(_Checks):
    """The driver answers for the GPUs, and does not ask for their recovery."""

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = 60,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Check the GPU with this number among those the process may use; None = all of them."""
        super().__init__(interval, on_failure)
        self.device_index = device_index
        self._checks = [Gpus(_visible(device_index))] if has_gpus("/") else []

    def __call__(self) -> bool:
        """See `_Checks`; fails where NVRX_INJECT_GPU_FAILURE wants it."""
        return not fails_now() and super().__call__()


class NVLHealthCheck(_Checks):
    """NVLinks that were active still are."""

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = 60,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Check the links of this GPU; None = of all of them."""
        super().__init__(interval, on_failure)
        self.device_index = device_index
        self._checks = [NvLinks(number) for number in _numbers(device_index)]


class NVLinkWindowHealthCheck(_Checks):
    """NVLinks are not lost again and again: of the last looks few have found one lost."""

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = 60,
        on_failure: OnFailure | None = None,
        window_count: int = 30,
        threshold: int = 15,
        gpu_ports_threshold: int = 1,
    ) -> None:
        """Check links.

        Args:
            device_index: see `NVLHealthCheck`.
            interval: seconds between looks of `async_check`.
            on_failure: awaited there.
            window_count: so many looks count.
            threshold: if so many of them have found a GPU with a lost link, that GPU is bad.
            gpu_ports_threshold: so many bad GPUs are a failure.
        """
        super().__init__(interval, on_failure)
        self.device_index = device_index
        self.threshold, self.gpu_ports_threshold = threshold, gpu_ports_threshold
        self._checks = [NvLinks(number) for number in _numbers(device_index)]
        self._looks: list[deque[bool]] = [deque(maxlen=window_count) for _ in self._checks]

    def __call__(self) -> bool:
        """Look once more; return whether few looks have found something."""
        for check, looks in zip(self._checks, self._looks, strict=True):
            looks.append(not self._is_well(check))
        bad = sum(sum(looks) >= self.threshold for looks in self._looks)
        return bad < self.gpu_ports_threshold


class NicHealthCheck(_Checks):
    """The network cards nearest to the GPU have not lost their links since this was made."""

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = 60,
        pci_topo_file: str | None = None,
        link_down_path_template: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Check counters.

        Args:
            device_index: the GPU; None = all cards, or those that the file says are beside GPUs.
            interval: seconds between looks of `async_check`.
            pci_topo_file: XML file of the PCI tree.
            link_down_path_template: file with a counter, ``{dev_name}`` being the card.
            on_failure: awaited when one has risen.
        """
        super().__init__(interval, on_failure)
        self._settings = Settings(
            nic_monitor=True,
            pci_topology=pci_topo_file or "",
            link_down_path=link_down_path_template or "",
        )
        self.set_nic_device(device_index)

    def set_nic_device(self, local_rank: int | None) -> None:
        """Check the cards nearest to this GPU from now on."""
        self.device_index = local_rank
        numbers = [] if local_rank is None else _numbers(local_rank)
        cards = [card for number in numbers for card in nearest_nics(number, "/")]
        self._checks = [NicCounters(self._settings, cards)] if nics("/") else []
        self()  # keeps the present values


class NicLinkStateHealthCheck(_Checks):
    """Links of network cards that were active when this was made still are."""

    def __init__(
        self,
        device_index: int | None = None,
        interval: float = 60,
        link_state_path_template: str | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        """Check all links; ``link_state_path_template``: file of one, ``{nic}`` being the card."""
        super().__init__(interval, on_failure)
        self.device_index = device_index
        settings = Settings(link_state_path=link_state_path_template or "")
        self._checks = [NicLink(settings)] if nics("/") else []
        self()


class NodeHealthCheck(_Checks):
    """The answer of an external service (``nvhcd``) about the node."""

    def __init__(
        self,
        socket_path: str | None = None,
        args: Sequence[str] | None = None,
        request_timeout_sec: float = 60,
        interval: float = 60,
        on_failure: OnFailure | None = None,
        endpoint: str | None = None,
    ) -> None:
        """Ask a service.

        Args:
            socket_path: its Unix socket; ``unix://`` may stand before it.
            args: what it is asked; None = for the checks of NVRx.
            request_timeout_sec: longest wait for its answer, in seconds.
            interval: seconds between looks of `async_check`.
            on_failure: awaited when it says that the node is not healthy.
            endpoint: another name for ``socket_path``.
        """
        super().__init__(interval, on_failure)
        self.args = tuple(_ASKED if args is None else args)
        self.request_timeout_sec = request_timeout_sec
        path = (socket_path or endpoint or "").removeprefix("unix://").removeprefix("unix:")
        asked = Endpoint(path, arguments=self.args, timeout_s=request_timeout_sec)
        self._checks = [asked] if path else []


class DistributedStorageHealthCheck(_Checks):
    """Lustre and NFS mounts answer, and Lustre says that it is healthy."""

    def __call__(self) -> bool:
        """See `_Checks`: of the mounts that there are now."""
        self._checks = mounts.checks(Settings(mounts=True))
        return super().__call__()


class StoragePathHealthCheck(_Checks):
    """Files and directories are there and can be read."""

    def __init__(
        self, paths: Iterable[str] | None = None, interval: float = 60,
        on_failure: OnFailure | None = None,
    ) -> None:  # fmt: skip
        """Check these paths; one that is not absolute is not healthy."""
        super().__init__(interval, on_failure)
        self.paths = [path for path in paths or () if path]
        self._checks = storage.checks(Settings(storage_paths=tuple(self.paths)))

    def __call__(self) -> bool:
        """See `_Checks`."""
        relative = [path for path in self.paths if not os.path.isabs(path)]  # noqa: PTH117
        for path in relative:
            _logger.warning("the storage check of %s failed: it is no absolute path", path)
        return super().__call__() and not relative


def _visible(device_index: int | None) -> str | None:
    if device_index is None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible_device(device_index, os.environ) or ""


def _numbers(device_index: int | None) -> list[int]:
    """Numbers of GPUs for the driver; those that have no number are left out."""
    if not has_gpus("/"):
        return []
    if device_index is None:
        names = [name[6:] for name in os.listdir("/dev") if name.startswith("nvidia")]
        return sorted(int(name) for name in names if name.isdecimal())
    device = visible_device(device_index, os.environ) or ""
    return [int(device)] if device.isdecimal() else []
