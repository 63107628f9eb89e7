from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.progress import record

ROOM = 64
SIZE = 24 + ROOM
bodies = st.binary(max_size=ROOM)
numbers = st.integers(1, 2**63)


def stored(number, body, before=bytes(SIZE)):
    memory = bytearray(before)
    record.write(memoryview(memory), 0, number, body)
    return bytes(memory)


@given(numbers, bodies)
def test_what_was_written_is_read(number, body):
    assert record.read(stored(number, body), 0, ROOM) == (number, body)


def test_nothing_was_written():
    assert record.read(bytes(SIZE), 0, ROOM) is None


@given(numbers, bodies, bodies)
def test_a_writer_that_dies_after_any_byte(number, old, new):
    """Its stores in order: the header with no checksum, the body, the checksum."""
    before, after = stored(number, old), stored(number + 1, new, stored(number, old))
    started = bytes(8) + after[8:24] + before[24:]
    assert record.read(started, 0, ROOM) is None
    for written in range(len(new) + 1):
        torn = started[:24] + after[24 : 24 + written] + before[24 + written :]
        assert record.read(torn, 0, ROOM) is None
    assert record.read(after, 0, ROOM) == (number + 1, new)


@given(numbers, bodies, bodies, st.lists(st.booleans(), min_size=SIZE // 8, max_size=SIZE // 8))
def test_stores_that_become_visible_in_any_order(number, old, new, seen):
    before, after = stored(number, old), stored(number + 1, new, stored(number, old))
    mixed = b"".join(
        (after if new_one else before)[8 * i : 8 * i + 8] for i, new_one in enumerate(seen)
    )
    assert record.read(mixed, 0, ROOM) in (None, (number, old), (number + 1, new))


@given(st.binary(min_size=SIZE, max_size=SIZE))
def test_garbage_is_no_record(garbage):
    assert record.read(garbage, 0, ROOM) is None


def test_a_length_beyond_the_room_is_no_record():
    assert record.read(stored(1, bytes(ROOM)), 0, ROOM - 1) is None
