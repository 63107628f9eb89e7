from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.memory.layout import (
    end_of,
    is_framed,
    place_frames,
    place_others,
)

lengths = st.lists(st.integers(0, 300), max_size=12)


@given(lengths, lengths)
def test_items_do_not_overlap_and_their_place_tells_what_they_are(
    framed: list[int], others: list[int]
) -> None:
    first = place_frames(framed)
    then = place_others(first, others)
    assert [place.length for place in first + then] == framed + others
    at = 0
    for place in first + then:
        assert at <= place.offset < at + 64 + 8
        at = place.offset + place.length
    assert all(is_framed(place.offset) for place in first)
    assert not any(is_framed(place.offset) for place in then)


def test_the_end() -> None:
    assert end_of([]) == 0
    assert end_of(place_frames([70, 10])) == 128 + 10
