"""Events are picked out in the same way of any sequence, and of a group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.journal import events as e
from undaunted.journal.query import Group, by_round, every, first, time_of

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
def test_a_group_tells_what_a_list_does(some: list[e.Event], kind: type[e.Event]) -> None:
    group = Group(some)
    for _ in range(2):
        assert every(group, kind) == every(some, kind)
        assert first(group, kind) == first(some, kind)
        assert by_round(group) == by_round(some)


@given(events())
def test_rounds_ascend_and_have_all_their_events(some: list[e.Event]) -> None:
    rounds = by_round(some)
    assert list(rounds) == sorted(rounds)
    assert sum(map(len, rounds.values())) == sum(event.round >= 0 for event in some)
    assert all(event.round == number for number, group in rounds.items() for event in group)


def test_what_a_group_gives_may_be_changed() -> None:
    group = Group([e.RoundStopped(t=1)])
    every(group, e.RoundStopped).clear()
    assert time_of(first(group, e.RoundStopped)) == 1
    assert time_of(first(group, e.Decision)) is None
