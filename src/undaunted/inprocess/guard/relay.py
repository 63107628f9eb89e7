"""Guards and controller over the connections that the nodes of a job have anyway.

A node's agent is the guard of its ranks; the controller runs beside the leader of the job. What
they say goes along as `Aside`, with the number of the round, as it must not reach another one's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.timers import Timers
from undaunted.coordinator import protocol as p
from undaunted.inprocess.core.controller import Controller
from undaunted.inprocess.core.links import patience_s
from undaunted.inprocess.core.messages import Enter, FromGuard, Resume, ToRank
from undaunted.inprocess.guard.host import ControllerHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.wire.connection import Connection
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.guard.uplink import Downlink

_LONGEST = p.MAX_LINK_BYTES - 1024
# A node that is not heard of any more has noticed by then that it is cut off, and its ranks have
# left, as each does `Limits.heartbeat_timeout` after that.
_MARGIN_S = 10.0


class _ToController(msgspec.Struct, frozen=True, array_like=True):
    round: int
    message: FromGuard


class _ToGuard(msgspec.Struct, frozen=True, array_like=True):
    round: int
    job_ranks: tuple[int, ...]
    message: ToRank


class _ToGuardEncoded(msgspec.Struct, frozen=True, array_like=True):
    """The same, with a message that was encoded once for all guards."""

    round: int
    job_ranks: tuple[int, ...]
    message: msgspec.Raw


_ENCODER = msgspec.msgpack.Encoder()
_AT_CONTROLLER = msgspec.msgpack.Decoder(_ToController)
_AT_GUARD = msgspec.msgpack.Decoder(_ToGuard)


class RelayUplink:
    """See `Uplink`; of one round. Where the leader is, and whether there is one, may change."""

    def __init__(self, round: int, remark: Callable[[str], None]) -> None:  # noqa: A002
        self._round = round
        self._remark = remark
        self._downlink: Downlink | None = None
        self._connection: Connection | None = None

    def attach(self, downlink: Downlink) -> None:
        """See `Uplink`."""
        self._downlink = downlink
        if self._connection is not None:
            downlink.up()

    def send(self, message: FromGuard) -> None:
        """See `Uplink`."""
        if self._connection is not None:
            _send(self._connection, _ToController(self._round, message), self._remark)

    def linked(self, connection: Connection | None) -> None:
        """A leader can be reached over this connection; None = there is none."""
        was, self._connection = self._connection, connection
        if self._downlink is None:
            return
        if was is not None:
            self._downlink.down()
        if connection is not None:
            self._downlink.up()

    def received(self, aside: p.Aside) -> None:
        """The controller has said something, perhaps to the ranks of an earlier round."""
        try:
            said = _AT_GUARD.decode(aside.data)
        except msgspec.MsgspecError as error:
            self._remark(f"what the coordinator has said aside is no message: {error}")
            return
        if said.round == self._round and self._downlink is not None:
            self._downlink.told(said.job_ranks, said.message)


class RelayController:
    """The controller of a job of several nodes, one for each round; beside a leader.

    Args:
        notes: called with the number of a round and of the job's ranks; returns what is called with
            what the controller of that round notes.
        remark: called with lines about what cannot be sent.
    """

    def __init__(
        self,
        notes: Callable[[int, int], Callable[[Note], None]],
        remark: Callable[[str], None],
    ) -> None:
        self._notes = notes
        self._remark = remark
        self._round = -1
        self._host: ControllerHost | None = None
        self._nodes: dict[Connection, _Node] = {}
        self._timers = Timers()
        self._heard = 0  # how many connections have said something
        self._cut_off_s = 0.0  # after that, the ranks of a node that is not heard of have left

    def received(self, connection: Connection, aside: p.Aside) -> None:
        """A node's guard has said something."""
        try:
            said = _AT_CONTROLLER.decode(aside.data)
        except msgspec.MsgspecError as error:
            connection.close(f"what was said aside is no message: {error}")
            return
        if said.round < self._round:
            return
        message = said.message
        if isinstance(message, Enter | Resume):
            self._entered(said.round, message if isinstance(message, Enter) else message.enter)
        if self._host is None:
            return  # nobody is in a call
        node = self._nodes.get(connection)
        if node is None:
            self._heard += 1
            node = self._nodes[connection] = _Node(self, connection, self._heard)
        self._host.heard(node, message)

    def closed(self, connection: Connection, reason: str, *, silent: bool) -> None:
        """A node's connection has ended; it may come back, or live on without knowing."""
        node = self._nodes.pop(connection, None)
        if node is None:
            return
        delay_s = patience_s(self._cut_off_s, in_order=not silent)
        text = f"its node is lost: {reason}"
        self._timers.set(f"node {node.number}", delay_s, partial(self._left, node, text))

    def close(self) -> None:
        """Release everything."""
        self._timers.cancel()
        self._nodes.clear()
        if self._host is not None:
            self._host.close()
        self._host = None

    def encoded(self, job_ranks: tuple[int, ...], message: ToRank) -> msgspec.Struct:
        """Return what is sent to a node."""
        assert self._host is not None
        return _ToGuardEncoded(self._round, job_ranks, self._host.encoded(message))

    def send(self, connection: Connection, message: msgspec.Struct) -> None:
        """Send something to a node."""
        _send(connection, message, self._remark)

    def _entered(self, number: int, enter: Enter) -> None:
        """A rank is in a call; its round is the one that is on."""
        self._cut_off_s = max(self._cut_off_s, enter.limits.heartbeat_timeout + _MARGIN_S)
        if self._host is not None and number == self._round:
            return
        self.close()
        self._round = number
        note = self._notes(number, enter.world_size)
        self._host = ControllerHost(Controller(), silence_s=0.0, note=note)

    def _left(self, node: _Node, text: str) -> None:
        if self._host is not None:
            self._host.left(node, text)


class _Node:
    """A node that has said something; see `Link`."""

    def __init__(self, relay: RelayController, connection: Connection, number: int) -> None:
        self.number = number
        self._relay = relay
        self._connection = connection

    def tell(self, job_ranks: tuple[int, ...], message: ToRank) -> None:
        self._relay.send(self._connection, self._relay.encoded(job_ranks, message))


def _send(connection: Connection, message: msgspec.Struct, remark: Callable[[str], None]) -> None:
    data = _ENCODER.encode(message)
    if len(data) > _LONGEST:
        remark(
            f"a message of {len(data)} bytes about functions that are restarted in their processes "
            f"is not sent, as more than {_LONGEST} bytes are too many: let rank assignments want "
            "to know less of each rank"
        )
        return
    connection.send(p.Aside(data=data))
