from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal import sample
from undaunted.journal.events import JobStarted, RankEvent, RoundStarted
from undaunted.journal.lines import MAX_LINE, decode, encode

TEXT = st.text(st.characters())  # also lone surrogates


@pytest.mark.parametrize("event", sample.RUN, ids=lambda event: type(event).__name__)
def test_every_event_survives_its_line(event: RankEvent) -> None:
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == event


@given(text=TEXT, name=TEXT)
def test_any_text_fits_in_a_line(text: str, name: str) -> None:
    line = encode(RankEvent(t=1, rank=0, name=name, at_ns=1, text=text))
    assert line.count(b"\n") == 1
    assert isinstance(decode(line), RankEvent)


def test_long_lists_and_texts_are_shortened() -> None:
    event = RoundStarted(t=1, world_size=1, ranks=[10**9] * 500_000)
    shortened = decode(encode(event))
    assert isinstance(shortened, RoundStarted)
    assert len(shortened.ranks) == 4096
    long = RankEvent(t=1, rank=0, name="e", at_ns=1, text="x" * 2 * MAX_LINE)
    assert len(encode(long)) < 5000


def test_an_event_that_cannot_be_shortened_is_refused() -> None:
    event = JobStarted(t=1, run_id="r", argv=["x" * 5000] * 4096, nproc_per_node=1, max_restarts=0)
    with pytest.raises(ValueError, match="does not fit"):
        encode(event)


@pytest.mark.parametrize("t", [-1, 2**63, 10**400])
def test_times_out_of_range_are_refused(t: int) -> None:
    line = b'{"event":"rank_event","t":%d,"rank":0,"name":"e","at_ns":1}' % t
    with pytest.raises(msgspec.DecodeError):
        decode(line)
