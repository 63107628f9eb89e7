"""What goes into a leader and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from undaunted.coordinator import protocol as p
    from undaunted.coordinator.policy.config import PolicyConfig


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """What a leader knows.

    Attributes:
        run_id: the job.
        policy: of the job.
        node: the node it runs on, "" = on a host of its own.
        incarnation: random text that no other agent or leader has.
        takeover: members may take over.
        address: where its node can be reached, "" = nobody needs to know.
        endpoints: where other leaders of this job may be, besides at its members.
        lease_s: a follower that is silent for so long is lost.
        away_timeout_s: as in `FollowerConfig`.
        store: etcd says who leads: another launcher may claim that at any time, and nothing starts
            before the ledger is there.
        settings: as in `protocol.Hello`; these hold.
        attempt: see `protocol.Ledger`.
        program: as in `protocol.Hello`, of its node.
    """

    run_id: str
    policy: PolicyConfig
    node: str = ""
    incarnation: str = ""
    takeover: bool = True
    address: str = ""
    endpoints: tuple[str, ...] = ()
    lease_s: float = 5.0
    away_timeout_s: float = 60.0
    store: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    attempt: int = 0
    program: str = ""


class _Message(msgspec.Struct, frozen=True, gc=False):
    """Made for every event: a struct takes a fifth of the time of a frozen dataclass."""


# --- events -------------------------------------------------------------------------------------


class Begin(_Message, frozen=True):
    """The first event."""


class Received(_Message, frozen=True):
    """A follower, or somebody who wants to be one, said something. Links are never used again."""

    link: int
    message: p.Message


class Closed(_Message, frozen=True):
    """A connection is gone. ``silent``: the other side has not ended it, and may live."""

    link: int
    reason: str
    silent: bool = False


class Answered(_Message, frozen=True):
    """Answer to `Ask`; None = there was none within its deadline.

    ``ended``: nobody listens there, so that the launcher has ended.
    """

    node: str
    message: p.Message | None
    ended: bool = False


class Persisted(_Message, frozen=True):
    """This version of the ledger, or a later one, has been written down; see `Persist`."""

    version: int


class Deposed(_Message, frozen=True):
    """Whoever decides about that has taken the lead away."""

    reason: str


class Holds(_Message, frozen=True):
    """Others can see in the store that this leader is there, or ``held`` is False: not any more.

    Then another one may lead soon, where that one is not in the way of the members that follow.
    """

    held: bool


class TimerFired(_Message, frozen=True):
    """A timer set by `SetTimer` ran out."""

    name: str
    round: int


Event = Begin | Received | Closed | Answered | Persisted | Deposed | Holds | TimerFired


# --- commands -----------------------------------------------------------------------------------


class Send(_Message, frozen=True):
    """Say something to a follower."""

    link: int
    message: p.Message


class Close(_Message, frozen=True):
    """Close a connection; no answer."""

    link: int


class Ask(_Message, frozen=True):
    """Ask a member that is not connected; answer with Answered within a second."""

    node: str
    address: str
    message: p.Miss


class Persist(_Message, frozen=True):
    """Write the ledger down, when there is time."""

    ledger: p.Ledger


class SetTimer(_Message, frozen=True):
    """Answer with TimerFired(name, round) after ``delay_s``; replaces a timer of that name."""

    name: str
    round: int
    delay_s: float


class Done(_Message, frozen=True):
    """The leader has nothing more to do. ``successor``: address of the leader that replaced it."""

    successor: str = ""


Command = Send | Close | Ask | Persist | SetTimer | Done
