from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.fault_tolerance.agent.orders.test_past import ran
from undaunted.coordinator.core import messages as m
from undaunted.fault_tolerance.agent.inprocess.inprocess import InProcess
from undaunted.fault_tolerance.agent.orders import shared_orders
from undaunted.fault_tolerance.agent.turns import Turns
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.run_config import RunConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("UNDAUNTED_TOKEN", "a token of the tests")


class Launcher:
    """What `SharedOrders` needs of an agent; keeps what it is told."""

    def __init__(
        self,
        directory: Path,
        endpoint: str,
        node: str = "a",
        reserve: Callable[[], int] = lambda: 1,
        **nodes: object,
    ) -> None:
        about = {"min_nodes": 1, "max_nodes": 1, "is_host": True, "address": "127.0.0.1"}
        place = str(directory)
        config = RunConfig(
            run_id="job",
            node=node,
            nodes=Nodes(endpoints=[endpoint], **{**about, **nodes}),
            nproc_per_node=1,
            max_restarts=0,
            kind="program",
            target="sleep",
            args=[],
            cwd=place,
            run_dir=place,
            log_dir=place,
            stdout=[0],
            stderr=[0],
        )
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.ordered: asyncio.Queue[m.Command] = asyncio.Queue()
        self.orders = shared_orders.SharedOrders(
            config,
            "0",
            Turns(),
            self.ordered.put_nowait,
            reserve,
            self.said.put_nowait,
            InProcess(config, cast("Any", SimpleNamespace(say=self.said.put_nowait))),
        )

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[Launcher]:
        await self.orders.join()
        try:
            yield self
        finally:
            await self.orders.close()

    async def says(self, text: str) -> str:
        return await asyncio.wait_for(self._next(self.said, text), DEADLINE_S)

    async def order(self, kind: type[m.Command]) -> m.Command:
        while not isinstance(order := await self._next(self.ordered, ""), kind):
            pass
        return order

    async def _next(self, queue: asyncio.Queue, text: str):
        while text not in str(item := await asyncio.wait_for(queue.get(), DEADLINE_S)):
            pass
        return item


def test_a_port_that_somebody_else_has_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shared_orders, "_HOST_AGAIN_S", 0.01)

    async def run(endpoint: str) -> None:
        async with Launcher(tmp_path, endpoint, first_round_timeout_s=0.3).joined() as it:
            said = await it.says("cannot listen")
            assert said.startswith(f"cannot listen at {endpoint}: address already in use; ")
            end = await it.order(m.End)
            assert isinstance(end, m.End)
            assert end.outcome is m.Outcome.FAILED
            assert end.reason.startswith("no coordinator for 0.3 s")
            assert end.reason.endswith(f"; cannot listen at {endpoint}: address already in use")

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        asyncio.run(run(f"127.0.0.1:{other.getsockname()[1]}"))


def test_a_node_whose_port_for_rank_0_cannot_be_had_takes_no_part(tmp_path: Path) -> None:
    def in_use() -> int:
        raise OSError(98, "port 29500 of rank 0's store cannot be had")

    async def run(endpoint: str) -> None:
        one = Launcher(tmp_path, endpoint, reserve=in_use, max_nodes=2, min_nodes=2)
        two = Launcher(tmp_path, endpoint, "b", max_nodes=2, min_nodes=2, is_host=False)
        async with one.joined(), two.joined():
            for launcher in (one, two):
                end = await launcher.order(m.End)
                assert isinstance(end, m.End)
                assert end.outcome is m.Outcome.EXCLUDED
                assert end.reason.startswith("node a is unhealthy: port 29500 of rank 0's store")

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    asyncio.run(run(endpoint))


def test_launchers_that_differ_say_so_on_both_nodes(tmp_path: Path) -> None:
    async def run(endpoint: str) -> None:
        one = Launcher(tmp_path, endpoint, max_nodes=2, min_nodes=2)
        two = Launcher(tmp_path, endpoint, "b", max_nodes=3, min_nodes=2, is_host=False)
        async with one.joined(), two.joined():
            here = await one.says("--nnodes")
            assert here.startswith("node b was started with --nnodes 2:3, this one, which")
            there = await two.says("--nnodes")
            assert there.startswith("this node was started with --nnodes 2:3, node a, which")

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    asyncio.run(run(endpoint))


def test_who_comes_when_all_is_over_hears_of_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shared_orders, "_PAST_S", 0.01)
    ran(tmp_path, "a", m.Outcome.FINISHED)

    async def run(endpoint: str) -> None:
        async with Launcher(tmp_path, endpoint, "late", is_host=False).joined() as it:
            assert await it.says("has ended, finished with exit code 0: said a")

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        asyncio.run(run(f"127.0.0.1:{nobody.getsockname()[1]}"))
