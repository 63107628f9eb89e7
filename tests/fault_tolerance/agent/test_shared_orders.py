"""A node's part in the coordination of a job: with a leader, with etcd, and after the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from tests.fault_tolerance.agent.journal_and_lines import OpenScribe
from tests.fault_tolerance.agent.test_environment import CONFIG
from tests.ports import free_ports
from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.agent import shared_orders
from undaunted.fault_tolerance.agent.inprocess import InProcess
from undaunted.fault_tolerance.agent.surroundings import Surroundings, last_end
from undaunted.fault_tolerance.agent.tasks import Turns
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.run_config import RunConfig
from undaunted.journal.events import RoundStarted

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
        slow_ranks_after_s: float = 300.0,
        run_id: str = "job",
        **nodes: object,
    ) -> None:
        about = {"min_nodes": 1, "max_nodes": 1, "is_host": True, "address": "127.0.0.1"}
        place = str(directory)
        config = RunConfig(
            run_id=run_id,
            node=node,
            nodes=Nodes(endpoints=[endpoint], **{**about, **nodes}),
            nproc_per_node=1,
            max_restarts=0,
            slow_ranks_after_s=slow_ranks_after_s,
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
        self.ordered: asyncio.Queue[job.Command] = asyncio.Queue()
        self.orders = shared_orders.SharedOrders(
            config,
            Surroundings(config, "0"),
            Turns(),
            self.ordered.put_nowait,
            reserve,
            self.said.put_nowait,
            InProcess(config, cast("Any", None), self.said.put_nowait),
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

    async def order(self, kind: type[job.Command]) -> job.Command:
        while not isinstance(order := await self._next(self.ordered, ""), kind):
            pass
        return order

    async def _next(self, queue: asyncio.Queue, text: str):
        while text not in str(item := await asyncio.wait_for(queue.get(), DEADLINE_S)):
            pass
        return item


@pytest.fixture
def names(monkeypatch) -> set[str]:
    """Names that the name service knows, as those of this machine."""
    known, real = set(), socket.getaddrinfo

    def look_up(host, *about, **more):
        if not str(host).endswith(".train"):
            return real(host, *about, **more)
        if host in known:
            return real("127.0.0.1", *about, **more)
        raise socket.gaierror(socket.EAI_NONAME, "not known yet")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(shared_orders, "SEEK_QUIETLY_S", 0.0)
    return known


@pytest.mark.parametrize(
    "is_host",
    [
        None,
        pytest.param(True, marks=pytest.mark.slow),
        pytest.param(False, marks=pytest.mark.slow),
    ],
    ids=["found", "given", "another one"],
)
def test_a_launcher_waits_for_the_name_of_the_endpoint(
    tmp_path: Path, names: set[str], is_host: bool | None
) -> None:
    port = free_ports(1)

    async def run() -> None:
        it = Launcher(tmp_path, f"n0.train:{port}", address="", is_host=is_host)
        joining = asyncio.ensure_future(it.orders.join())
        assert "n0.train" in await it.says("looking for the coordinator")
        names.add("n0.train")
        await asyncio.wait_for(joining, DEADLINE_S)
        try:
            assert it.orders.leads is (is_host is not False)
            if it.orders.leads:
                await it.order(job.Start)
        finally:
            await it.orders.close()

    asyncio.run(run())


def test_a_launcher_waits_for_a_route_to_the_endpoint(tmp_path: Path, names, monkeypatch) -> None:
    real, routes = shared_orders.own_address, set()

    def own_address(host: str, port: int) -> str:
        if host in routes:
            return real(host, port)
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(shared_orders, "own_address", own_address)
    names.add("n0.train")

    async def run() -> None:
        it = Launcher(tmp_path, f"n0.train:{free_ports(1)}", address="", is_host=True)
        joining = asyncio.ensure_future(it.orders.join())
        assert "no route to n0.train" in await it.says("looking for the coordinator")
        routes.add("n0.train")
        await asyncio.wait_for(joining, DEADLINE_S)
        await it.orders.close()

    asyncio.run(run())


def test_a_name_that_is_never_known_ends_the_launcher(tmp_path: Path, names: set[str]) -> None:
    async def run() -> None:
        about = {"address": "", "is_host": None, "first_round_timeout_s": 0.2}
        async with Launcher(tmp_path, "n0.train:29400", **about).joined() as it:
            end = await it.order(job.End)
            assert (end.outcome, end.alone) == (job.Outcome.FAILED, True)
            assert "--rdzv-endpoint n0.train:29400" in end.reason

    assert not names
    asyncio.run(run())


def test_a_port_that_somebody_else_has_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shared_orders, "_HOST_AGAIN_S", 0.01)
    monkeypatch.setattr(shared_orders, "ANSWER_S", 0.05)

    async def run(endpoint: str) -> None:
        async with Launcher(tmp_path, endpoint, first_round_timeout_s=0.3).joined() as it:
            said = await it.says("cannot listen")
            assert said.startswith(f"cannot listen at {endpoint}: address already in use; ")
            end = await it.order(job.End)
            assert isinstance(end, job.End)
            assert end.outcome is job.Outcome.FAILED
            assert end.reason.startswith("no coordinator for 0.3 s")
            assert end.reason.endswith(f"; cannot listen at {endpoint}: address already in use")

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        asyncio.run(run(f"127.0.0.1:{other.getsockname()[1]}"))


def test_a_coordinator_that_has_the_port_and_refuses_is_the_only_reason(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(shared_orders, "_HOST_AGAIN_S", 0.01)
    elsewhere = tmp_path / "k"
    elsewhere.mkdir()

    async def run(endpoint: str) -> None:
        one = Launcher(tmp_path, endpoint, run_id="j", max_nodes=2, min_nodes=2)
        other = Launcher(elsewhere, endpoint, run_id="k", first_round_timeout_s=5.0)
        async with one.joined(), other.joined():
            lines = [await asyncio.wait_for(other.said.get(), DEADLINE_S)]
            while "belongs to job k" not in lines[-1]:
                lines.append(await asyncio.wait_for(other.said.get(), DEADLINE_S))
            assert not any("cannot listen" in line for line in lines)
            end = await other.order(job.End)
            assert isinstance(end, job.End)
            assert "belongs to job k" in end.reason
            assert "cannot listen" not in end.reason

    asyncio.run(run(f"127.0.0.1:{free_ports(1)}"))


def test_a_node_whose_port_for_rank_0_cannot_be_had_takes_no_part(tmp_path: Path) -> None:
    def in_use() -> int:
        raise OSError(98, "port 29500 of rank 0's store cannot be had")

    async def run(endpoint: str) -> None:
        one = Launcher(tmp_path, endpoint, reserve=in_use, max_nodes=2, min_nodes=2)
        two = Launcher(tmp_path, endpoint, "b", max_nodes=2, min_nodes=2, is_host=False)
        async with one.joined(), two.joined():
            for launcher in (one, two):
                end = await launcher.order(job.End)
                assert isinstance(end, job.End)
                assert end.outcome is job.Outcome.EXCLUDED
                assert end.reason.startswith("node a is unhealthy: port 29500 of rank 0's store")

    asyncio.run(run(f"127.0.0.1:{free_ports(1)}"))


def test_who_orders_before_the_node_has_joined_is_heard_later(tmp_path: Path) -> None:
    async def run(endpoint: str) -> None:
        it = Launcher(tmp_path, endpoint, max_nodes=2, min_nodes=2)
        it.orders.post(job.StopOrdered("a", -1, "somebody"))
        async with it.joined():
            end = await it.order(job.End)
            assert isinstance(end, job.End)
            assert (end.outcome, end.reason) == (
                job.Outcome.NO_RESTART,
                "somebody asked for a stop",
            )

    asyncio.run(run(f"127.0.0.1:{free_ports(1)}"))


def test_launchers_that_differ_say_so_on_both_nodes(tmp_path: Path) -> None:
    async def run(endpoint: str) -> None:
        one = Launcher(tmp_path, endpoint, max_nodes=2, min_nodes=2)
        two = Launcher(tmp_path, endpoint, "b", max_nodes=3, min_nodes=2, is_host=False)
        async with one.joined(), two.joined():
            here = await one.says("--nnodes")
            assert here.startswith("node b was started with --nnodes 2:3, this one, which")
            there = await two.says("--nnodes")
            assert there.startswith("this node was started with --nnodes 2:3, node a, which")

    asyncio.run(run(f"127.0.0.1:{free_ports(1)}"))


def test_the_time_of_slow_ranks_is_that_of_the_launcher_that_leads(tmp_path: Path) -> None:
    async def run(endpoint: str) -> None:
        one = Launcher(tmp_path, endpoint, slow_ranks_after_s=60.0, min_nodes=2, max_nodes=2)
        two = Launcher(tmp_path, endpoint, "b", min_nodes=2, max_nodes=2, is_host=False)
        async with one.joined(), two.joined():
            for said in (await one.says("--slow"), await two.says("--slow")):
                assert "with --slow-ranks-after 60s" in said
                assert "without --slow-ranks-after" in said
            leading = one.orders._participant.leading
            assert leading is not None
            assert leading.leader.config.policy.slow_ranks_after_s == 60.0

    asyncio.run(run(f"127.0.0.1:{free_ports(1)}"))


def test_who_comes_when_all_is_over_hears_of_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shared_orders, "_PAST_S", 0.01)
    ran(tmp_path, "a", job.Outcome.FINISHED)

    async def run(endpoint: str) -> None:
        async with Launcher(tmp_path, endpoint, "late", is_host=False).joined() as it:
            assert await it.says("has ended, finished with exit code 0: said a")

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        asyncio.run(run(f"127.0.0.1:{nobody.getsockname()[1]}"))


def ran(
    tmp_path: Path,
    node: str,
    end: job.Outcome | None,
    *,
    alone: bool = False,
    in_round: bool = False,
) -> None:
    """Leave the journal of a launcher; no end: it runs, or was killed."""
    config = msgspec.structs.replace(CONFIG, run_dir=str(tmp_path), node=node)
    scribe = OpenScribe(config)
    scribe.job_started()
    if in_round:
        ranks = [ord(node)]  # of one round, for all that have another name
        scribe.journal.record(
            RoundStarted(t=time.monotonic_ns(), round=0, world_size=1, ranks=ranks)
        )
    if end is not None:
        scribe.job_ended(job.End(node, end, f"said {node}", alone=alone))
    scribe.close()


def test_nothing_has_ended(tmp_path: Path) -> None:
    assert last_end(str(tmp_path)) == ""
    ran(tmp_path, "a", None)
    assert last_end(str(tmp_path)) == ""
    assert last_end(str(tmp_path / "missing")) == ""


@pytest.mark.parametrize("alone", [False, True])
def test_who_left_early_is_no_end_of_the_job(tmp_path: Path, alone: bool) -> None:
    ran(tmp_path, "a", None, in_round=True)
    ran(tmp_path, "b", job.Outcome.PREEMPTED, alone=alone, in_round=True)
    assert last_end(str(tmp_path)) == ""


def test_who_left_last_is_the_end_of_the_job(tmp_path: Path) -> None:
    ran(tmp_path, "b", job.Outcome.PREEMPTED, in_round=True)
    assert "preempted with exit code 75" in last_end(str(tmp_path))


def test_who_was_refused_knows_no_end_and_a_round_that_goes_on_has_none(tmp_path: Path) -> None:
    ran(tmp_path, "a", job.Outcome.FINISHED)
    ran(tmp_path, "w", job.Outcome.FAILED, alone=True)
    assert "finished with exit code 0: said a" in last_end(str(tmp_path))
    ran(tmp_path, "b", None, in_round=True)
    ran(tmp_path, "x", job.Outcome.FAILED, alone=True)
    assert last_end(str(tmp_path)) == ""


def test_the_end_is_said_to_who_comes_late(tmp_path: Path) -> None:
    ran(tmp_path, "a", job.Outcome.FINISHED)
    ran(tmp_path, "b", None)
    assert last_end(str(tmp_path)).startswith(
        f"the last job in {tmp_path} has ended, finished with exit code 0: said a. "
    )
