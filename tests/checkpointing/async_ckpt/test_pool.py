"""Places for snapshots: used again, bounded, given back. The writer is a dummy here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.checkpointing.async_ckpt import pool
from undaunted.checkpointing.async_ckpt.pool import Pool
from undaunted.checkpointing.errors import SaveError, WriterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.checkpointing.writer.options import WriterOptions

DEADLINE_S = 30.0


class Seat:
    made: list[Seat]

    def __init__(self, url: str, options: WriterOptions) -> None:
        self.options = options
        self.ended: list[str] = []
        self.begun = threading.Event()
        Seat.made.append(self)

    def write(self, slot: Any, target: str, files: Any, timeout_s: float) -> None:
        self.begun.set()
        raise WriterError(f"cannot write to {target}")

    def close(self, timeout_s: float) -> None:
        self.ended.append("closed")

    def abort(self) -> None:
        self.ended.append("aborted")


@pytest.fixture(autouse=True)
def seats(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Seat]]:
    monkeypatch.setattr(pool, "WriterSeat", Seat)
    monkeypatch.setattr(pool, "_options", pool._options)
    Seat.made = []
    yield Seat.made
    pool.close(abort=True)


def test_the_place_that_was_used_last_is_used_again() -> None:
    one = pool.the_pool().take(0)
    arena = one.slot.room(100)
    pool.the_pool().give_back(one)
    again = pool.the_pool().take(0)
    assert again is one
    assert again.slot.room(50) is arena
    pool.the_pool().give_back(again)


def test_who_finds_no_place_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [pool.the_pool().take(0) for _ in range(pool.PLACES)]
    with pytest.raises(SaveError, match="2 saves are still being written"):
        pool.the_pool().take(0.01)
    giver = threading.Thread(target=pool.the_pool().give_back, args=(places[0],))
    giver.start()
    assert pool.the_pool().take(DEADLINE_S) is places[0]
    giver.join()


def test_who_waits_for_a_place_learns_of_the_end() -> None:
    of = pool.the_pool()
    places = [of.take(0) for _ in range(pool.PLACES)]
    closer = threading.Thread(target=pool.close)
    closer.start()
    with pytest.raises(SaveError, match="closed"):
        of.take(DEADLINE_S)
    closer.join()
    for place in places:
        of.give_back(place)


def test_giving_back_twice_does_not_make_two_places() -> None:
    place = pool.the_pool().take(0)
    pool.the_pool().give_back(place)
    pool.the_pool().give_back(place)
    assert len(pool.the_pool()._free) == pool.PLACES


def test_what_is_aborted_before_it_is_written_starts_no_writer(seats: list[Seat]) -> None:
    place = pool.the_pool().take(0)
    place.abort()
    with pytest.raises(SaveError, match="aborted"):
        place.write("/somewhere", [], DEADLINE_S)
    assert seats == []
    pool.the_pool().give_back(place)
    pool.the_pool().warm_up()
    assert pool.the_pool().take(0) is place
    with pytest.raises(WriterError, match="somewhere"):
        place.write("/somewhere", [], DEADLINE_S)
    assert len(seats) == 1


def test_a_writer_is_started_ahead_with_the_priorities_asked_for(seats: list[Seat]) -> None:
    pool.configure(cpu_priority=5, io_priority=3)
    pool.the_pool().warm_up()
    assert (seats[0].options.nice, seats[0].options.io_class) == (5, "idle")
    place = pool.the_pool().take(0)
    with pytest.raises(WriterError, match="/x"):
        place.write("/x", [], 1)
    assert len(seats) == 1
    pool.configure(10, 1)
    assert pool._options.io_class is None


def test_what_is_in_use_ends_when_it_is_given_back(seats: list[Seat]) -> None:
    used = pool.the_pool().take(0)
    used.warm_up()
    used.slot.room(100)
    of = pool.the_pool()
    pool.close()
    assert seats[0].ended == []
    of.give_back(used)
    assert seats[0].ended == ["closed"]
    assert used.slot.arena is None
    assert pool.the_pool() is not of


def test_an_abort_ends_the_writers_of_what_is_in_use_at_once(seats: list[Seat]) -> None:
    of = pool.the_pool()
    used = of.take(0)
    used.warm_up()
    pool.close(abort=True)
    assert seats[0].ended == ["aborted"]
    of.give_back(used)
    assert isinstance(of, Pool)
