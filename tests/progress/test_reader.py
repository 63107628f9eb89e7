from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.progress import layout, record
from undaunted.progress.reader import (
    EVENT,
    IDENTITY,
    copy_page,
    parse_event,
    parse_page,
    parse_ring,
)
from undaunted.progress.snapshot import PageSnapshot, Phase


def page(**words):
    """An empty page of a living rank, with some words set by name."""
    memory = bytearray(layout.PAGE_BYTES)
    view = memoryview(memory)
    record.write(view, layout.IDENTITY, 1, IDENTITY.pack(42, 4711))
    cast = view.cast("Q")
    defaults = {"MAGIC": layout.MAGIC_VALUE, "VERSION": layout.VERSION_VALUE, "PHASE": 1}
    for name, value in {**defaults, **words}.items():
        cast[getattr(layout, name)] = value
    return memory


def test_an_empty_page():
    empty = page(PHASE=0)
    record.write(memoryview(empty), layout.IDENTITY, 0, b"")
    snapshot = parse_page(bytes(empty))
    assert snapshot.problem == ""
    assert (snapshot.phase, snapshot.pid, snapshot.sections) == (Phase.EMPTY, 0, {})
    assert snapshot.heartbeat_ns is snapshot.iteration is snapshot.error is None


def test_words_come_out_under_their_names():
    snapshot = parse_page(
        bytes(page(PHASE=3, ITERATION=8, FIRST_ITERATION=1, HEARTBEAT_NS=5, WARMUP_ITERATIONS=1))
    )
    assert (snapshot.pid, snapshot.pid_start, snapshot.phase) == (42, 4711, Phase.STEPPING)
    assert (snapshot.iteration, snapshot.first_iteration, snapshot.heartbeat_ns) == (7, 0, 5)
    assert snapshot.warmup_iterations == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"MAGIC": 0}, "does not begin"),
        ({"VERSION": 1}, "layout version 1.*use the same undaunted"),
        ({"PHASE": 7}, "phase 7"),
        ({"IDENTITY": 1}, "whose it is"),
    ],
)
def test_pages_that_cannot_be_trusted(words, problem):
    snapshot = parse_page(bytes(page(**words)))
    assert snapshot == PageSnapshot(problem=snapshot.problem)
    assert re.search(problem, snapshot.problem)


def test_a_signal_that_does_not_exist_is_not_armed():
    assert parse_page(bytes(page(EVIDENCE_SIGNAL=40))).evidence_signal == 40
    assert parse_page(bytes(page(EVIDENCE_SIGNAL=65))).evidence_signal == 0


@given(st.integers(0, 2**32))
def test_any_garbage_has_a_problem(seed):
    assert parse_page(random.Random(seed).randbytes(layout.PAGE_BYTES)).problem


@given(st.integers(0, 2**32))
def test_garbage_behind_a_good_beginning(seed):
    garbage = page()
    garbage[layout.HEAD_BYTES :] = random.Random(seed).randbytes(
        layout.PAGE_BYTES - layout.HEAD_BYTES
    )
    assert isinstance(parse_page(bytes(garbage)), PageSnapshot)


words = st.integers(0, layout.PAGE_WORDS - 1)
values = st.one_of(st.integers(0, 70), st.integers(0, 2**64 - 1))


@given(st.lists(st.tuples(words, values), max_size=20))
def test_a_page_with_some_words_overwritten(pokes):
    memory = page()
    for slot in range(3):
        record.write(memoryview(memory), layout.section_slot(slot), 1, b"section %d" % slot)
    cast = memoryview(memory).cast("Q")
    for word, value in pokes:
        cast[word] = value
    assert isinstance(parse_page(bytes(memory)), PageSnapshot)


def test_a_damaged_name_leaves_the_other_sections():
    memory = page()
    for slot in range(2):
        record.write(memoryview(memory), layout.section_slot(slot), 1, b"section %d" % slot)
    memory[layout.section_slot(0) * 8 + 30] ^= 1
    assert set(parse_page(bytes(memory)).sections) == {"section 1"}


@given(st.binary(max_size=40))
def test_events_of_garbage(body):
    event = parse_event(body)
    assert (event is None) == (len(body) < 12)


def test_a_copy_is_the_page():
    memory = memoryview(page(PHASE=3, ITERATION=8, RING_HEAD=5))
    assert copy_page(memory, memory.cast("Q")) == bytes(memory)


def test_the_ring_oldest_first():
    memory = memoryview(page())
    for number in range(30, 35):  # slot 30, 31, 0, 1, 2
        body = EVENT.pack(number, 1, 2) + b"n%02d" % number
        record.write(memory, layout.ring_slot(number), number, body)
    memory[layout.ring_slot(33) * layout.WORD_BYTES] ^= 1
    assert [event.text for event in parse_ring(bytes(memory))] == ["30", "31", "32", "34"]
    assert parse_ring(bytes(page())) == []
