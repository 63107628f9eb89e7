"""Signals that are the program's, and signals that come twice."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Schedulers send these to all processes of a job. They mean what the program takes them for, and
# end nothing of ours: no stop of the job unless that is asked for.
PROGRAMS_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

# Processes of ours that ranks need have these blocked: whoever signals all processes of a job does
# not mean them, and the launcher ends them in another way.
NOT_FOR_OURS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *PROGRAMS_SIGNALS,
)

# So long it may take from the first to the last process of a job that all get a signal.
SPREAD_S = 2.5

# A scheduler, a wrapper and a terminal may each send a signal on, and mean the same one.
SAME_S = 1.0


class Repeats:
    """Tells a signal that is sent again from one that arrives twice."""

    def __init__(self) -> None:
        self._counted: dict[int, float] = {}

    def counts(self, number: int, now: float) -> bool:
        """Return whether this signal is another one than the last one of this number that counted.

        Args:
            number: of the signal.
            now: seconds of a clock that never goes back.
        """
        if now - self._counted.get(number, -SAME_S) < SAME_S:
            return False
        self._counted[number] = now
        return True


class HandlersOff:
    """Handlers of signals that wait: those in Python, which may raise between any two lines.

    Attributes:
        raised: what handlers have raised, in order.
    """

    def __init__(self) -> None:
        self.raised: list[BaseException] = []
        self._handlers: dict[int, Any] = {}
        self._came: dict[int, Any] = {}  # frames, by signal

    def run_handlers(self) -> None:
        """Run the handlers of signals that have come; keep what they raise."""
        came, self._came = self._came, {}
        for number, frame in came.items():
            try:
                self._handlers[number](number, frame)
            except BaseException as error:  # noqa: BLE001 - a handler may raise anything
                self.raised.append(error)

    def begin(self) -> None:
        """Put off the handlers. Outside of the main thread none runs anyway."""
        for _ in range(_TRIES):
            try:
                self._replace()
            except ValueError:  # not the main thread
                return
            except BaseException as error:  # noqa: BLE001 - raised by a handler: it has run
                self.raised.append(error)
            else:
                return

    def end(self) -> None:
        """Put the handlers back, and run those whose signals have come."""
        for number, handler in self._handlers.items():
            try:
                if signal.getsignal(number) == self._note:  # no handler has put another one there
                    signal.signal(number, handler)
            except BaseException as error:  # noqa: BLE001 - raised by a handler that is back
                self.raised.append(error)
                signal.signal(number, handler)
        self.run_handlers()

    def _note(self, number: int, frame: Any) -> None:
        self._came[number] = frame

    def _replace(self) -> None:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and number not in self._handlers:
                signal.signal(number, self._note)
                self._handlers[number] = handler


_TRIES = 8
_off: HandlersOff | None = None


@contextlib.contextmanager
def handlers_off() -> Iterator[HandlersOff]:
    """Put off handlers of signals; they run at the end. What one has raised is raised there.

    Inside of another such block: the block around it.
    """
    global _off  # noqa: PLW0603 - a process has one set of handlers
    if _off is not None:
        yield _off
        return
    off = _off = HandlersOff()
    try:
        off.begin()
        yield off
    finally:
        _off = None
        off.end()
        if off.raised:
            raise off.raised[0]
