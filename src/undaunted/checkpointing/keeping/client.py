"""A rank's side of the shelf, and the messages between the two.

One packet of a SOCK_SEQPACKET socket is MessagePack of one message; arenas come as descriptors
beside it. The shelf answers each request with one or more packets; the last one is ``Done``.
Whatever goes wrong with the shelf, a checkpoint is saved all the same.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import msgspec

from undaunted.base.descriptors import receive, send

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
    """A line of JSON by which ``keeping.last`` tells the agent that it begins to write a state.

    Attributes:
        step: of training.
        bytes: of the files of all its ranks.
    """

    step: int
    bytes: int


class LastEnded(msgspec.Struct, tag=True, frozen=True):
    """The line at the end of it; ``problem`` says why the state is not written."""

    problem: str = ""


_TIMEOUT_S = 5.0
_AGAIN_S = 0.1  # of an agent that was silent before: each save asks it
_decoder = msgspec.msgpack.Decoder(Answer)


@dataclass(frozen=True)
class Left:
    """An arena that a process of an earlier round has left; ``fd`` belongs to who asked for it."""

    rank: int
    slot: int
    fd: int


class ShelfClient:
    """A connection to the agent's shelf, for one rank and one place.

    Attributes:
        unsaved: what earlier rounds have left there could not be saved, and stays until a
            checkpoint is committed: until then this process gives no arena to keep.
    """

    def __init__(self, sock: socket.socket, rank: int, place: str) -> None:
        """Use a connected socket, which is the client's from now on."""
        self._sock: socket.socket | None = sock
        self._address = sock.getpeername()
        self._rank = rank
        self._place = place
        self._patience_s = _TIMEOUT_S
        self.unsaved = False

    @classmethod
    def connect(cls, rank: int, place: str) -> ShelfClient | None:
        """Return a client, or None where there is no agent that keeps arenas."""
        name = os.environ.get(VARIABLE)
        if not name:
            return None
        try:
            return cls(_connected(f"\0{name}", _TIMEOUT_S), rank, place)
        except OSError:
            return None

    def keep(self, slot: int, fd: int) -> None:
        """Have the arena kept until this rank gives another one for the slot.

        Raises:
            OSError: it is not kept.
        """
        self._ask(Keep(self._rank, self._place, slot), fd)

    def left(self) -> list[Left]:
        """Return what processes of earlier rounds have left on this node.

        Raises:
            OSError: the agent does not answer.
        """
        return self._ask(List(self._place))

    def drop(self) -> None:
        """Have the agent forget what earlier rounds have left.

        Raises:
            OSError: the agent does not answer.
        """
        self._ask(Drop(self._place))
        self.unsaved = False

    def close(self) -> None:
        """End the connection; what is kept stays kept."""
        if self._sock is not None:
            self._sock.close()

    def _ask(self, request: Request, fd: int = -1) -> list[Left]:
        sock = self._sock = self._sock or _connected(self._address, self._patience_s)
        left: list[Left] = []
        try:
            sock.settimeout(self._patience_s)
            send(sock, msgspec.msgpack.encode(request), fd)
            while (answer := _answer(sock, left)) is None:
                pass
        except BaseException as error:
            if isinstance(error, TimeoutError):
                self._patience_s = _AGAIN_S
            # An answer that comes late would be taken for that to the next request.
            self._sock = None
            sock.close()
            for one in left:
                os.close(one.fd)
            raise
        self._patience_s = _TIMEOUT_S
        if answer.problem:
            raise OSError(answer.problem)
        return left


def _connected(address: str | bytes, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _answer(sock: socket.socket, left: list[Left]) -> Done | None:
    packet, fds, _ = receive(sock, MAX_PACKET_BYTES, MAX_FDS)
    if not packet:
        raise ConnectionResetError("the agent has closed the shelf of arenas")
    answer = _decoder.decode(packet)
    if isinstance(answer, Kept) and len(fds) == 1:
        left.append(Left(answer.rank, answer.slot, fds[0]))
        return None
    for fd in fds:
        os.close(fd)
    return answer if isinstance(answer, Done) else None
