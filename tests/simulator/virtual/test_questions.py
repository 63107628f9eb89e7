"""A question and its answer, whatever happens to those who exchange them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.virtual import messages as m
from simulator.virtual.engine import Simulation
from tests.simulator.virtual.programs import EVEN, Program, S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MS = 1_000_000


def answering(event: m.Event) -> Iterable[m.Command]:
    match event:
        case m.Started():
            return [m.Listen("b:1")]
        case m.Asked():
            return [m.Answer(event.question, f"{event.message} to you")]
    return []


def asking(event: m.Event) -> Iterable[m.Command]:
    return [m.Ask("who", "b:1", "hello", 1 * S)] if isinstance(event, m.Told) else []


def two(answer: Callable[[m.Event], Iterable[m.Command]] = answering) -> tuple[Simulation, Program]:
    """A process on ``a`` that asks when it is told something, and one on ``b`` that answers."""
    simulation, asks = Simulation(1, rules=EVEN), Program(asking)
    for machine in "ab":
        simulation.boot(machine)
    simulation.start("answering", Program(answer), "b")
    simulation.start("asking", asks, "a")
    simulation.run(0)
    return simulation, asks


def outcome(simulation: Simulation, asks: Program, at_ns: int = 0) -> tuple[int, object]:
    """Ask, and return how long it took and what came of it."""
    simulation.at(at_ns, lambda _: simulation.tell("asking", "ask"))
    simulation.run(at_ns + 60 * S)
    (time,) = [time for time, event in asks.seen if isinstance(event, m.Answered)]
    (answered,) = asks.got(m.Answered)
    assert isinstance(answered, m.Answered)
    assert answered.label == "who"
    return time - at_ns, answered.message


def test_an_answer_takes_the_trips_of_a_connection() -> None:
    simulation, asks = two()
    assert outcome(simulation, asks) == (6 * MS, "hello to you")


def test_nobody_listens_is_known_in_a_moment() -> None:
    simulation, asks = two()
    simulation.kill("answering")
    assert outcome(simulation, asks) == (5 * MS, None)


def test_a_process_that_ends_before_the_question_arrives_does_not_answer() -> None:
    simulation, asks = two()
    simulation.at(3 * MS, lambda _: simulation.kill("answering"))
    assert outcome(simulation, asks) == (5 * MS, None)


def test_a_machine_without_power_does_not_answer_in_time() -> None:
    simulation, asks = two()
    simulation.power_off("b")
    assert outcome(simulation, asks) == (1 * S, None)


def test_a_machine_that_loses_power_meanwhile_does_not_answer_in_time() -> None:
    simulation, asks = two()
    simulation.at(3 * MS, lambda _: simulation.power_off("b"))
    assert outcome(simulation, asks) == (1 * S, None)


def test_a_paused_process_is_not_told_later() -> None:
    simulation, asks = two()
    simulation.pause("answering")
    simulation.at(5 * S, lambda _: simulation.resume("answering"))
    assert outcome(simulation, asks) == (1 * S, None)
    assert simulation.events == 4  # both started; told, answered


def test_a_slow_process_answers_late_or_too_late() -> None:
    for delay_ms, expected in ((500, (506 * MS, "hello to you")), (2000, (1 * S, None))):
        simulation, asks = two()
        simulation.slow("answering", delay_ms * MS)
        assert outcome(simulation, asks) == expected


def test_a_process_that_says_nothing_is_waited_for_no_longer_than_the_deadline() -> None:
    listening = [m.Listen("b:1")]
    simulation, asks = two(lambda event: listening if isinstance(event, m.Started) else [])
    assert outcome(simulation, asks) == (1 * S, None)


def test_a_cut_in_either_direction_loses_the_question_or_the_answer() -> None:
    for sources, targets in (("a", "b"), ("b", "a")):
        # Before the request, the question and the answer arrive.
        for at_ns in (0, 3 * MS, 5 * MS + 1):
            simulation, asks = two()
            simulation.at(at_ns, lambda _, s=simulation, w=(sources, targets): s.cut(*w))
            came = (at_ns, sources) == (5 * MS + 1, "a")
            assert outcome(simulation, asks) == (
                (6 * MS, "hello to you") if came else (1 * S, None)
            )


def test_who_has_asked_and_ended_is_not_told() -> None:
    simulation, asks = two()
    simulation.at(0, lambda _: simulation.tell("asking", "ask"))
    simulation.at(3 * MS, lambda _: simulation.kill("asking"))
    simulation.run(60 * S)
    assert asks.got(m.Answered) == []


def test_a_second_answer_goes_nowhere() -> None:
    simulation, asks = two(lambda event: [*answering(event), *answering(event)])
    assert outcome(simulation, asks) == (6 * MS, "hello to you")
