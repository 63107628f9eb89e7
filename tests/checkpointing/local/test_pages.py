"""Memory that is mapped at once."""

from __future__ import annotations

import ctypes

from undaunted.checkpointing.local.pages import map_at_once


def test_content_stays_and_any_range_will_do() -> None:
    memory = ctypes.create_string_buffer(b"x" * 100, 8 << 20)
    address = ctypes.addressof(memory)
    for start, size in [(0, 8 << 20), (1, 5 << 20), (5, 3), (0, 0)]:
        map_at_once(address + start, size)
    assert memory.value == b"x" * 100
