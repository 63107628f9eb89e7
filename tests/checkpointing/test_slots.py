"""`Slots`: who has a slot keeps its memory, also when all of them are closed."""

from __future__ import annotations

import threading

import pytest

from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.slots import Slots


def test_a_slot_in_use_keeps_its_memory_until_it_is_given_back() -> None:
    slots = Slots(2)
    used, free = slots.take(1.0), slots.take(1.0)
    memory = used.room(1 << 16).memory
    free.room(1 << 16)
    slots.give_back(free)
    slots.close()
    assert free.arena is None
    memory[4096:4100] = b"data"
    assert used.arena is not None
    assert used.arena.fd >= 0
    slots.give_back(used)
    assert used.arena is None


def test_none_is_taken_from_closed_slots() -> None:
    slots = Slots(1)
    slots.close()
    with pytest.raises(SaveError, match="aborted or closed"):
        slots.take(60.0)


def test_closing_ends_the_wait_for_a_slot() -> None:
    slots = Slots(1)
    used = slots.take(1.0)
    closing = threading.Timer(0.01, slots.close)
    closing.start()
    with pytest.raises(SaveError, match="aborted or closed"):
        slots.take(60.0)
    closing.join()
    slots.give_back(used)
