from __future__ import annotations

from undaunted.progress import layout

HEADER = layout.RECORD_HEADER


def areas():
    """Every part of a page: first word, number of words, name."""
    words = [
        "MAGIC",
        "VERSION",
        "KICKLESS",
        "PHASE",
        "EVIDENCE_SIGNAL",
        "WARMUP_ITERATIONS",
        "ATTACHED_NS",
        "FIRST_LINE_NS",
        "INITIALIZED_NS",
        "FIRST_HEARTBEAT_NS",
        "FIRST_STEP_NS",
        "FIRST_ITERATION",
        "HEARTBEATS",
        "HEARTBEAT_NS",
        "HEARTBEAT_MAX_NS",
        "HEARTBEAT_WARMUP_NS",
        "ITERATION",
        "ITERATION_NS",
        "LAST_CLOSE_NS",
        "OUTSIDE_FIRST_NS",
        "OUTSIDE_COUNT",
        "OUTSIDE_MAX_NS",
        "OUTSIDE_WARMUP_NS",
        "LEAVING_NS",
        "RING_HEAD",
        "STOP",
        "STOP_ASKED",
        "STOP_WANTED",
    ]
    for name in words:
        assert getattr(layout, name) < layout.HEAD_BYTES // layout.WORD_BYTES
        yield getattr(layout, name), 1, name
    for name in ("IDENTITY", "REQUEST", "REPLY", "LIMITS"):
        length = getattr(layout, f"{name}_BYTES") // layout.WORD_BYTES
        yield getattr(layout, name), HEADER + length, name
    yield layout.WARMUP, 1, "WARMUP"
    yield layout.ERROR, layout.ERROR_WORDS, "error"
    for index in range(layout.SECTION_SLOTS):
        yield layout.section_slot(index), layout.SECTION_WORDS, f"section {index}"
    for number in range(layout.RING_SLOTS):
        yield layout.ring_slot(number), layout.RING_WORDS, f"ring {number}"


def test_parts_do_not_overlap_and_fit():
    end = 0
    for start, length, name in sorted(areas()):
        assert start >= end, name
        end = start + length
    assert end <= layout.PAGE_WORDS


def test_an_error_of_eight_kilobytes_fits():
    assert layout.ERROR_BYTES > 8000


def test_there_is_room_for_enough_sections():
    assert layout.SECTION_SLOTS >= 32
