"""Places for snapshots: used again, bounded, given back. The writer is a dummy here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.checkpointing.async_ckpt import pool
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

    def write(self, lease: Any, target: str, files: Any, timeout_s: float) -> None:
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


def test_memory_and_writer_of_a_place_are_used_again(seats: list[Seat]) -> None:
    one = pool.the_pool().take(0)
    one.warm_up()
    arena = one.lease.at_least(100)
    one.release()
    one.release()  # without harm
    again = pool.the_pool().take(0)
    again.warm_up()
    assert again.lease.at_least(50) is arena
    assert len(seats) == 1
    again.release()


def test_what_is_aborted_before_it_is_written_starts_no_writer(seats: list[Seat]) -> None:
    place = pool.the_pool().take(0)
    place.abort()
    with pytest.raises(SaveError, match="aborted"):
        place.write("/somewhere", [], DEADLINE_S)
    assert seats == []
    place.release()
    place = pool.the_pool().take(0)  # of another save, which nobody has aborted
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
    used.lease.at_least(100)
    of = pool.the_pool()
    pool.close()
    assert seats[0].ended == []
    used.release()
    assert seats[0].ended == ["closed"]
    assert used.lease.arena is None
    assert pool.the_pool() is not of


def test_an_abort_ends_the_writers_of_what_is_in_use_at_once(seats: list[Seat]) -> None:
    used = pool.the_pool().take(0)
    used.warm_up()
    pool.close(abort=True)
    assert seats[0].ended == ["aborted"]
    used.release()
