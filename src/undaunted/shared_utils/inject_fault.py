"""Faults in some ranks of a job, picked by a seed: all ranks call `inject_fault` alike.

`undaunted.faults` has more kinds, and plans by iteration; this interface is that of NVRx.
"""

from __future__ import annotations

import enum
import os
import random
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from undaunted.base.threads import async_raise
from undaunted.faults.injectors import inject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    Callback = Callable[[], Any] | None
    Handler = Callable[[float, Callback], Any]

# Next to those of the triggers of plans, and of in-process restart.
_SIGNAL = signal.SIGRTMIN + 10
_GPU_SLEEP_CYCLES = 1 << 62


class InjectedException(Exception):  # noqa: N818 - the name users know
    """The exception of the faults that raise one."""


class Fault(enum.Enum):
    """The kind of a fault."""

    GPU_ERROR = enum.auto()  # an illegal access on the CUDA device
    GPU_SLEEP = enum.auto()  # the CUDA device is busy for ever
    WORKLOAD_EXC = enum.auto()  # the next `maybe_raise_workload_exception` raises
    ASYNC_EXC = enum.auto()  # the main thread raises, once it runs Python code
    SIGNAL_EXC = enum.auto()  # the main thread raises, whatever it waits for
    OS_ABORT = enum.auto()
    LOCK_GIL = enum.auto()  # no Python code runs any more
    SEGFAULT = enum.auto()
    SIGINT = enum.auto()
    SIGKILL = enum.auto()
    SIGTERM = enum.auto()
    SIGSTOP = enum.auto()


_registered: dict[Fault | str, Handler] = {}
_workload_exception = threading.Event()


def inject_fault(
    faults: Sequence[Fault | str],
    num_faults: int | tuple[int, int],
    keep_alive: int,
    delay: float | tuple[float, float],
    seed: int,
    callback: Callback = None,
) -> None:
    """Make faults in some ranks of the job; in this one, if it is among them.

    Args:
        faults: kinds to pick from.
        num_faults: how many ranks have one, or the least and the most; never more than there are.
        keep_alive: ranks below this number have none.
        delay: seconds from now, or the least and the most.
        seed: picks; the same in all ranks.
        callback: called right before the fault, in its thread.

    Raises:
        ValueError: there is nothing to pick from.
    """
    if not faults:
        raise ValueError("faults is empty: name at least one kind")
    place = _place()
    if place is None:
        return
    rank, world_size = place
    picker = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
    low, high = num_faults if isinstance(num_faults, tuple) else (num_faults, num_faults)
    count = min(picker.randint(low, high), max(0, world_size - keep_alive))
    for chosen in picker.sample(range(min(keep_alive, world_size), world_size), count):
        fault = picker.choice(list(faults))
        soonest, latest = delay if isinstance(delay, tuple) else (delay, delay)
        seconds = picker.uniform(soonest, latest)
        if chosen == rank:
            dispatch_fault_injection(fault, seconds, callback)


def register_fault(fault_name_or_enum: Fault | str, handler: Handler) -> None:
    """Have ``handler(delay, callback)`` make a fault: a new one, or in place of ours."""
    _registered[fault_name_or_enum] = handler


def dispatch_fault_injection(fault: Fault | str, delay: float, callback: Callback = None) -> None:
    """Make a fault in this rank, ``delay`` seconds from now.

    Raises:
        ValueError: there is no such fault.
    """
    if fault in _registered:
        _registered[fault](delay, callback)
        return
    if not isinstance(fault, Fault):
        known = ", ".join([kind.name for kind in Fault] + [str(name) for name in _registered])
        raise ValueError(f"{fault!r} is not a fault; known: {known}")  # noqa: TRY004 - as documented
    if fault is Fault.SIGNAL_EXC:
        signal.signal(_SIGNAL, _raise_in_main)  # has to be done in the main thread, which calls us
    threading.Thread(
        target=make_fault, args=(fault, delay, callback), name=f"inject-{fault}", daemon=True
    ).start()


def make_fault(fault: Fault, delay: float = 0.0, callback: Callback = None) -> None:
    """Make a fault of ours in this process, from this thread.

    Args:
        fault: its kind.
        delay: seconds from now.
        callback: called right before.
    """
    time.sleep(delay)
    if callback is not None:
        callback()
    _MAKERS[fault]()


def maybe_raise_workload_exception() -> None:
    """Raise if ``WORKLOAD_EXC`` has happened; to be called in the training loop.

    Raises:
        InjectedException: it has.
    """
    if _workload_exception.is_set():
        raise InjectedException("injected fault: WORKLOAD_EXC")


def clear_workload_exception() -> None:
    """Forget ``WORKLOAD_EXC``, at the beginning of the next iteration."""
    _workload_exception.clear()


def _place() -> tuple[int, int] | None:
    """Return rank and world size, None for a rank that is inactive."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available():
        distributed = torch.distributed
        if distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return None if rank == "None" else (int(rank), int(world_size))


def _raise_in_main(_number: int, _frame: FrameType | None) -> None:
    raise InjectedException("injected fault: SIGNAL_EXC")


def _main_thread() -> int:
    return threading.main_thread().ident or 0


def _raise_asynchronously() -> None:
    class InjectedAsynchronously(InjectedException):
        """Without arguments, which asynchronous exceptions do not have."""

        def __str__(self) -> str:
            return "injected fault: ASYNC_EXC"

    async_raise(_main_thread(), InjectedAsynchronously)


def _fail_on_gpu() -> None:
    import torch

    index = torch.tensor([1 << 40], device="cuda")
    torch.zeros(1, device="cuda")[index] = 1
    torch.cuda.synchronize()


def _busy_gpu() -> None:
    import torch

    torch.cuda._sleep(_GPU_SLEEP_CYCLES)  # noqa: SLF001 - there is no other way


_MAKERS: dict[Fault, Callable[[], object]] = {
    Fault.GPU_ERROR: _fail_on_gpu,
    Fault.GPU_SLEEP: _busy_gpu,
    Fault.WORKLOAD_EXC: _workload_exception.set,
    Fault.ASYNC_EXC: _raise_asynchronously,
    Fault.SIGNAL_EXC: lambda: signal.pthread_kill(_main_thread(), _SIGNAL),
    Fault.OS_ABORT: lambda: inject("abort"),
    Fault.LOCK_GIL: lambda: inject("gil"),
    Fault.SEGFAULT: lambda: inject("segfault"),
    Fault.SIGINT: lambda: os.kill(os.getpid(), signal.SIGINT),
    Fault.SIGKILL: lambda: inject("sigkill"),
    Fault.SIGTERM: lambda: inject("sigterm"),
    Fault.SIGSTOP: lambda: inject("sigstop"),
}
