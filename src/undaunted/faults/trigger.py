"""Makes the faults of a plan happen in this rank when their time has come.

Faults by iteration ride on ``undaunted.step``. Faults by time come from one daemon thread; those
that must happen in the main thread (an exception, say) reach it by a real-time signal, which also
ends a wait the thread is in. Before a fault happens an event with its id goes into the rank's page,
so that the launcher leaves it out of later rounds even if nothing of this process survives.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from undaunted.faults import calling, injectors
from undaunted.faults.plan import LASTING, Choice, Fault, FaultPlan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

PLAN_VARIABLE = "UNDAUNTED_FAULTS"
EVENT_NAME = "fault"

# Next to the one for evidence; programs use SIGUSR1 and SIGUSR2.
_MAIN_THREAD_SIGNAL = signal.SIGRTMIN + 8
# What kills or stops the process does so from any thread.
_ANY_THREAD = ("sigkill", "sigterm", "sigstop", "segfault", "abort")
_JOIN_S = 1.0
_SLOW_STEPS = 10

Report = Callable[[str, str], object]


class Trigger:
    """The faults that are to happen in this process. `close` forgets them."""

    def __init__(self, faults: tuple[Fault, ...], report: Report, rank: int = 0) -> None:
        """Take over ``faults``.

        Args:
            faults: settled ones, see `FaultPlan.due`.
            report: called with ``fault`` and the fault's id right before it happens.
            rank: of this process, the global one.
        """
        self._report = report
        self._rank = rank
        self._pid = os.getpid()
        self._at_start = [f for f in faults if f.iteration is None and f.after is None]
        self._by_iteration = [f for f in faults if f.iteration is not None]
        self._by_time = sorted((f for f in faults if f.after is not None), key=_after)
        self._last_iteration: int | None = None
        self._pauses: list[Iterator[float]] = []
        self._for_main: list[Fault] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._old_handler: signal._HANDLER = None

    def start(self) -> None:
        """Make the faults due now happen, and set the timer for others. In the main thread only."""
        if self._by_time:
            self._old_handler = signal.signal(_MAIN_THREAD_SIGNAL, self._in_main_thread)
            self._thread = threading.Thread(
                target=self._wait_for_times, args=(time.monotonic(),), name="faults", daemon=True
            )
            self._thread.start()
        for fault in self._at_start:
            self._fire(fault)

    def on_step(self, iteration: int) -> None:
        """Make the faults happen whose iteration this step reaches or passes."""
        if os.getpid() != self._pid:
            return  # a forked child inherited the hook
        last = iteration - 1 if self._last_iteration is None else self._last_iteration
        self._last_iteration = iteration
        due = [
            f
            for f in self._by_iteration
            if _iteration(f) <= iteration and (f.kind == LASTING or last < _iteration(f))
        ]
        for fault in due:
            self._by_iteration.remove(fault)
            self._fire(fault)
        for pause in self._pauses:
            for seconds in itertools.islice(pause, 1):
                injectors.inject("slow", seconds=seconds)

    def close(self) -> None:
        """Let nothing happen any more; waits at most one second for the timer."""
        self._closed.set()
        self._by_iteration.clear()
        self._pauses.clear()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            signal.signal(_MAIN_THREAD_SIGNAL, self._old_handler or signal.SIG_DFL)
            self._thread = None

    def _wait_for_times(self, start: float) -> None:
        for fault in self._by_time:
            if self._closed.wait(max(0.0, start + _after(fault) - time.monotonic())):
                return
            if fault.kind in _ANY_THREAD:
                self._fire(fault)
            else:
                self._for_main.append(fault)
                signal.pthread_kill(_main_thread_id(), _MAIN_THREAD_SIGNAL)

    def _in_main_thread(self, _number: int, _frame: FrameType | None) -> None:
        while self._for_main:
            self._fire(self._for_main.pop(0))

    def _fire(self, fault: Fault) -> None:
        self._report(EVENT_NAME, fault.id)
        print(f"undaunted: injected fault {fault}", file=sys.stderr, flush=True)
        if fault.kind == "slow":  # it happens in this step and those to come
            pause = injectors.PAUSE_S if fault.seconds is None else fault.seconds
            self._pauses.append(itertools.repeat(pause, fault.steps or _SLOW_STEPS))
        elif fault.kind == "call":
            iteration = -1 if self._last_iteration is None else self._last_iteration
            calling.call(fault.id, rank=self._rank, iteration=iteration)
        else:
            injectors.inject(
                fault.kind,
                seconds=fault.seconds,
                code=fault.code,
                size=fault.bytes,
                how=fault.how,
            )


def install(environ: Mapping[str, str] = os.environ) -> Trigger | None:
    """Arm the faults of this rank, before the user's first line; in the main thread.

    Reads ``UNDAUNTED_FAULTS``, ``RANK``, ``WORLD_SIZE`` and ``TORCHELASTIC_RESTART_COUNT``.

    Returns:
        What was armed; None if the plan holds nothing for this rank and round.

    Raises:
        FaultPlanError: the plan cannot be read (the launcher has checked it).
        BaseException: a fault without iteration and time happens at once, here.
    """
    plan = FaultPlan.parse(environ.get(PLAN_VARIABLE, ""))
    rank = _number(environ, "RANK", 0)
    due = plan.due(
        rank=rank,
        round_=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        world_size=_number(environ, "WORLD_SIZE", 1),
        slot=_slot(environ, rank),
    )
    if not due:
        return None
    # The only arrow to a neighbour above: a process that arms faults has loaded it already.
    from undaunted.progress import writer

    trigger = Trigger(due, writer.current_writer().event, rank)
    if any(fault.iteration is not None or fault.kind == "slow" for fault in due):
        writer.on_step = trigger.on_step
    trigger.start()
    return trigger


def _number(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else otherwise


def _slot(environ: Mapping[str, str], rank: int) -> int:
    """Return the rank that is usually on this slot, where all nodes have as many slots."""
    slots = _number(environ, "LOCAL_WORLD_SIZE", 0)
    if not slots:
        return rank
    return _number(environ, "GROUP_RANK", 0) * slots + _number(environ, "LOCAL_RANK", 0)


def _iteration(fault: Fault) -> int:
    assert isinstance(fault.iteration, Choice)
    return fault.iteration.low


def _after(fault: Fault) -> float:
    assert fault.after is not None
    return fault.after


def _main_thread_id() -> int:
    identity = threading.main_thread().ident
    assert identity is not None
    return identity
