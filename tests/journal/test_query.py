"""Events are picked out by kind and by round."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.journal import events as e
from undaunted.journal.query import by_round, every, first

KINDS = st.sampled_from([e.Decision, e.RoundStopped, e.StopRequested])


@st.composite
def events(draw: st.DrawFn) -> list[e.Event]:
    fields = {
        e.Decision: {"action": "end", "reason": ""},
        e.RoundStopped: {},
        e.StopRequested: {"reason": "", "grace_s": 1.0},
    }
    drawn = draw(st.lists(st.tuples(KINDS, st.integers(-1, 3)), max_size=20))
    return [kind(t=n, round=number, **fields[kind]) for n, (kind, number) in enumerate(drawn)]


@given(events(), KINDS)
def test_the_first_is_the_first_of_all(some: list[e.Event], kind: type[e.Event]) -> None:
    assert first(some, kind) == next(iter(every(some, kind)), None)


@given(events())
def test_rounds_ascend_and_have_all_their_events(some: list[e.Event]) -> None:
    rounds = by_round(some)
    assert list(rounds) == sorted(rounds)
    assert sum(map(len, rounds.values())) == sum(event.round >= 0 for event in some)
    assert all(event.round == number for number, group in rounds.items() for event in group)
