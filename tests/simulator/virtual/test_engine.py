"""Processes, timers, pauses; and the same seed gives the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.virtual import messages as m
from simulator.virtual.engine import Simulation
from simulator.virtual.network import NetworkRules
from tests.simulator.virtual.programs import EVEN, Program, S, pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def alone(react: Callable[[m.Event], Iterable[m.Command]]) -> tuple[Simulation, Program]:
    simulation, program = Simulation(1, rules=EVEN), Program(react)
    simulation.boot("a")
    simulation.start("p", program, "a")
    return simulation, program


def timers(*commands: m.Command) -> tuple[Simulation, Program]:
    """A process that sets timers when it starts and carries out what it is told."""

    def react(event: m.Event) -> Iterable[m.Command]:
        match event:
            case m.Started():
                return commands
            case m.Told():
                return [event.what]
        return []

    return alone(react)


def fired(program: Program) -> list[tuple[int, str]]:
    return [(time, e.name) for time, e in program.seen if isinstance(e, m.TimerFired)]


def test_a_timer_fires_once_at_its_time() -> None:
    simulation, program = timers(m.SetTimer("x", 3 * S), m.SetTimer("y", 2 * S))
    simulation.run(10 * S)
    assert fired(program) == [(2 * S, "y"), (3 * S, "x")]


def test_a_timer_is_put_off_brought_forward_and_cancelled() -> None:
    simulation, program = timers(*(m.SetTimer(name, 3 * S) for name in "xyz"))
    simulation.run(1 * S)
    simulation.tell("p", m.SetTimer("x", 5 * S))
    simulation.tell("p", m.SetTimer("y", 1 * S))
    simulation.tell("p", m.CancelTimer("z"))
    simulation.tell("p", m.CancelTimer("never set"))
    simulation.run(60 * S)
    assert fired(program) == [(2 * S, "y"), (6 * S, "x")]


def test_a_timer_that_is_put_off_for_ever_costs_little() -> None:
    simulation, program = timers(m.SetTimer("lease", 5 * S))
    for ms in range(4000):
        simulation.at(ms * 1_000_000, lambda _: simulation.tell("p", m.SetTimer("lease", 5 * S)))
    simulation.run(60 * S)
    assert fired(program) == [(8_999_000_000, "lease")]
    assert simulation.schedule.entries < 4010


def test_a_paused_process_gets_everything_late_and_in_order() -> None:
    simulation, program = timers(m.SetTimer("x", 2 * S))
    simulation.run(1 * S)
    simulation.pause("p")
    simulation.run(3 * S)
    simulation.tell("p", m.SetTimer("y", 1 * S))
    assert fired(program) == []
    simulation.run(10 * S)
    simulation.resume("p")
    simulation.run(60 * S)
    assert fired(program) == [(10 * S, "x"), (11 * S, "y")]


def test_a_timer_set_anew_before_a_paused_process_heard_of_it_does_not_fire_twice() -> None:
    simulation, program = timers(m.SetTimer("x", 2 * S))
    simulation.run(1 * S)
    simulation.pause("p")
    simulation.tell("p", m.SetTimer("x", 2 * S))  # handled first
    simulation.run(10 * S)
    simulation.resume("p")
    simulation.run(60 * S)
    assert fired(program) == [(12 * S, "x")]


def test_a_slow_process_takes_its_time_for_every_event() -> None:
    simulation, _, serving = pair("one", "two", "three")
    simulation.slow("server", 1 * S)
    simulation.run(60 * S)
    times = [time // S for time, event in serving.seen if isinstance(event, m.Received)]
    assert times == [2, 3, 4]  # the connection itself came first


def test_a_process_that_is_fast_again_keeps_the_order() -> None:
    simulation, _, serving = pair("one", "two")
    simulation.slow("server", 1 * S)
    simulation.run(1 * S)
    simulation.slow("server", 0)
    simulation.tell("client", "three")
    simulation.run(60 * S)
    assert serving.messages() == ["one", "two", "three"]


def test_a_slow_process_that_is_paused_keeps_the_order() -> None:
    simulation, _, serving = pair("one", "two")
    simulation.slow("server", 1 * S)
    simulation.run(500_000_000)
    simulation.pause("server")
    simulation.tell("client", "three")
    simulation.run(10 * S)
    simulation.resume("server")
    simulation.run(60 * S)
    assert serving.messages() == ["one", "two", "three"]


def test_a_killed_process_is_over_and_its_name_is_free() -> None:
    simulation, program = timers(m.SetTimer("x", 2 * S))
    simulation.run(1 * S)
    simulation.kill("p")
    assert not simulation.is_alive("p")
    again = Program()
    simulation.start("p", again, "a")
    simulation.run(60 * S)
    assert fired(program) == []
    assert again.got(m.Started) == [m.Started()]


def test_a_process_may_end_itself_and_does_nothing_after_it() -> None:
    simulation, program = timers(m.Exit(), m.SetTimer("x", 1))
    simulation.run(60 * S)
    assert not simulation.is_alive("p")
    assert program.seen == [(0, m.Started())]


def test_what_is_done_to_nobody_is_nothing() -> None:
    simulation, _ = timers()
    for act in (simulation.kill, simulation.pause, simulation.resume):
        act("nobody")
    simulation.slow("nobody", 1)
    simulation.tell("nobody", "word")


def test_a_run_can_be_stopped_by_what_has_happened() -> None:
    simulation, _, serving = pair("one", "two")
    simulation.run(60 * S, stop=lambda: bool(serving.messages()))
    assert serving.messages() == ["one"]
    assert simulation.now < 1 * S


def story(seed: int) -> list[tuple[int, str, m.Event]]:
    seen: list[tuple[int, str, m.Event]] = []
    rules = NetworkRules(loss=0.2)
    simulation = Simulation(
        seed, rules=rules, trace=lambda now, name, event: seen.append((now, name, event))
    )
    for machine in "ab":
        simulation.boot(machine)

    def chatter(event: m.Event) -> Iterable[m.Command]:
        match event:
            case m.Started():
                return [m.Listen("b:1"), m.Connect("up", "b:1", S), m.SetTimer("again", S)]
            case m.TimerFired():
                return [m.Connect("up", "b:1", S), m.SetTimer("again", S)]
            case m.Connected():
                return [m.Send(event.connection, n) for n in range(5)]
            case m.Received():
                return [m.Close(event.connection)] if event.message == 4 else []
        return []

    simulation.start("x", Program(chatter), "a")
    simulation.start("y", Program(chatter), "b")
    simulation.at(3 * S, simulation.kill, "x")
    simulation.run(10 * S)
    assert simulation.events == len(seen)
    return seen


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    assert story(7) == story(7)
    assert story(7) != story(8)
