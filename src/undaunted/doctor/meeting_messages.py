"""Messages between the doctors of several nodes. One of them is the host of the meeting.

guest                         host
Hello (facts, port)  ------->
Ping, eight times    <------>  Pong
Clock                ------->
                     <-------  Everyone, when all are there, or time is up
Reached              ------->
                     <-------  MeetingVerdict, when all have answered, or time is up
"""

from __future__ import annotations

import msgspec

from undaunted.doctor.advice import Advice  # noqa: TC001 - as above
from undaunted.doctor.facts import Facts  # noqa: TC001 - msgspec reads the annotations


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A guest comes. ``port`` is where it listens, for others to try whether they reach it."""

    facts: Facts
    port: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """``sent_ns``: wall clock of the guest."""

    sent_ns: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The same ``sent_ns``, and when the host, by its wall clock, got it and answered."""

    sent_ns: int
    got_ns: int
    answered_ns: int


class Clock(msgspec.Struct, frozen=True, tag="clock"):
    """The lead of the host's clock before the guest's, and its greatest error."""

    ahead_ns: int
    error_ns: int


class Peer(msgspec.Struct, frozen=True):
    """A node of the meeting.

    Attributes:
        node: its name.
        host: what its own host calls itself.
        address: numeric, as the host of the meeting sees it.
        port: where it listens.
    """

    node: str
    host: str
    address: str
    port: int


class Everyone(msgspec.Struct, frozen=True, tag="everyone"):
    """The nodes that came; ``you`` is the place of the receiver."""

    peers: list[Peer]
    you: int


class Unreached(msgspec.Struct, frozen=True):
    """Peer number ``peer`` was not found by its name, or not reached at its address.

    ``name_only``: the name leads nowhere, the address does. Only who is not reached stops a job.
    """

    peer: int
    problem: str
    name_only: bool = False


class Reached(msgspec.Struct, frozen=True, tag="reached"):
    """The peers that a guest has tried in vain."""

    unreached: list[Unreached]


class MeetingVerdict(msgspec.Struct, frozen=True, tag="verdict"):
    """The result of a comparison of the nodes."""

    nodes: list[str]
    findings: list[Advice]


FromGuest = Hello | Ping | Clock | Reached
FromHost = Pong | Everyone | MeetingVerdict
