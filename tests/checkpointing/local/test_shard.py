"""The form of a shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.errors import DamagedCheckpointError
from undaunted.checkpointing.local import shard


def head(**changes) -> shard.Head:
    values = {
        "format": 1,
        "iteration": 7,
        "rank": 1,
        "world_size": 2,
        "session": "s",
        "save": "a-1",
        "saved_at": 1.0,
        "kind": "k",
        "state": b"state",
        "tensors": [shard.Tensor("float32", [2], 0, 8), shard.Tensor("int8", [3], 64, 3)],
        "data_bytes": 67,
    }
    return shard.Head(**{**values, **changes})


@given(st.lists(st.integers(0, 1000)))
def test_tensors_are_aligned_and_do_not_overlap(sizes: list[int]) -> None:
    offsets, end = shard.place_tensors(sizes)
    ends = [0, *(offset + size for offset, size in zip(offsets, sizes, strict=True))]
    assert all(offset % 64 == 0 for offset in offsets)
    assert all(
        before <= offset < before + 64 for before, offset in zip(ends, offsets, strict=False)
    )
    assert end == ends[-1]


def test_head_comes_back() -> None:
    encoded = shard.encode_head(head())
    assert shard.decode_head(encoded, "f") == head()
    assert shard.head_length(encoded, "f") == (len(encoded), 4096 + 67)


def test_every_changed_or_missing_byte_of_the_head_is_noticed() -> None:
    encoded = shard.encode_head(head())
    for at in range(len(encoded)):
        flipped = encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]
        with pytest.raises(DamagedCheckpointError, match=r"^f: "):
            shard.decode_head(flipped, "f")
        with pytest.raises(DamagedCheckpointError, match=r"^f: "):
            shard.decode_head(encoded[:at], "f")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": 3}, "format 3"),
        ({"tensors": [shard.Tensor("int8", [68], 0, 68)]}, "contradicts itself"),
        ({"tensors": [shard.Tensor("int8", [1], -1, 1)]}, "contradicts itself"),
        ({"tensors": [shard.Tensor("int8", [1], 0, -1)]}, "contradicts itself"),
    ],
)
def test_heads_that_cannot_be(changes: dict, why: str) -> None:
    with pytest.raises(DamagedCheckpointError, match=why):
        shard.decode_head(shard.encode_head(head(**changes)), "f")


def test_trailer_belongs_to_its_image() -> None:
    prefix = shard.encode_head(head())
    trailer = shard.encode_trailer("0123456789abcdef", prefix)
    assert len(trailer) == shard.trailer_bytes(9, block_bytes=8)
    assert shard.decode_trailer(trailer, prefix, "f") == "0123456789abcdef"
    other = shard.encode_head(head(iteration=8))
    for content, of in [
        (trailer, other),
        (trailer[:-1], prefix),
        (trailer[1:], prefix),
        (b"", prefix),
    ]:
        with pytest.raises(DamagedCheckpointError, match="the end is missing or damaged"):
            shard.decode_trailer(content, of, "f")


def test_checksums_of_blocks() -> None:
    image = memoryview(b"abcde")
    both = shard.block_checksums(image, 3)
    assert both == shard.block_checksums(image[:3]) + shard.block_checksums(image[3:])
    assert shard.block_checksums(image[:0]) == ""
