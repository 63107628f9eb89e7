"""Signals from outside, to the agent or to the front."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from undaunted.base.signals import PROGRAMS_SIGNALS, SAME_S, SPREAD_S
from undaunted.base.timers import Timers
from undaunted.fault_tolerance.agent.parts import Part

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

# How long a signal to all processes of a job takes from one of them to another. Less than `SAME_S`.
_EVERYWHERE_S = 0.5


class Outside(Part):
    """Listens to the front's socket and to signals.

    Args:
        front: the socket; its maker closes it.
        signals: signals that mean to stop.
        stop: called with such a signal.
        kill: called when the user insists: a second Ctrl-C.
        programs: called with a signal that is the program's, and whether it came to all processes.
        ends: called with a signal that ends the front.
        front_gone: called when nobody is left to return an exit code to.
    """

    def __init__(
        self,
        front: socket.socket,
        signals: Sequence[int],
        *,
        stop: Callable[[int], None],
        kill: Callable[[], None],
        programs: Callable[[int, bool], None],
        ends: Callable[[int], None],
        front_gone: Callable[[], None],
    ) -> None:
        self._front = front
        self._signals = signals
        self._on_stop = stop
        self._on_kill = kill
        self._on_programs = programs
        self._on_end = ends
        self._on_front_gone = front_gone
        self._interrupts = 0
        self._own_at: dict[int, float] = {}  # when they came to this process
        self._fronts_at: dict[int, float] = {}  # when they came to the front
        self._timers = Timers()

    def open(self) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        for number in {*self._signals, *PROGRAMS_SIGNALS}:
            loop.add_signal_handler(number, self._own_signal, number)
        self._front.setblocking(False)
        loop.add_reader(self._front.fileno(), self._front_says)

    def goes_on_s(self, number: int) -> float:
        """For how long other processes may get this signal, too; 0 = it has not just come."""
        moments = [each[number] for each in (self._own_at, self._fronts_at) if number in each]
        if not moments:
            return 0.0
        span_s = SPREAD_S if len(moments) > 1 else _EVERYWHERE_S
        return max(0.0, min(moments) + span_s - time.monotonic())

    def close(self) -> None:
        """Listen to the front no more; a signal still does not end this process."""
        self._timers.cancel()
        asyncio.get_running_loop().remove_reader(self._front.fileno())

    def _front_says(self) -> None:
        try:
            said = self._front.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self.close()  # at its end the socket is readable for ever
            self._on_front_gone()
            return
        for number in said:
            self._fronts_at[number] = time.monotonic()
            if number in self._signals:
                self._fronts_stop(number)
            elif number in PROGRAMS_SIGNALS:
                # Who signals all processes of a job has not come to this one yet, perhaps.
                here = _just_now(self._own_at, number)
                self._programs_signal_in(0.0 if here else _EVERYWHERE_S, number)
            else:
                self._on_end(number)

    def _fronts_stop(self, number: int) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1 and number == signal.SIGINT:
            self._on_kill()
        elif not _just_now(self._own_at, number, SPREAD_S):
            self._on_stop(number)

    def _programs_signal_in(self, delay_s: float, number: int) -> None:
        self._timers.set(f"{number}", delay_s, partial(self._fronts_programs, number))

    def _fronts_programs(self, number: int) -> None:
        self._on_programs(number, _just_now(self._own_at, number))

    def _own_signal(self, number: int) -> None:
        """Take a signal that came to this process, as if it had come to the front, but once."""
        same = _just_now(self._own_at, number) or _just_now(self._fronts_at, number, SPREAD_S)
        self._own_at[number] = time.monotonic()
        if number in self._signals and not same:
            self._on_stop(number)
        elif self._timers.left_s(f"{number}") is not None:
            self._programs_signal_in(0.0, number)


def _just_now(moments: Mapping[int, float], number: int, within_s: float = SAME_S) -> bool:
    return number in moments and time.monotonic() - moments[number] < within_s
