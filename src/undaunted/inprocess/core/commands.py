"""Events and commands of the pure core, beside the messages of `core.messages`.

`Controller.handle` takes `FromGuard` messages and `ControllerEvent`, and returns
`ControllerCommand`; `RankGuard.handle` takes `FromRank` and `ToRank` messages and `GuardEvent`, and
returns `GuardCommand`. Commands are carried out in order.

Timers fire once. A name is set anew rather than twice, and never cancelled: one that fires when
nothing depends on it any more is harmless.
"""

from __future__ import annotations

import msgspec

from undaunted.base.text import format_duration, one_line
from undaunted.inprocess.core.messages import Dismissed, End, FromGuard, Reason, ToRank
from undaunted.inprocess.core.reading import Reading  # noqa: TC001 - a field is decoded by it

_REASONS_SHOWN = 4  # in a line; the others are counted
_LONGEST_REASON = 600  # characters


class _Struct(msgspec.Struct, frozen=True, tag=True):
    pass


# --- events ---------------------------------------------------------------------------------------


class TimerFired(_Struct, frozen=True):
    """A timer of `SetTimer` has run out."""

    name: str


class Unreachable(_Struct, frozen=True):
    """The link to a guard has broken, and the guard has not come back in time.

    Comes so long after the link last worked in both directions that the guard has ended its ranks'
    calls (`Limits.unreachable_s`). At once where it is certain that the ranks are gone.

    Attributes:
        job_ranks: the ranks that the guard served.
        text: the reason, for people.
    """

    job_ranks: tuple[int, ...]
    text: str


class Look(_Struct, frozen=True):
    """The page was read, as `LookIn` asked.

    Attributes:
        reading: None = it is no page of this version.
        state: letter of the rank's process in /proc, "" = gone.
    """

    reading: Reading | None
    state: str = "S"


class ProcessEnded(_Struct, frozen=True):
    """The rank's process has ended.

    Attributes:
        text: the reason, such as ``its process (pid 12) has ended``.
        reading: of its page, None = there is none.
    """

    text: str
    reading: Reading | None = None


class LinkUp(_Struct, frozen=True):
    """The guard is connected to a controller, which may be another one than before."""


class LinkDown(_Struct, frozen=True):
    """The guard is not connected any more. At first it is not connected either."""


# --- commands of the controller -------------------------------------------------------------------


class Tell(_Struct, frozen=True):
    """Send a message to some ranks, through their guards; unreachable ranks are skipped."""

    job_ranks: tuple[int, ...]
    message: ToRank


class Answer(_Struct, frozen=True):
    """Send a message back to who has just spoken, who is not the rank that it says it is."""

    message: End | Dismissed


class SetTimer(_Struct, frozen=True):
    """Fire `TimerFired` after ``delay_s``; replaces a timer of that name."""

    name: str
    delay_s: float


class Note(_Struct, frozen=True, omit_defaults=True):
    """For the journal.

    Attributes:
        what: "recorded" (an epoch begins), "stopped" (it is over, another one follows), "finished"
            (its call has returned), "ended" (its call has failed everywhere), "resumed" (this
            controller has taken over).
        call, epoch: their numbers.
        members: ranks that take part.
        reasons: why the epoch was stopped.
        text: for people: why the call has ended.
        took_s: "recorded": seconds since the epoch before was stopped, in epoch 0 since the first
            rank entered; otherwise since the epoch was recorded. 0 = not known.
        last: "recorded": job rank that joined last, -1 = none.
        phases: "recorded": longest time of each recovery phase, seconds, and its rank, by name.
    """

    what: str
    call: int
    epoch: int
    members: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
    text: str = ""
    took_s: float = 0.0
    last: int = -1
    phases: dict[str, tuple[float, int]] = {}

    def line(self) -> str:
        """Return it as a line for people."""
        took = f" after {format_duration(self.took_s)}" if self.took_s else ""
        parts = [f"call {self.call}, epoch {self.epoch} {self.what}{took}"]
        if self.what == "recorded":
            parts.append(f"{len(self.members)} members")
            if self.last >= 0:
                parts.append(f"rank {self.last} was the last")
        parts += [_line_of(reason) for reason in self.reasons[:_REASONS_SHOWN]]
        if len(self.reasons) > _REASONS_SHOWN:
            parts.append(f"{len(self.reasons) - _REASONS_SHOWN} more reasons")
        if self.text:
            parts.append(one_line(self.text))
        return "; ".join(parts)


def _line_of(reason: Reason) -> str:
    who = "" if reason.named else f"rank {reason.job_rank}: {reason.kind}: "
    place = f", in {one_line(reason.where)}" if reason.where else ""
    return one_line(f"{who}{reason.text}", longest=_LONGEST_REASON) + place


class Over(_Struct, frozen=True):
    """No process of the job is left."""


# --- commands of a guard --------------------------------------------------------------------------


class Report(_Struct, frozen=True):
    """Send a message to the controller. Only while the link is up."""

    message: FromGuard


class Pass(_Struct, frozen=True):
    """Send a message to the rank."""

    message: ToRank


class LookIn(_Struct, frozen=True):
    """Read the page after ``delay_s`` and feed `Look`; replaces an earlier `LookIn`."""

    delay_s: float


class Signal(_Struct, frozen=True):
    """Send these signals to the process, in order."""

    numbers: tuple[int, ...]


class Finish(_Struct, frozen=True):
    """The process has ended, and a connected controller has heard of it: the guard may end.

    An agent keeps the guard, as the controller may move: after `LinkUp` the guard reports again.
    """


ControllerEvent = FromGuard | TimerFired | Unreachable
ControllerCommand = Tell | Answer | SetTimer | Note | Over
GuardEvent = Look | ProcessEnded | LinkUp | LinkDown | TimerFired
GuardCommand = Report | Pass | LookIn | Signal | SetTimer | Finish
