"""What a program sees of TCP, simulated."""

from __future__ import annotations

from simulator.virtual import messages as m
from simulator.virtual.engine import Simulation
from simulator.virtual.network import NetworkRules
from tests.simulator.virtual.programs import EVEN, Program, S, client, pair, server

WILD = NetworkRules(min_delay_ns=1_000, max_delay_ns=50_000_000, loss=0.3)


def reasons(program: Program) -> list[str]:
    return [event.reason for event in program.got(m.Closed)]  # type: ignore[attr-defined]


def test_a_connection_is_made_and_carries_messages() -> None:
    simulation, calling, serving = pair("hello", "world")
    simulation.run(1 * S)
    assert len(calling.got(m.Connected)) == 1
    assert serving.got(m.Accepted) == [m.Accepted(3, "a")]
    assert serving.messages() == ["hello", "world"]


def test_a_connection_keeps_order_and_loses_nothing_whatever_the_network_does() -> None:
    for seed in range(20):
        simulation, _, serving = pair(*range(100), rules=WILD, seed=seed, timeout_s=60)
        simulation.run(600 * S)
        assert serving.messages() == list(range(100)), seed


def test_different_connections_overtake_each_other() -> None:
    simulation, _, serving = pair("one", rules=WILD, seed=3, timeout_s=60)
    simulation.start("other", client("two", timeout_s=60), "a")
    orders = set()
    for seed in range(10):
        simulation, _, serving = pair("one", rules=WILD, seed=seed, timeout_s=60)
        simulation.start("other", client("two", timeout_s=60), "a")
        simulation.run(60 * S)
        orders.add(tuple(serving.messages()))
    assert orders == {("one", "two"), ("two", "one")}


def test_nobody_listens_is_refused_at_once() -> None:
    simulation = Simulation(1, rules=EVEN)
    simulation.boot("a")
    simulation.boot("b")
    calling = client()
    simulation.start("client", calling, "a")
    simulation.run(5 * S)
    assert calling.seen[-1] == (2_000_000, m.ConnectFailed("up", "refused"))


def test_a_machine_without_power_does_not_answer() -> None:
    simulation, calling, _ = pair(timeout_s=3)
    simulation.power_off("b")
    simulation.run(60 * S)
    assert calling.seen[-1] == (3 * S, m.ConnectFailed("up", "timed out"))


def test_a_machine_that_does_not_exist_does_not_answer() -> None:
    simulation = Simulation(1, rules=EVEN)
    simulation.boot("a")
    calling = client(timeout_s=2)
    simulation.start("client", calling, "a")
    simulation.run(60 * S)
    assert calling.got(m.ConnectFailed) == [m.ConnectFailed("up", "timed out")]


def test_the_request_for_a_connection_is_sent_again() -> None:
    simulation, calling, _ = pair(timeout_s=5)
    cut = simulation.cut({"b"}, {"a"})  # the answer would not pass
    simulation.at(2 * S, simulation.heal, cut)
    simulation.run(60 * S)
    (time,) = [time for time, event in calling.seen if isinstance(event, m.Connected)]
    assert 3 * S < time < 4 * S


def test_a_killed_process_is_noticed_at_once() -> None:
    seen = set()
    for seed in range(10):
        simulation, calling, _ = pair("hello", seed=seed)
        simulation.run(1 * S)
        simulation.kill("server")
        simulation.run(2 * S)
        assert calling.seen[-1][0] == 1 * S + 1_000_000
        seen.update(reasons(calling))
    assert seen == {"end of file", "reset"}


def test_power_loss_is_silence_until_the_machine_is_back() -> None:
    simulation, calling, _ = pair("hello")
    simulation.run(1 * S)
    simulation.power_off("b")
    simulation.tell("client", "anybody?")
    simulation.run(100 * S)
    assert reasons(calling) == []
    simulation.boot("b")
    simulation.tell("client", "anybody now?")
    simulation.run(101 * S)
    assert reasons(calling) == ["reset"]


