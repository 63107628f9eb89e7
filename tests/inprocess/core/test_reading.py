"""Pages are decoded as they were written; what is none is not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.inprocess.core import reading as r

words = st.integers(0, 2**63 - 1)


@given(
    st.builds(
        r.Reading,
        auto_ns=words,
        ping_ns=words,
        pings=words,
        phase=st.sampled_from(r.Phase),
        unguarded=words,
        atomic=words,
        atomic_since_ns=words,
        call=st.integers(-1, 10),
        epoch=st.integers(-1, 10),
        rank=st.integers(-1, 10),
    )
)
def test_a_page_is_read_as_it_was_written(reading: r.Reading) -> None:
    assert r.decode(r.encode(reading).ljust(r.PAGE_BYTES, b"\0")) == reading


def test_the_words_have_the_indices_that_writers_use() -> None:
    page = bytearray(r.PAGE_BYTES)
    values = {r.AUTO_NS: 11, r.PING_NS: 12, r.PINGS: 13, r.PHASE: 3, r.UNGUARDED: 15}
    values |= {r.ATOMIC: 16, r.ATOMIC_SINCE_NS: 17, r.CALL: 18, r.EPOCH: 19, r.RANK: 20}
    for index, value in {0: r.MAGIC, **values}.items():
        struct.pack_into("=q", page, index * r.WORD_BYTES, value)
    assert r.decode(page) == r.Reading(11, 12, 13, r.Phase.RECOVERING, 15, 16, 17, 18, 19, 20)


@pytest.mark.parametrize(
    "page", [b"", bytes(r.PAGE_BYTES), b"\xff" * r.PAGE_BYTES, r.encode(r.Reading(1))[:-1]]
)
def test_what_is_no_page_is_not_read(page: bytes) -> None:
    assert r.decode(page) is None


def test_an_unknown_phase_is_not_read() -> None:
    page = bytearray(r.encode(r.Reading(1)))
    struct.pack_into("=q", page, r.PHASE * r.WORD_BYTES, 4)
    assert r.decode(page) is None
