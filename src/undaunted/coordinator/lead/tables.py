"""The tables that both ends of a connection have, so that only changes of a table are sent.

A table is the long part of a ledger, and the next table of a job is hardly another one. A follower
names the tables that it has by their digests; a leader refers to one of them, and says how the next
one differs.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from undaunted.coordinator import protocol as p

Table = tuple[p.Seat, ...]

_DIGEST_BYTES = 16


class Tables:
    """The last two tables that one end has seen, with their digests.

    They are the table of a ledger and the one that is being prepared. A table is known by its
    content, so that it does not matter which leader has made it.
    """

    def __init__(self) -> None:
        self._last: list[tuple[Table, bytes]] = []

    def digest(self, table: Table) -> bytes:
        """Return the digest of a table, which is known from then on; b"" = it is empty."""
        if not table:
            return b""
        known = next((each for each in self._last if each[0] is table), None)
        if known is None:
            content = msgspec.msgpack.encode(table)
            known = table, blake2b(content, digest_size=_DIGEST_BYTES).digest()
        others = [each for each in self._last if each[0] is not table]
        self._last = [*others[-1:], known]
        return known[1]

    def of(self, ledger: p.Ledger) -> tuple[bytes, bytes]:
        """Return the digests of both tables of a ledger, which are known from then on."""
        return self.digest(ledger.table), self.digest(ledger.pending)

    def filled(self, learn: p.Learn) -> p.Ledger | None:
        """Return the ledger that a leader has sent, with its tables, which are known from then on.

        None = it refers to a table that is not known.
        """
        ledger = learn.ledger
        if learn.table:
            table = next((known for known, digest in self._last if digest == learn.table), None)
            if table is None or not _are_of(table, learn.pending):
                return None
            pending = made(table, learn.pending)
            ledger = msgspec.structs.replace(ledger, table=table, pending=pending)
        self.of(ledger)
        return ledger


def changes(learn: p.Learn, table: bytes) -> p.Learn:
    """Return what a leader sends to a follower that has the table of the ledger, by its digest."""
    ledger = learn.ledger
    pending = pieces(ledger.table, ledger.pending)
    return p.Learn(epoch=learn.epoch, ledger=p.brief(ledger), table=table, pending=pending)


def pieces(table: Table, following: Table) -> tuple[p.Piece, ...]:
    """Return how another table is made of the seats of a table, and of new ones."""
    if not following:
        return ()
    at = {_who(seat): number for number, seat in enumerate(table)}
    parts: list[p.Piece] = []
    first, count, new = 0, 0, list[p.Seat]()
    for seat in following:
        number = at.get(_who(seat))
        if number is None:
            new.append(seat)
        elif not new and number == first + count:
            count += 1
        else:
            parts.append(p.Piece(first, count, tuple(new)))
            first, count, new = number, 1, []
    return (*parts, p.Piece(first, count, tuple(new)))


def made(table: Table, parts: tuple[p.Piece, ...]) -> Table:
    """Return the table that is made of the seats of another one; see `pieces`."""
    seats: list[p.Seat] = []
    for part in parts:
        for seat in table[part.first : part.first + part.count]:
            seats.append(_placed(seat, seats))
        seats += part.new
    return tuple(seats)


def _are_of(table: Table, parts: tuple[p.Piece, ...]) -> bool:
    """Whether each piece is one of that table, and no seat is used twice."""
    ends = [(part.first, part.first + part.count) for part in parts]
    within = all(0 <= first <= end <= len(table) for first, end in ends)
    return within and sum(part.count for part in parts) <= len(table)


def _who(seat: p.Seat) -> tuple[str, str, str, int]:
    """The part of a seat that is the same wherever it is in a table."""
    return (seat.node, seat.incarnation, seat.address, seat.slots)


def _placed(seat: p.Seat, before: list[p.Seat]) -> p.Seat:
    """A seat with the ranks that follow those of the seats before; see `placement.places`."""
    rank = before[-1].first_rank + before[-1].slots if before else 0
    if (seat.group_rank, seat.first_rank) == (len(before), rank):
        return seat
    return msgspec.structs.replace(seat, group_rank=len(before), first_rank=rank)
