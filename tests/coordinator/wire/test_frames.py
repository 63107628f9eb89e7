from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.wire.frames import FrameDecoder, FrameError, encode


def drain(decoder: FrameDecoder) -> list[bytes]:
    found = []
    while (frame := decoder.next()) is not None:
        found.append(frame)
    return found


def test_a_frame_is_length_and_content() -> None:
    assert encode(b"abc") == b"\0\0\0\x03abc"


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 200), min_size=1))
def test_frames_come_out_however_the_stream_is_cut(contents: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(encode, contents))
    decoder = FrameDecoder(300)
    found = []
    turn = 0
    while stream:
        size = cuts[turn % len(cuts)]
        turn += 1
        decoder.feed(stream[:size])
        stream = stream[size:]
        found += drain(decoder)
    assert found == contents


def test_a_frame_that_is_too_long_is_refused_by_its_length_alone() -> None:
    decoder = FrameDecoder(100)
    decoder.feed(encode(b"x" * 100) + b"\0\0\0\x65")
    assert decoder.next() == b"x" * 100
    with pytest.raises(FrameError, match="a frame of 101 bytes, 100 are allowed"):
        decoder.next()


def test_the_limit_may_change_between_two_frames_that_came_together() -> None:
    decoder = FrameDecoder(1)
    decoder.feed(encode(b"a") + encode(b"long"))
    assert decoder.next() == b"a"
    decoder.longest = 4
    assert decoder.next() == b"long"


def test_what_was_read_is_not_kept() -> None:
    decoder = FrameDecoder(1000)
    for _ in range(1000):
        decoder.feed(encode(b"x" * 1000)[:700])
        drain(decoder)
        decoder.feed(encode(b"x" * 1000)[700:])
        drain(decoder)
        assert len(decoder._buffer) <= 1004


@given(st.binary(max_size=2000))
def test_any_bytes_give_frames_or_a_frame_error(data: bytes) -> None:
    decoder = FrameDecoder(500)
    decoder.feed(data)
    try:
        found = drain(decoder)
    except FrameError:
        return
    assert sum(len(frame) + 4 for frame in found) <= len(data)


def test_tls_where_there_is_none_is_named() -> None:
    decoder = FrameDecoder(100)
    decoder.feed(b"\x16\x03\x01\x02\x00\x01\x00")
    with pytest.raises(FrameError, match="it uses TLS, and this side does not"):
        decoder.next()
