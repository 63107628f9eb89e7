"""One rank of a job: wraps the function of a scenario. ``rank_program.py SCENARIO SETTINGS``."""

from __future__ import annotations

import contextlib
import cProfile
import ctypes
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted import inprocess

if TYPE_CHECKING:
    from undaunted.inprocess import CallWrapper

LONG_S = 80.0
late: list[int] = []  # pids


def tell(**what: Any) -> None:
    """One write: what is interrupted in between would be half a line."""
    os.write(1, (json.dumps(what) + "\n").encode())


def rank() -> int:
    return int(os.environ["RANK"])


def world() -> int:
    return int(os.environ["WORLD_SIZE"])


def is_gone(pid: int) -> bool:
    from undaunted.base import process

    return process.state(pid) in ("", "Z")


def everyone_is_here(call: CallWrapper, mark: str = "here") -> None:
    """Blocks until all ranks of the iteration have come."""
    if call.store.add(mark, 1) == world():
        call.store.set(f"{mark}/all", "")
    call.store.wait([f"{mark}/all"])


def take_turns(call: CallWrapper, times: int) -> dict[str, int]:
    """One rank after the other raises, while the others sleep."""
    tell(iteration=call.iteration, rank=rank(), world=world(), at=time.monotonic())
    if call.iteration < times:
        if rank() == call.iteration % world():
            raise RuntimeError(f"fault {call.iteration}")
        time.sleep(LONG_S)
    return {"iteration": call.iteration, "rank": rank(), "world": world()}


def take_turns_watched(call: CallWrapper, times: int, by: str) -> dict[str, int]:
    """The same under a profiler, or a tracer such as a debugger or coverage."""
    WATCHERS[by]()
    return take_turns(call, times)


def one_fails(call: CallWrapper, who: int, how: str) -> dict[str, int]:
    """One process fails in the first iteration, when all are there."""
    if call.iteration == 0:
        everyone_is_here(call)
        if call.state.initial_rank == who:
            FAULTS[how]()
        time.sleep(LONG_S)
    everyone_is_here(call)
    return {"iteration": call.iteration, "rank": rank(), "world": world()}


def one_is_late(call: CallWrapper) -> list[bool]:
    """One holds the GIL where nothing limits that, while another one raises.

    Returns whether that process has ended when the function is called again.
    """
    if call.iteration == 0:
        call.store.set(f"pid {rank()}", str(os.getpid()))
        everyone_is_here(call)
        late.append(int(call.store.get("pid 1")))
        everyone_is_here(call, "all of it is known")
        if rank() == 0:
            raise RuntimeError("a fault elsewhere")
        if rank() == 1:
            with call.disable_hang_protection():
                lock_the_gil()
        time.sleep(LONG_S)
    return [is_gone(pid) for pid in late]


def one_is_cut_off(call: CallWrapper) -> None:
    """One holds the GIL, while the guard that has the controller does not run."""
    everyone_is_here(call)
    if rank() == 0:
        stop_guard()
    lock_the_gil()


def all_fail(call: CallWrapper) -> int:
    if call.iteration == 0:
        everyone_is_here(call)
        raise RuntimeError("all at once")
    return call.iteration


def one_is_in_atomic(call: CallWrapper) -> int:
    if call.iteration == 0:
        everyone_is_here(call)
        if rank() == 0:
            call.store.wait(["saving 1", "saving 2"])
            raise RuntimeError("a fault elsewhere")
        with call.atomic():
            call.store.set(f"saving {rank()}", "")
            threading.Event().wait(0.3)
            tell(saved=rank())
        time.sleep(LONG_S)
    return call.iteration


def collectives(call: CallWrapper, times: int) -> int:
    """One rank after the other raises, while the others wait for it in a collective of gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=call.store, rank=rank(), world_size=world())
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == world()
    if call.iteration < times:
        if rank() == call.iteration % world():
            raise RuntimeError("a fault")
        dist.all_reduce(ones)
        raise AssertionError("without one of us")
    dist.destroy_process_group()
    return call.iteration


def one_is_waited_for(call: CallWrapper, who: int, how: str) -> int:
    """One rank hangs, while the others wait for it in a collective of gloo."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", store=call.store, rank=rank(), world_size=world())
    dist.all_reduce(torch.ones(1))
    call.ping()
    if call.iteration == 0 and call.state.initial_rank == who:
        FAULTS[how]()
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    return call.iteration


