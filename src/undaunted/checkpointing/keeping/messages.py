"""What ranks and the shelf of their node's agent say to each other.

One packet of a SOCK_SEQPACKET socket is MessagePack of one message; arenas come as descriptors
beside it. The shelf answers each request with one or more packets; the last one is ``Done``.
"""

from __future__ import annotations

import msgspec

MAX_PACKET_BYTES = 4096
MAX_FDS = 4  # more than the one that a packet should bring
# Abstract name of the agent's socket, without the leading NUL.
VARIABLE = "UNDAUNTED_ARENAS"


class Keep(msgspec.Struct, tag=True, frozen=True):
    """Keep the arena that comes along, in place of the one of the same rank, place and slot.

    Attributes:
        rank: in the job.
        place: folder or URL of the checkpoints, which tells several savers of a rank apart.
        slot: 0 or 1.
    """

    rank: int
    place: str
    slot: int


class List(msgspec.Struct, tag=True, frozen=True):
    """Hand out all arenas of a place, of all ranks that have run on this node."""

    place: str


class Drop(msgspec.Struct, tag=True, frozen=True):
    """Forget the arenas of a place, but for those of the present round's processes."""

    place: str


class Kept(msgspec.Struct, tag=True, frozen=True):
    """An arena, which comes along as a descriptor."""

    rank: int
    slot: int


class Done(msgspec.Struct, tag=True, frozen=True):
    """The request was carried out; ``problem`` says why it was not."""

    problem: str = ""


Request = Keep | List | Drop
Answer = Kept | Done


class LastBegun(msgspec.Struct, tag=True, frozen=True):
    """What ``keeping.last`` says to the agent when it begins to write a state, a line of JSON.

    Attributes:
        step: of training.
        bytes: of the files of all its ranks.
    """

    step: int
    bytes: int


class LastEnded(msgspec.Struct, tag=True, frozen=True):
    """What it says when it is done; ``problem`` says why the state is not written."""

    problem: str = ""
