"""The reason for an early stop and its iteration: questions of a rank, and their answers.

Everybody who answers has the same four functions, see `Answers`. docs/design/training.md says how
all ranks come to the same iteration.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from undaunted.progress.layout import stop_of
from undaunted.progress.writer import current_writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.progress.writer import PageWriter

_LOOK_S = 0.002
_TOLD_S = 10.0  # for the launcher to know that the ranks stop
WAIT = 1  # what `Answers.ask` says while it is not known after which iteration to stop


class StopReason(enum.Enum):
    """The reason for an early stop of a job."""

    PREEMPTED = "preempted"
    """A signal, or the end of the scheduler's time."""
    REQUESTED = "requested"
    """The program, or an operator, has asked for it."""
    DEADLINE = "deadline"
    """The time that the scheduler gives is nearly over."""
    RESTART = "restart"
    """The round ends; another one follows, perhaps on other nodes, unless the whole job ends."""
    SUSPECT = "suspect"
    """A result may be wrong: the work is to be repeated elsewhere."""
    INVALID = "invalid"
    """A result cannot be right wherever it is computed: a person should look."""
    STRAGGLER = "straggler"
    """A rank is slow."""

    @property
    def exit_code(self) -> int:
        """With which a rank ends: 75, 16, 17 or 18, or 0 if the job goes on."""
        return _EXIT_CODES.get(self, 75)


_EXIT_CODES = {
    StopReason.RESTART: 0,
    StopReason.SUSPECT: 16,
    StopReason.INVALID: 17,
    StopReason.STRAGGLER: 18,
}
_TEXTS = {
    StopReason.PREEMPTED: "the job was told to stop",
    StopReason.REQUESTED: "a rank asked for a stop",
    StopReason.DEADLINE: "the end of the time that the job has is near",
    StopReason.RESTART: "this round ends",
    StopReason.SUSPECT: "a result may be wrong",
    StopReason.INVALID: "a result is wrong",
    StopReason.STRAGGLER: "a rank is slow",
}


def text_of(reason: StopReason) -> str:
    """Return a reason in words."""
    return _TEXTS[reason]


@dataclass(frozen=True)
class Stop:
    """That all ranks stop.

    Attributes:
        reason: why.
        iteration: the last one; -1 = this start of the job has made none.
        text: all of it, for people.
    """

    reason: StopReason
    iteration: int
    text: str

    @property
    def exit_code(self) -> int:
        """See `StopReason`."""
        return self.reason.exit_code


@dataclass(frozen=True)
class Answer:
    """The iteration after which to stop.

    Attributes:
        after: the iteration, as it was given to `Answers.ask`.
        reason: why.
        text: the same for people.
    """

    after: int
    reason: StopReason
    text: str


class Answers(Protocol):
    """Knows when all ranks stop."""

    def ask(self, iteration: int) -> int:
        """Say that an iteration is over; return 0 = go on, else that `after` has to be asked.

        Iterations never fall.
        """

    def after(self, timeout_s: float, give_up: Callable[[], bool]) -> Answer | None:
        """Return when to stop; None = nobody has said it in time, or until ``give_up`` is true."""

    def want(self, reason: StopReason, rank: int | None = None) -> None:
        """Have all ranks stop, because of a rank perhaps. For signal handlers, too."""

    def leave(self, told_s: float = 0.0) -> None:
        """Say that this rank stops, whatever the others do.

        Args:
            told_s: wait at most so long until the starter of the ranks knows that they are to.
        """

    def saved(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """All is saved; wait for other ranks where the end of one ends them as well."""

    def close(self) -> None:
        """Ask no more."""


def end_together(
    answers: Answers, page: PageWriter, reason: StopReason, rank: int | None, text: str
) -> None:
    """Say why all ranks stop, who know by themselves that they do; see `Session.stop_here`."""
    if rank is not None:
        page.event(f"stop_{reason.value}", text)
        answers.want(reason, rank)
    answers.leave(_TOLD_S)


def tell_launcher(reason: StopReason, rank: int | None, text: str) -> None:
    """Tell the launcher why all ranks end, without a `Session`: it does not go by exit codes.

    Every rank calls it, and waits until the launcher knows. Without the launcher nothing is done.

    Args:
        reason: why.
        rank: the one that is the reason; None = another rank knows.
        text: for the journal.
    """
    page = current_writer()
    if page.attached:
        end_together(ByLauncher(page), page, reason, rank, text)


class ByLauncher:
    """The launcher answers, through the page of this rank."""

    def __init__(self, page: PageWriter) -> None:
        self._page = page
        self.ask = page.asked  # the fast one
        page.will_ask()

    def after(self, timeout_s: float, give_up: Callable[[], bool]) -> Answer | None:
        """See `Answers`. A rank waits here once, for milliseconds; its mailbox may be in use."""
        deadline = time.monotonic() + timeout_s
        while (known := stop_of(self._page.stop_word)) is None:
            if give_up() or time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_S)
        after, why = known
        return Answer(after, StopReason(why), text_of(StopReason(why)))

    def want(self, reason: StopReason, rank: int | None = None) -> None:
        """See `Answers`."""
        self._page.want_stop(reason.value, rank)

    def leave(self, told_s: float = 0.0) -> None:
        """See `Answers`."""
        deadline = time.monotonic() + told_s
        while not self._page.stop_word and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self._page.stops_alone()

    def saved(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """See `Answers`."""

    def close(self) -> None:
        """See `Answers`."""
        self._page.asks_no_more()


class Alone:
    """There is no other rank."""

    def __init__(self) -> None:
        self._wanted: StopReason | None = None
        self._asked = -1

    def ask(self, iteration: int) -> int:
        """See `Answers`."""
        self._asked = iteration
        return 0 if self._wanted is None else WAIT

    def after(self, timeout_s: float, give_up: Callable[[], bool]) -> Answer | None:  # noqa: ARG002
        """See `Answers`."""
        if self._wanted is None:
            return None
        return Answer(self._asked, self._wanted, text_of(self._wanted))

    def want(self, reason: StopReason, rank: int | None = None) -> None:  # noqa: ARG002
        """See `Answers`."""
        self._wanted = reason

    def leave(self, told_s: float = 0.0) -> None:
        """See `Answers`."""

    def saved(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """See `Answers`."""

    def close(self) -> None:
        """See `Answers`."""
