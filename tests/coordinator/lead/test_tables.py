"""Only changes of a table are sent to a node that has the one before."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.lead.seats import ledger, seat
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead.tables import Tables, changes, pieces

DECODE = msgspec.msgpack.Decoder(p.Message).decode


def table(*agents: tuple[str, int]) -> tuple[p.Seat, ...]:
    """A table of launchers in the order of their ranks: node, and the times it was started."""
    return tuple(
        seat(node, rank, incarnation=f"{node}{times}") for rank, (node, times) in enumerate(agents)
    )


def learn(known: tuple[p.Seat, ...], pending: tuple[p.Seat, ...]) -> p.Learn:
    """What a leader sends to a node that has the table, as it comes out of the wire."""
    complete = p.Learn(epoch=1, ledger=ledger("abc", table=known, pending=pending))
    sent = changes(complete, Tables().digest(known))
    return DECODE(msgspec.msgpack.encode(sent))


AGENTS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 2)),
    min_size=1,
    unique_by=lambda agent: agent[0],
)


@given(known=AGENTS, pending=AGENTS)
def test_any_table_can_be_made_of_any_other(
    known: list[tuple[str, int]], pending: list[tuple[str, int]]
) -> None:
    tables = Tables()
    tables.of(ledger("abc", table=table(*known)))
    filled = tables.filled(learn(table(*known), table(*pending)))
    assert filled == ledger("abc", table=table(*known), pending=table(*pending))


def test_a_spare_in_the_place_of_a_node_costs_a_seat_in_any_order_of_ranks() -> None:
    agents = [(f"n{number}", 1) for number in range(1000)]
    fills_the_gap = [*agents[:5], ("spare", 1), *agents[6:]]
    moves_up = [*agents[:5], *agents[6:], ("spare", 1)]
    for following in (agents, fills_the_gap, moves_up):
        assert len(msgspec.msgpack.encode(pieces(table(*agents), table(*following)))) < 100


def test_tables_of_the_ledger_before_are_known() -> None:
    """The one that was being prepared then is that of the round by now, or is not."""
    one, other, third = (table(("a", times), ("b", 1)) for times in range(3))
    tables = Tables()
    tables.filled(p.Learn(epoch=1, ledger=ledger("abc", table=one, pending=other)))
    filled = tables.filled(learn(one, third))
    assert filled is not None
    assert (filled.table, filled.pending) == (one, third)
    filled = tables.filled(learn(third, other))
    assert filled is not None
    assert (filled.table, filled.pending) == (third, other)
    assert tables.filled(learn(one, other)) is None


def test_changes_that_are_not_of_the_table_make_none() -> None:
    known = table(("a", 1), ("b", 1))
    tables = Tables()
    tables.of(ledger("abc", table=known))
    for parts in (
        (p.Piece(1, 2),),
        (p.Piece(-1, 1),),
        (p.Piece(0, 2), p.Piece(0, 2)),
        (p.Piece(2, -1),),
    ):
        wrong = msgspec.structs.replace(learn(known, known), pending=parts)
        assert tables.filled(wrong) is None
    assert tables.filled(learn(known, known)) is not None
