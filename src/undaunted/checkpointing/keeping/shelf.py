"""The agent's side: holds descriptors of arenas, and hands them to the ranks of later rounds.

Nothing of an arena is read here. A connection belongs to one process of a rank; what it has put
here stays when it ends, and is what ``List`` is about. All is bounded: connections, arenas per
node, and the size of a packet.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.accepting import Acceptor
from undaunted.base.descriptors import receive, send
from undaunted.checkpointing.keeping.client import (
    MAX_FDS,
    MAX_PACKET_BYTES,
    Answer,
    Done,
    Drop,
    Keep,
    Kept,
    List,
    Request,
)
from undaunted.coordinator.wire import sockets

if TYPE_CHECKING:
    from collections.abc import Callable

_BACKLOG = 128
_MAX_CONNECTIONS = 256
_MAX_ARENAS = 512
_PACKETS_IN_A_ROW = 64
_decoder = msgspec.msgpack.Decoder(Request)


@dataclass(frozen=True)
class Key:
    """The key of an arena that is kept."""

    rank: int
    place: str
    slot: int


@dataclass(frozen=True)
class Item:
    """An arena that is kept, and whose it is: None when its process has ended."""

    fd: int
    owner: socket.socket | None


class Shelf:
    """Serves the ranks of a node on the loop of its agent. Owns sockets and descriptors.

    Args:
        say: called with a line about what was refused.

    Attributes:
        name: of the socket, without the leading NUL.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._items: dict[Key, Item] = {}
        self._peers: set[socket.socket] = set()
        self._acceptor: Acceptor | None = None
        self.name = f"undaunted-{os.urandom(16).hex()}"  # abstract: nothing is left of it

    def open(self) -> None:
        """Listen under the name; if that fails, nothing is kept, and the log says so."""
        try:
            listener = self._listen()
        except OSError as error:
            self._say(f"copies of checkpoints are not kept over a restart: {error}")
            return
        self._acceptor = Acceptor(listener, self._take)

    def close(self) -> None:
        """Release everything; arenas that nobody else holds are gone."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
        for peer in list(self._peers):
            self._leave(peer)
        for item in self._items.values():
            os.close(item.fd)
        self._items.clear()

    def arenas(self) -> dict[Key, int]:
        """Return the descriptors of all arenas; they stay the shelf's."""
        return {key: item.fd for key, item in self._items.items()}

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            listener.bind(f"\0{self.name}")
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def _take(self, peer: socket.socket) -> None:
        user = sockets.peer(peer).user
        if user != os.getuid() or len(self._peers) >= _MAX_CONNECTIONS:
            self._say(f"a process of user {user} was not let at the arenas of this node")
            peer.close()
            return
        self._peers.add(peer)
        asyncio.get_running_loop().add_reader(peer, self._serve, peer)

    def _leave(self, peer: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(peer)
        self._peers.discard(peer)
        peer.close()
        for key, item in self._items.items():
            if item.owner is peer:
                self._items[key] = Item(item.fd, None)

    def _serve(self, peer: socket.socket) -> None:
        for _ in range(_PACKETS_IN_A_ROW):
            try:
                packet, fds = _receive(peer)
                if packet:
                    self._handle(peer, packet, fds)
                    continue
            except BlockingIOError:
                return
            except (OSError, ValueError) as error:
                self._say(f"a rank that talks to the shelf of arenas was cut off: {error}")
            self._leave(peer)
            return

    def _handle(self, peer: socket.socket, packet: bytes, fds: list[int]) -> None:
        try:
            request = _decoder.decode(packet)
        except msgspec.DecodeError:
            _close(fds)
            raise
        match request:
            case Keep() if len(fds) == 1:
                _send(peer, Done(self._keep(peer, request, fds[0])))
            case List(place=place):
                _close(fds)
                self._hand_out(peer, place)
            case Drop(place=place):
                _close(fds)
                self._drop(peer, place)
                _send(peer, Done())
            case _:
                _close(fds)
                _send(peer, Done("an arena is kept by its one descriptor"))

    def _keep(self, peer: socket.socket, request: Keep, fd: int) -> str:
        key = Key(request.rank, request.place, request.slot)
        former = self._items.get(key)
        if former is None and len(self._items) >= _MAX_ARENAS:
            os.close(fd)
            return f"the shelf is full: {_MAX_ARENAS} arenas"
        if former is not None:
            os.close(former.fd)
        self._items[key] = Item(fd, peer)
        return ""

    def _notice_ends(self, asking: socket.socket) -> None:
        """Leave those that have ended: the loop may tell of a request first that came after it."""
        for peer in self._peers - {asking}:
            try:
                ended = not peer.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                self._leave(peer)

    def _hand_out(self, peer: socket.socket, place: str) -> None:
        self._notice_ends(peer)
        for key, item in self._items.items():
            if key.place == place and item.owner is None:
                _send(peer, Kept(key.rank, key.slot), item.fd)
        _send(peer, Done())

    def _drop(self, peer: socket.socket, place: str) -> None:
        self._notice_ends(peer)
        for key, item in list(self._items.items()):
            if key.place == place and item.owner is None:
                del self._items[key]
                os.close(item.fd)


def _receive(peer: socket.socket) -> tuple[bytes, list[int]]:
    packet, fds, cut = receive(peer, MAX_PACKET_BYTES, MAX_FDS)
    if cut:
        _close(fds)
        raise ValueError(f"a packet is longer than {MAX_PACKET_BYTES} bytes")
    if not packet:
        _close(fds)
    return packet, fds


def _send(peer: socket.socket, answer: Answer, fd: int = -1) -> None:
    send(peer, msgspec.msgpack.encode(answer), fd)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
