"""What goes into a campaign for the lead of a job and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from undaunted.coordinator.protocol import Ledger


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader's key in etcd.

    Attributes:
        address: where that launcher listens.
        incarnation: of that launcher.
        lease: that the key is bound to.
        revision: of etcd when the key was made; rises from leader to leader.
    """

    address: str
    incarnation: str
    lease: int
    revision: int


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The first event."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The leader's key, None = nobody leads, as of a revision of etcd."""

    leader: Leadership | None
    revision: int


@dataclass(frozen=True, slots=True)
class Won:
    """Answer to `Claim`: this launcher leads.

    Attributes:
        lease: that was made for it.
        revision: of the leader's key.
        asked_ns: when the lease was asked for, monotonic.
        ledger: as the leader before has left it; None = there is none.
    """

    lease: int
    revision: int
    asked_ns: int
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class NotWon:
    """Answer to `Claim`: somebody was faster; None = and is gone already."""

    leader: Leadership | None


@dataclass(frozen=True, slots=True)
class Renewed:
    """Answer to `Renew`, which was asked for at ``asked_ns``."""

    lease: int
    asked_ns: int


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """Answer to `Renew`: etcd does not know the lease any more."""

    lease: int


@dataclass(frozen=True, slots=True)
class Keep:
    """The leader wants a ledger to be written; a later one replaces it."""

    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Written:
    """Answer to `Write`: etcd has it."""

    version: int


@dataclass(frozen=True, slots=True)
class NotWritten:
    """Answer to `Write`: the leader's key is another one now."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to a command: etcd has not answered, or with an error.

    Attributes:
        during: what was tried.
        final: trying again will not help.
        ledger: of a `Write`.
    """

    during: Literal["look", "claim", "renew", "write"]
    reason: str
    final: bool = False
    ledger: Ledger | None = None


@dataclass(frozen=True, slots=True)
class StepDown:
    """The leader has stood down by itself: somebody knows more of the job than it did."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take part no more. ``erase``: the job is over, its ledger is of no use."""

    erase: bool = False


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by `SetTimer` ran out."""

    name: str


Event = (
    Begin
    | Seen
    | Won
    | NotWon
    | Renewed
    | LeaseGone
    | Keep
    | Written
    | NotWritten
    | Failed
    | StepDown
    | Withdraw
    | TimerFired
)


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Read the leader's key and watch it from then on; answer with Seen each time, or Failed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Make a lease and the leader's key, if there is none; answer with Won, NotWon or Failed."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease; answer with Renewed, LeaseGone or Failed."""

    lease: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write if the leader's key is of this revision; answer with Written, NotWritten or Failed."""

    ledger: Ledger
    revision: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back, and with it the leader's key; no answer.

    ``erase``: delete the ledger before, if the leader's key is of this revision; 0 = do not.
    """

    lease: int
    erase: int = 0


@dataclass(frozen=True, slots=True)
class Lead:
    """Lead the job from now on."""

    epoch: int
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class StandDown:
    """Lead it no more."""

    reason: str


@dataclass(frozen=True, slots=True)
class Persisted:
    """For the leader: this version is in etcd."""

    version: int


@dataclass(frozen=True, slots=True)
class Follow:
    """The leader is at this address; "" = there is none, for a ``reason`` if it is known."""

    address: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This launcher can never take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with TimerFired(name) after ``delay_s``; replaces a timer of that name."""

    name: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the user."""

    text: str


Command = (
    Look
    | Claim
    | Renew
    | Write
    | Release
    | Lead
    | StandDown
    | Persisted
    | Follow
    | GiveUp
    | SetTimer
    | Say
)
