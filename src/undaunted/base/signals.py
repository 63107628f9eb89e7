"""Signals that are the program's, and signals that come twice."""

from __future__ import annotations

import signal

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
        """Whether this signal is another one than the last one of this number that counted.

        Args:
            number: of the signal.
            now: seconds of a clock that never goes back.
        """
        if now - self._counted.get(number, -SAME_S) < SAME_S:
            return False
        self._counted[number] = now
        return True
