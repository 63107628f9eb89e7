"""Code of asyncio in a simulated process: its loop, and its network beside that of real sockets."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest

from simulator.virtual.engine import Simulation
from simulator.virtual.program import Program
from undaunted.coordinator import protocol as p
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.network import Sockets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from undaunted.coordinator.wire.network import Network

    # Called with a network and the name of this machine in it.
    Scenario = Callable[[Network, str], Awaitable[Any]]

S = 1_000_000_000
LONGEST = p.MAX_MESSAGE_BYTES
QUESTION, ANSWER = p.Refused(reason="are you there?"), p.Refused(reason="yes")


class Running(Program):
    """A process that runs one coroutine."""

    def __init__(self, simulation: Simulation, scenario: Scenario, machine: str = "here") -> None:
        super().__init__(machine, simulation.listens)
        self._scenario, self.result = scenario, None
        simulation.boot(machine)
        simulation.start(machine, self, machine)

    def started(self) -> None:
        self.loop.create_task(self._run())

    async def _run(self) -> None:
        self.result = await self._scenario(self, self.machine)


def in_simulation(scenario: Scenario) -> Any:
    simulation = Simulation(1)
    running = Running(simulation, scenario)
    simulation.run(60 * S)
    return running.result


def over_sockets(scenario: Scenario) -> Any:
    return asyncio.run(scenario(Sockets(Terms("job", "0")), "127.0.0.1"))  # type: ignore[arg-type]


class End:
    """A handler that writes down what it is told; ``answers``: it does, and then goes."""

    def __init__(self, *, answers: bool = False, goes: bool = False) -> None:
        self._answers, self._goes = answers, goes
        self.told: list[Any] = []
        self.over = asyncio.Event()
        self.heard = asyncio.Event()

    def opened(self, connection: Any) -> None:
        self.told.append("opened")

    def received(self, connection: Any, message: Any) -> None:
        self.told.append(message.reason)
        self.heard.set()
        if self._answers:
            connection.send(ANSWER)
        if self._goes:
            connection.close("it goes")

    def closed(self, connection: Any, reason: str) -> None:
        self.told += [reason, connection.was_ended, connection.send(QUESTION)]
        self.over.set()


@pytest.fixture(params=[over_sockets, in_simulation], ids=["sockets", "simulation"])
def within(request: pytest.FixtureRequest) -> Callable[[Scenario], Any]:
    return request.param


async def listening(network: Network, handler: End, port: int = 0) -> Any:
    server = network.server(port, handler, nodes=1, say=lambda _: None)
    await server.start()
    return server


@pytest.mark.parametrize("who", ["server", "client"])
def test_both_ends_are_told_the_same(within: Any, who: str) -> None:
    async def scenario(network: Network, here: str) -> Any:
        answers, asks = End(answers=True, goes=who == "server"), End(goes=who == "client")
        server = await listening(network, answers)
        where = f"{here}:{server.port}"
        connection = await network.connect(where, asks, longest=LONGEST, timeout_s=5.0)
        assert asks.told == ["opened"]
        assert connection.send(QUESTION)
        await asyncio.gather(asks.over.wait(), answers.over.wait())
        await server.close("over")
        return answers.told, asks.told

    other = ["the other side closed the connection", True, False]
    own = ["it goes", False, False]
    assert within(scenario) == (
        ["opened", QUESTION.reason, *(own if who == "server" else other)],
        ["opened", ANSWER.reason, *(own if who == "client" else other)],
    )


def test_a_server_that_closes_ends_all_connections(within: Any) -> None:
    async def scenario(network: Network, here: str) -> Any:
        answers, asks = End(), End()
        server = await listening(network, answers)
        where = f"{here}:{server.port}"
        await network.connect(where, asks, longest=LONGEST, timeout_s=5.0)
        await server.close("the launcher ends")
        await asks.over.wait()
        return answers.told[1:3], asks.told[2]

    assert within(scenario) == (["the launcher ends", False], True)


def test_where_nobody_listens_a_connection_is_refused(within: Any) -> None:
    async def scenario(network: Network, here: str) -> Any:
        with pytest.raises(WireError) as refused:
            await network.connect(f"{here}:1", End(), longest=LONGEST, timeout_s=5.0)
        return refused.value.number, refused.value.refused

    assert within(scenario) == (errno.ECONNREFUSED, False)


def test_a_port_is_taken_once(within: Any) -> None:
    async def scenario(network: Network, here: str) -> Any:
        first = await listening(network, End())
        with pytest.raises(WireError) as taken:
            await listening(network, End(), first.port)
        other = await listening(network, End())
        ports = first.port != other.port
        await first.close("over")
        await other.close("over")
        return taken.value.number, ports

    assert within(scenario) == (errno.EADDRINUSE, True)


def test_a_machine_without_power_does_not_answer_in_time() -> None:
    async def scenario(network: Network, here: str) -> Any:
        began = network.now_ns()
        with pytest.raises(WireError) as late:
            await network.connect("there:1", End(), longest=LONGEST, timeout_s=3.0)
        return late.value.number, network.now_ns() - began

    assert in_simulation(scenario) == (errno.ETIMEDOUT, 3 * S)


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    async def scenario(network: Network, here: str) -> Any:
        loop, fired = asyncio.get_running_loop(), []
        for number in range(5):
            loop.call_at(1.0, fired.append, number)
        loop.call_later(0.5, fired.append, "first").cancel()
        await asyncio.sleep(2.0)
        return fired, loop.time()

    fired, time = in_simulation(scenario)
    assert fired == [0, 1, 2, 3, 4]
    assert 2.0 <= time < 2.001


def test_who_has_stood_still_finds_what_has_come_before_its_timers() -> None:
    simulation, seen = Simulation(1), []

    async def waits(network: Network, here: str) -> None:
        class Notes(End):
            def received(self, connection: Any, message: Any) -> None:
                seen.append("a message")

        await listening(network, Notes(), 1)
        asyncio.get_running_loop().call_later(3.0, seen.append, "a timer")
        await asyncio.sleep(60.0)

    async def sends(network: Network, here: str) -> None:
        connection = await network.connect("here:1", End(), longest=LONGEST, timeout_s=5.0)
        await asyncio.sleep(5.0)
        connection.send(QUESTION)

    Running(simulation, waits)
    Running(simulation, sends, "there")
    simulation.run(2 * S)
    simulation.pause("here")
    simulation.run(8 * S)
    simulation.resume("here")
    simulation.run(9 * S)
    assert seen == ["a message", "a timer"]


def test_what_a_task_raises_is_found_at_once() -> None:
    async def scenario(network: Network, here: str) -> None:
        async def fails() -> None:
            raise ZeroDivisionError

        task = asyncio.get_running_loop().create_task(fails())
        await asyncio.sleep(1.0)
        assert task.done()

    with pytest.raises(ZeroDivisionError):
        in_simulation(scenario)


def test_calls_in_threads_are_made_a_moment_later() -> None:
    async def scenario(network: Network, here: str) -> Any:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 1)

    assert in_simulation(scenario) == 1