def a_group_at_the_masters_port(call: CallWrapper) -> int:
    """As scripts do that know of no store: rank 0 listens at MASTER_PORT."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method="env://")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == world()
    dist.destroy_process_group()
    return call.iteration


def some_do_not_come(call: CallWrapper) -> int:
    """One rank fails while the others wait for it in init_process_group."""
    import torch.distributed as dist

    if call.iteration == 0 and rank() == 1:
        everyone_is_here(call)
        raise RuntimeError("before the group is made")
    if call.iteration == 0:
        everyone_is_here(call)
    dist.init_process_group("gloo", store=call.store, rank=rank(), world_size=world())
    dist.barrier()
    dist.destroy_process_group()
    return call.iteration


def they_do_not_find_each_other(call: CallWrapper) -> int:
    """All ranks wait in init_process_group, under names that do not fit."""
    import torch.distributed as dist

    name = "group" if call.iteration else f"group {rank()}"
    store = dist.PrefixStore(name, call.store)
    dist.init_process_group("gloo", store=store, rank=rank(), world_size=world())
    dist.barrier()
    dist.destroy_process_group()
    return call.iteration


def lock_the_gil() -> None:
    re.match(r"(a?){40}b", "a" * 40)
    re.match(r"(a+)+b", "a" * 60)


def sleep() -> None:
    time.sleep(LONG_S)


def sleep_in_c() -> None:
    ctypes.CDLL(None).sleep(int(LONG_S))


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def be_alone() -> None:
    """Without a guard, and deaf."""
    signal_guard(signal.SIGKILL)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(LONG_S)


def stop_guard() -> None:
    """It does not run, and does not end."""
    signal_guard(signal.SIGSTOP)
    time.sleep(LONG_S)


def signal_guard(number: int) -> None:
    from undaunted.inprocess.rank import guard_link

    link = guard_link.current()
    assert link is not None
    os.kill(link.guard.pid, number)


def leave() -> None:
    raise SystemExit(3)


def profile() -> None:
    with contextlib.suppress(ValueError):  # Python 3.12 and newer: it is on already
        cProfile.Profile().enable()


def trace() -> None:
    def look(*_: Any) -> Any:
        return look

    sys.settrace(look)
    threading.settrace(look)


WATCHERS = {"cProfile": profile, "settrace": trace}
FAULTS = {
    "sleep": sleep,
    "sleep in C": sleep_in_c,
    "kill": kill,
    "stop": stop,
    "stop guard": stop_guard,
    "lock": lock_the_gil,
    "leave": leave,
    "alone": be_alone,
}
SCENARIOS = {
    function.__name__: function
    for function in (
        take_turns,
        take_turns_watched,
        one_is_waited_for,
        one_fails,
        one_is_late,
        one_is_cut_off,
        all_fail,
        one_is_in_atomic,
        collectives,
        a_group_at_the_masters_port,
        some_do_not_come,
        they_do_not_find_each_other,
    )
}


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    settings = json.loads(sys.argv[2])
    times = settings.pop("calls", 1)
    active = settings.pop("active", None)
    limits = {name: timedelta(seconds=s) for name, s in settings.pop("limits", {}).items()}
    if active is not None:
        reserve = inprocess.rank_assignment.MaxActiveWorldSize(active)
        shift = inprocess.rank_assignment.ShiftRanks()
        limits["rank_assignment"] = inprocess.Compose(reserve, shift)
    wrapped = inprocess.Wrapper(max_identical_faults=None, **limits)(SCENARIOS[sys.argv[1]])
    for _ in range(times):
        tell(result=wrapped(None, **settings))


if __name__ == "__main__":
    main()