def test_what_is_sent_into_a_cut_link_arrives_when_it_has_healed() -> None:
    simulation, _, serving = pair("hello")
    simulation.run(1 * S)
    cut = simulation.cut({"a"}, {"b"})
    simulation.tell("client", "one")
    simulation.tell("client", "two")
    simulation.run(11 * S)
    assert serving.messages() == ["hello"]
    simulation.heal(cut)
    simulation.tell("client", "three")
    simulation.run(60 * S)
    assert serving.messages() == ["hello", "one", "two", "three"]
    (late,) = {time for time, event in serving.seen if event == m.Received(3, "two")}
    assert 11 * S <= late <= 21 * S


def test_a_cut_of_one_direction_lets_the_other_pass() -> None:
    simulation, calling, serving = pair("hello")
    simulation.run(1 * S)
    simulation.cut({"b"}, {"a"})
    assert simulation.reaches("a", "b")
    assert not simulation.reaches("b", "a")
    simulation.tell("client", "heard")
    simulation.run(2 * S)
    assert serving.messages() == ["hello", "heard"]
    simulation.kill("server")
    simulation.run(60 * S)
    assert reasons(calling) == []  # half open


def test_two_cuts_of_a_link_must_both_heal() -> None:
    simulation, _, serving = pair()
    simulation.run(1 * S)
    one, other = simulation.cut({"a"}, {"b"}), simulation.cut({"a", "c"}, {"b"})
    simulation.tell("client", "word")
    simulation.run(2 * S)
    simulation.heal(one)
    simulation.run(20 * S)
    assert serving.messages() == []
    simulation.heal(other)
    simulation.heal(other)  # nothing
    simulation.run(60 * S)
    assert serving.messages() == ["word"]


def test_what_a_machine_had_not_delivered_is_lost_with_its_power() -> None:
    simulation, _, serving = pair()
    simulation.run(1 * S)
    cut = simulation.cut({"a"}, {"b"})
    simulation.tell("client", "word")
    simulation.run(2 * S)
    simulation.power_off("a")
    simulation.boot("a")
    simulation.heal(cut)
    simulation.run(60 * S)
    assert serving.messages() == []


def test_broken_connections_are_reset_at_both_ends() -> None:
    simulation, calling, serving = pair("hello")
    simulation.run(1 * S)
    assert simulation.break_connections("a", "b") == 1
    simulation.run(2 * S)
    assert reasons(calling) == reasons(serving) == ["reset"]


def test_who_closes_is_told_nothing_more() -> None:
    simulation = Simulation(1, rules=EVEN)
    simulation.boot("a")
    simulation.boot("b")

    def hang_up(event: m.Event):
        match event:
            case m.Started():
                return [m.Listen("b:1")]
            case m.Received():
                return [m.Send(event.connection, "bye"), m.Close(event.connection)]
        return []

    serving, calling = Program(hang_up), client("one", "two")
    simulation.start("server", serving, "b")
    simulation.run(0)
    simulation.start("client", calling, "a")
    simulation.run(1 * S)
    assert serving.messages() == ["one"]
    assert reasons(serving) == []
    assert calling.messages() == ["bye"]
    assert len(reasons(calling)) == 1


def test_a_paused_process_is_connected_to_all_the_same() -> None:
    simulation, calling, serving = pair("hello")
    simulation.pause("server")
    simulation.run(10 * S)
    assert len(calling.got(m.Connected)) == 1
    assert serving.messages() == []
    simulation.resume("server")
    assert serving.messages() == ["hello"]


def test_a_listener_that_dies_while_a_connection_is_made_resets_it() -> None:
    simulation, calling, _ = pair("hello")
    simulation.run(1_500_000)  # the request has arrived, the answer is on its way
    simulation.kill("server")
    simulation.run(1 * S)
    assert reasons(calling) == ["reset"]


def test_the_address_is_free_for_the_next_process() -> None:
    simulation, _, _ = pair()
    simulation.run(1 * S)
    simulation.kill("server")
    again = server()
    simulation.start("server", again, "b")
    simulation.run(2 * S)
    simulation.start("second", client("hello"), "a")
    simulation.run(3 * S)
    assert again.messages() == ["hello"]
