"""The members of an etcd: what they agree on, and each of them as a simulated process.

They agree as etcd's do: what is written is there for all who read later, and nothing is read or
written by a member that cannot reach a majority. How they do it is left out. When their leader is
lost it takes a while until there is another one, and leases count anew then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulator.etcd import messages as e
from simulator.virtual.program import Program
from simulator.virtual.schedule import NS_PER_MS, NS_PER_S
from undaunted.coordinator.etcd.messages import KeyValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.virtual.engine import Simulation
    from undaunted.coordinator.wire.connection import Connection

MEMBERS = ("etcd0", "etcd1", "etcd2")
PORT = 2379
URL = "etcd://" + ",".join(f"{member}:{PORT}" for member in MEMBERS)

CHANGED = "changed"  # what a member is told when the others have agreed on something
_ELECTION_NS = 400 * NS_PER_MS, 1900 * NS_PER_MS
_LOOK_NS = 200 * NS_PER_MS  # how often a member looks whether it has the others again
_CUT_OFF_NS = NS_PER_S  # a member that has not for so long ends what must have a leader
_TIMES_OUT_NS = 7 * NS_PER_S  # what waits longer fails


@dataclass(slots=True)
class _Lease:
    seconds: int
    until_ns: int
    keys: set[bytes] = field(default_factory=set)


class Agreed:
    """What the members agree on.

    Attributes:
        still: members that stand still.
        changed: revision, key and what it is since then, None = deleted; in order.
        written: told what a value has been and is, whenever one is written.
    """

    def __init__(
        self, simulation: Simulation, written: Callable[[bytes, bytes], None] = lambda *_: None
    ) -> None:
        self.written = written
        self.still: set[str] = set()
        self.changed: list[tuple[int, bytes, KeyValue | None]] = []
        self.revision = 1
        self._simulation = simulation
        self._keys: dict[bytes, KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._leader, self._lost_ns, self._takes_ns = MEMBERS[0], -1, 0

    def works(self, member: str) -> bool:
        """Whether a member reaches enough others now, one of which leads them."""
        if not self._reaches_most(self._leader):
            self._elect()
            return False
        if self._lost_ns >= 0:  # it is back, or was not away for long enough
            self._lost_ns = -1
        return self._leader in self._reached(member) and self._reaches_most(member)

    def _elect(self) -> None:
        now = self._simulation.now
        if self._lost_ns < 0:
            self._lost_ns = now
            low, high = _ELECTION_NS
            self._takes_ns = low + int(self._simulation.random.random() * (high - low))
        able = [member for member in MEMBERS if self._reaches_most(member)]
        if now - self._lost_ns < self._takes_ns or not able:
            return
        self._leader, self._lost_ns = able[0], -1
        for number, lease in self._leases.items():
            lease.until_ns = now + lease.seconds * NS_PER_S
            self._simulation.at(lease.until_ns, self._expire, number)

    def _reaches_most(self, member: str) -> bool:
        return 2 * len(self._reached(member)) > len(MEMBERS)

    def _reached(self, member: str) -> list[str]:
        if not self._is_up(member):
            return []
        reaches = self._simulation.reaches
        return [
            each
            for each in MEMBERS
            if self._is_up(each) and reaches(member, each) and reaches(each, member)
        ]

    def _is_up(self, member: str) -> bool:
        return self._simulation.is_alive(member) and member not in self.still

    # --- keys and leases ------------------------------------------------------------------------

    def transact(self, request: e.Transaction) -> bytes:
        """Carry out a transaction."""
        keys = self._keys
        succeeds = all(
            revision == (keys[key].revision if key in keys else 0)
            for key, revision in request.unchanged
        )
        operations = request.success if succeeds else request.failure
        if any(each.kind != e.GET for each in operations):
            self.revision += 1
        found = [keys.get(each.key) for each in operations if each.kind == e.GET]
        for each in operations:
            if each.kind == e.PUT:
                self._put(each)
            elif each.kind == e.DELETE and each.key in keys:
                self._delete(each.key)
        return e.done(self.revision, found, succeeded=succeeds)

    def grant(self, number: int, seconds: int) -> None:
        """Make a lease."""
        until_ns = self._simulation.now + seconds * NS_PER_S
        self._leases[number] = _Lease(seconds, until_ns)
        self._simulation.at(until_ns, self._expire, number)

    def renew(self, number: int) -> int:
        """Renew a lease; return for how many seconds, 0 = there is none."""
        lease = self._leases.get(number)
        if lease is None:
            return 0
        lease.until_ns = self._simulation.now + lease.seconds * NS_PER_S
        self._simulation.at(lease.until_ns, self._expire, number)
        return lease.seconds

    def revoke(self, number: int) -> None:
        """End a lease, and the keys that are bound to it."""
        lease = self._leases.pop(number, None)
        if lease is not None and lease.keys:
            self.revision += 1
            for key in sorted(lease.keys):
                self._delete(key)

    def _expire(self, number: int) -> None:
        lease, now = self._leases.get(number), self._simulation.now
        if lease is None or now < lease.until_ns:
            return
        if any(self.works(member) for member in MEMBERS):
            self.revoke(number)
        else:  # the leader would do it
            self._simulation.at(now + _LOOK_NS, self._expire, number)

    def _put(self, put: e.Operation) -> None:
        self._unbind(put.key)
        self.written(self._keys.get(put.key, KeyValue()).value, put.value)
        if put.lease in self._leases:
            self._leases[put.lease].keys.add(put.key)
        self._keys[put.key] = KeyValue(put.key, put.value, self.revision)
        self._note(put.key, self._keys[put.key])

    def _delete(self, key: bytes) -> None:
        self._unbind(key)
        if self._keys.pop(key, None) is not None:
            self._note(key, None)

    def _note(self, key: bytes, found: KeyValue | None) -> None:
        self.changed.append((self.revision, key, found))
        for member in MEMBERS:
            self._simulation.at(self._simulation.now + NS_PER_MS, self._tell, member)

    def _tell(self, member: str) -> None:
        self._simulation.tell(member, CHANGED)

    def _unbind(self, key: bytes) -> None:
        for lease in self._leases.values():
            lease.keys.discard(key)


@dataclass(slots=True)
class _Watch:
    connection: Connection
    number: int
    first: bytes
    last: bytes
    seen: int  # how many changes it has been told, or need not be
    must_lead: bool


class Member(Program):
    """One member: answers calls, and tells watches what has changed."""

    def __init__(self, name: str, simulation: Simulation, agreed: Agreed) -> None:
        super().__init__(name, simulation.listens)
        self._agreed = agreed
        self._waiting: list[tuple[int, Connection, e.Call]] = []
        self._watches: list[_Watch] = []
        self._looks = False
        self._worked_ns = 0

    def started(self) -> None:
        """See `Program`."""
        self.listen(PORT, self)

    def told(self, what: Any) -> None:
        """See `Program`."""
        del what
        self._look()

    def opened(self, connection: Connection) -> None:
        """See `Handler`."""

    def closed(self, connection: Connection, reason: str) -> None:
        """See `Handler`."""
        del reason
        self._watches = [each for each in self._watches if each.connection is not connection]
        self._waiting = [each for each in self._waiting if each[1] is not connection]

    def received(self, connection: Connection, message: Any) -> None:
        """See `Handler`."""
        match message:
            case e.Ping():
                connection.send(e.Pong())
            case e.Ended(number=number):
                self._watches = [
                    each
                    for each in self._watches
                    if each.connection is not connection or each.number != number
                ]
            case e.Call():
                # What nobody waits for any more is done all the same, as in etcd.
                self._waiting.append((self.loop.now, connection, message))
                self._look()

    def _look(self) -> None:
        """Do what waits, if that goes; look again while there is something to look for."""
        now = self.loop.now
        if self._agreed.works(self.machine):
            self._worked_ns = now
            waiting, self._waiting = self._waiting, []
            for _, connection, call in waiting:
                self._serve(connection, call)
            self._tell()
        else:
            self._time_out(now)
        if (self._waiting or self._watches) and not self._looks:
            self._looks = True
            self.loop.call_later(_LOOK_NS / NS_PER_S, self._look_again)

    def _look_again(self) -> None:
        self._looks = False
        self._look()

    def _time_out(self, now: int) -> None:
        late = [each for each in self._waiting if now - each[0] >= _TIMES_OUT_NS]
        self._waiting = [each for each in self._waiting if now - each[0] < _TIMES_OUT_NS]
        for _, connection, call in late:
            connection.send(e.Failure(call.number, "etcdserver: request timed out"))
        if now - self._worked_ns < _CUT_OFF_NS:
            return
        for watch in [each for each in self._watches if each.must_lead]:
            watch.connection.send(e.Failure(watch.number, "etcdserver: no leader"))
            self._watches.remove(watch)

    def _serve(self, connection: Connection, call: e.Call) -> None:
        agreed, answer = self._agreed, b""
        match call.action.rpartition("/")[2]:
            case "Txn":
                answer = agreed.transact(e.transaction(call.request))
            case "LeaseGrant":
                seconds, number = e.numbers(call.request)
                agreed.grant(number, seconds)
            case "LeaseRevoke":
                agreed.revoke(e.numbers(call.request)[0])
            case "LeaseKeepAlive":
                number = e.numbers(call.request)[0]
                answer = e.seconds_left(number, agreed.renew(number))
            case "Watch":
                first, last, revision = e.watched(call.request)
                seen = sum(1 for of, _, _ in agreed.changed if of < revision)
                watch = _Watch(connection, call.number, first, last, seen, call.must_lead)
                self._watches.append(watch)
                answer = e.changes(agreed.revision, [])
        connection.send(e.Answer(call.number, answer))

    def _tell(self) -> None:
        changed = self._agreed.changed
        for watch in self._watches:
            by_revision: dict[int, list[tuple[bytes, KeyValue | None]]] = {}
            for revision, key, found in changed[watch.seen :]:
                if watch.first <= key < watch.last:
                    by_revision.setdefault(revision, []).append((key, found))
            watch.seen = len(changed)
            for revision, keys in by_revision.items():
                watch.connection.send(e.Answer(watch.number, e.changes(revision, keys)))
