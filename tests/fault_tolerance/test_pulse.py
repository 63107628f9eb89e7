from __future__ import annotations

from undaunted.fault_tolerance.pulse import BEAT_S, Pulse, Standstill


def looks(standstill: Standstill, from_s: float, to_s: float) -> list[float]:
    """When it says that ranks have outlived their agent."""
    times = int((to_s - from_s) / BEAT_S)
    moments = [from_s + BEAT_S * number for number in range(times)]
    return [each for each in moments if standstill.look(each)]


def test_ranks_are_ended_once_where_their_agent_stands_still():
    pulse = Pulse()
    standstill = Standstill(pulse)
    pulse.beat(5.0)
    (ended_s,) = looks(standstill, 100.0, 200.0)
    assert 105.0 <= ended_s <= 105.0 + BEAT_S
    pulse.beat(5.0)
    assert len(looks(standstill, 200.0, 300.0)) == 1


def test_an_agent_that_lives_keeps_its_ranks():
    pulse = Pulse()
    standstill = Standstill(pulse)
    for number in range(100):
        pulse.beat(1.0)
        assert not standstill.look(number * BEAT_S)


def test_without_a_limit_ranks_live_on():
    pulse = Pulse()
    standstill = Standstill(pulse)
    assert not looks(standstill, 0.0, 100.0)
    pulse.beat(0.0)
    assert not looks(standstill, 100.0, 200.0)


def test_an_agent_that_stood_still_with_its_front_is_given_time():
    pulse = Pulse()
    standstill = Standstill(pulse)
    pulse.beat(5.0)
    assert not looks(standstill, 0.0, 1.0)
    assert not standstill.look(3600.0)
    pulse.beat(5.0)
    assert not looks(standstill, 3600.0, 3604.0)


def test_an_agent_that_goes_on_sees_when_its_front_has_ended_the_ranks():
    pulse = Pulse()
    pulse.beat(5.0)
    assert pulse.ranks_ended_ns == 0
    pulse.end_ranks(17)
    pulse.beat(5.0)
    assert (pulse.ranks_ended_ns, pulse.read()) == (17, (2, 5.0))
