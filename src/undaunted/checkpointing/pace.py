"""The step of the next save, the same on all ranks. Design: docs/design/checkpointing.md.

For `Checkpointer(every="continuous")`: the next save begins when the one before is in storage, and
no sooner than training can spare the time in which it stands still.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from undaunted.agreement.failures import AgreedError
from undaunted.checkpointing import announce

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.agreement.agreement import Agreeing

_SHARE = 0.025  # of the time of training that saves may take
_LONGEST_GAP = 100  # steps between two saves that cannot begin, as the state cannot be saved


class Pace:
    """Asked by the training thread, answered by the saving thread of all ranks.

    The saving thread first raises `_deciding`, then looks at the step that training has asked
    about last. Training first notes its step, then looks at `_deciding`. So a rank has either told
    the others of its step, or waits for what they decide: a step that no rank has come to.

    Attributes:
        cpu_s: seconds of processors that the last write took.
    """

    def __init__(self, agreement: Agreeing, timeout_s: float) -> None:
        """Args: rounds of the saving threads, and how long one may last."""
        self._agreement = agreement
        self._timeout_s = timeout_s
        self._cpus = _cpus(os.environ)
        self.cpu_s = 0.0
        self._asked = -1
        self._next: int | None = 0  # the first step that is asked about
        self._saved, self._number = -1, 0  # the save that began last: its step, its number
        self._gap = 1  # steps until a save is tried again that could not begin
        self._deciding = False
        self._decided = threading.Condition()

    def due(self, step: int) -> bool:
        """Return whether the state of this step is to be saved. The ranks decide within ms."""
        self._asked = step  # before `_deciding` is looked at
        if self._deciding:
            with self._decided:
                self._decided.wait_for(lambda: not self._deciding, self._timeout_s)
        return self.went_back(step) or (self._next is not None and step >= self._next)

    def went_back(self, step: int) -> bool:
        """Return whether this step is before that of the last save, which may be under way."""
        return step < self._saved

    def begun(self, step: int, number: int) -> None:
        """A save has begun: no other is due until the ranks have decided after it."""
        with self._decided:
            self._saved, self._number, self._next = step, number, None
            self._gap = 1

    def loaded(self, step: int) -> None:
        """A checkpoint was loaded, on all ranks: it is not saved again, and what follows is."""
        with self._decided:
            # What the ranks decide after an earlier save comes too late on some of them.
            self._saved, self._number, self._next = step, -1, step + 1

    def refused(self, step: int) -> None:
        """A save could not begin, on all ranks: try again later, and later each time."""
        with self._decided:
            # What the ranks decide after an earlier save comes too late on some of them.
            self._saved, self._number, self._next = step, -1, step + self._gap
            self._gap = min(2 * self._gap, _LONGEST_GAP)

    def pause_s(self, began: float, stall_s: float) -> float:
        """Return how long the next save waits, in seconds.

        A save costs the time in which training stands still, and what the writer takes of the
        processors of this rank: its threads would have them otherwise.

        Args:
            began: when the last one did, on the monotonic clock.
            stall_s: how long training was stopped for it.
        """
        cost_s = stall_s + self.cpu_s / self._cpus
        return max(0.0, began + cost_s / _SHARE - time.monotonic())

    def decide(self, number: int) -> bool:
        """Agree with the other ranks on the next step; whether they did. In the saving thread.

        Args:
            number: of the save before.
        """
        try:
            # Others may pause for longer, and nobody's training is to wait for that.
            self._round(f"the pause after save {number}", -1)
            self._deciding = True  # before `_asked` is looked at
            last = self._round(f"the step of the save after {number}", self._asked)
        except AgreedError as error:
            announce.log.warning("the ranks cannot agree when to save next: %s", error)
            return False
        else:
            with self._decided:
                if number == self._number:  # else it came on some ranks before `begun`
                    self._next = last + 1
            return True
        finally:
            with self._decided:
                self._deciding = False
                self._decided.notify_all()

    def _round(self, name: str, step: int) -> int:
        return int(self._agreement.round(name, str(step).encode(), _latest, self._timeout_s))


def _cpus(environ: Mapping[str, str]) -> float:
    """Return how many processors this rank has, if the ranks of its node share them."""
    ranks = environ.get("LOCAL_WORLD_SIZE", "")
    return len(os.sched_getaffinity(0)) / max(1, int(ranks) if ranks.isdecimal() else 1)


def _latest(steps: Sequence[bytes]) -> bytes:
    return max(steps, key=int)
