"""What a simulated process is told, and what it may ask for.

A connection is known to each of its ends by a number. The messages sent over it are passed as they
are, not copied: they must not be changed afterwards.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _Message(msgspec.Struct, frozen=True, gc=False):
    pass


# --- events -------------------------------------------------------------------------------------


class Started(_Message, frozen=True):
    """The first event of every process."""


class TimerFired(_Message, frozen=True):
    """A timer has run out; of a paused or slow process, some time ago."""

    name: str


class Connected(_Message, frozen=True):
    """The connection that was asked for as ``label`` stands; the other end may not know it yet."""

    label: str
    connection: int


class ConnectFailed(_Message, frozen=True):
    """The connection does not stand. ``reason``: refused, or timed out."""

    label: str
    reason: str


class Accepted(_Message, frozen=True):
    """Somebody has connected to the address this process listens on."""

    connection: int
    address: str


class Received(_Message, frozen=True):
    """The next message of a connection."""

    connection: int
    message: Any


class Closed(_Message, frozen=True):
    """Nothing more comes from this connection. ``reason``: end of file, or reset."""

    connection: int
    reason: str


class Told(_Message, frozen=True):
    """Something from outside of the network: a signal, a user's wish."""

    what: Any


Event = Started | TimerFired | Connected | ConnectFailed | Accepted | Received | Closed | Told


# --- commands -----------------------------------------------------------------------------------


class Listen(_Message, frozen=True):
    """Accept connections to ``address`` (``machine:port``) from now on."""

    address: str


class Connect(_Message, frozen=True):
    """Connect to ``address``; answered by Connected or ConnectFailed with the same label."""

    label: str
    address: str
    timeout_ns: int


class Send(_Message, frozen=True):
    """Send a message; nothing happens if the connection is closed already."""

    connection: int
    message: Any


class Close(_Message, frozen=True):
    """Close a connection; what was sent before is still delivered. No Closed follows."""

    connection: int


class SetTimer(_Message, frozen=True):
    """Fire once after ``delay_ns``; replaces a timer of that name."""

    name: str
    delay_ns: int


class CancelTimer(_Message, frozen=True):
    """Do not fire."""

    name: str


class Exit(_Message, frozen=True):
    """The process ends here; its connections see the end of file."""


Command = Listen | Connect | Send | Close | SetTimer | CancelTimer | Exit
