"""Between two rounds."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from tests.fault_tolerance.agent.devices import device, devices, provider
from undaunted.base import process
from undaunted.fault_tolerance.agent.node.clearing import Clearing
from undaunted.fault_tolerance.agent.node.node_health import NodeHealth
from undaunted.fault_tolerance.agent.node.reclaim import PROVIDER_VARIABLE
from undaunted.fault_tolerance.run_config import RunConfig
from undaunted.health.check import Settings
from undaunted.journal.events import MemoryReclaimed, NodeChecked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.fault_tolerance.agent.telling.scribe import Scribe

T = TypeVar("T")


class Told:
    """Stands in for the scribe: what the journal and the user would get."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lines: list[str] = []
        self.health: list[NodeHealth] = []  # to be closed

    def record(self, kind: Any, **fields: Any) -> None:
        self.events.append(kind(t=0, **fields))

    def say(self, text: str) -> None:
        self.lines.append(text)

    def all(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    process.end_descendants(10)


def clearing(told: Told, program: str, **options: Any) -> Clearing:
    config = RunConfig(
        run_id="x", node="here", nproc_per_node=1, max_restarts=1, kind="program", target="sleep",
        args=[], cwd="/", run_dir="/", log_dir="/", stdout=[0], stderr=[0],
        **{"health_checks": Settings(gpus=False, nic_link=False), **options},
    )  # fmt: skip
    environ = {**os.environ, PROVIDER_VARIABLE: program}
    scribe = cast("Scribe", told)
    told.health.append(NodeHealth(config, environ, scribe))
    return Clearing(config, environ, scribe, told.health[-1])


def test_free_memory_is_told_to_the_journal_and_no_problem(tmp_path: Path) -> None:
    told = Told()

    async def main() -> str:
        cleared = clearing(told, provider(tmp_path, devices(device())))
        assert cleared.longest_s == pytest.approx(55)
        cleared.prepare()
        assert len(cleared.pids()) == 1
        problem = await asyncio.wait_for(cleared.clear({7}), 30)
        assert cleared.pids() == set()
        return problem

    assert asyncio.run(main()) == ""
    (event,) = told.all(MemoryReclaimed)
    assert (event.devices, event.timeout_s) == (1, 50.0)


def test_what_is_under_way_can_be_given_up(tmp_path: Path) -> None:
    told = Told()

    async def main() -> None:
        cleared = clearing(told, provider(tmp_path, "hang"))
        task = asyncio.ensure_future(cleared.clear(set()))
        await asyncio.sleep(0)
        cleared.close()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleared.pids() == set()

    asyncio.run(main())
    assert told.events == []


def test_without_a_wait_there_is_nothing_to_do(tmp_path: Path) -> None:
    cleared = clearing(Told(), provider(tmp_path, "end"), gpu_memory_reclaim_timeout_s=0.0)
    assert cleared.longest_s == 0
    cleared.prepare()
    assert cleared.pids() == set()


def test_the_node_is_checked_beside_the_wait_for_memory(tmp_path: Path) -> None:
    told = Told()
    checks = Settings(gpus=False, nic_link=False, storage_paths=(str(tmp_path / "none"),))

    async def main() -> str:
        program = provider(tmp_path, devices(device()))
        cleared = clearing(told, program, health_checks=checks)
        try:
            return await asyncio.wait_for(cleared.clear(set()), 60)
        finally:
            told.health[-1].close()

    problem = asyncio.run(main())
    assert problem.endswith("/none failed: No such file or directory")
    assert len(told.all(MemoryReclaimed)) == len(told.all(NodeChecked)) == 1


def test_only_the_node_is_checked(tmp_path: Path) -> None:
    told = Told()
    checks = Settings(gpus=False, nic_link=False, storage_paths=(str(tmp_path),))
    options = {"health_checks": checks, "gpu_memory_reclaim_timeout_s": 0.0}

    async def main() -> str:
        cleared = clearing(told, provider(tmp_path, "end"), **options)
        assert cleared.longest_s == pytest.approx(85)
        try:
            return await asyncio.wait_for(cleared.clear(set()), 60)
        finally:
            told.health[-1].close()

    assert asyncio.run(main()) == ""
    assert told.all(MemoryReclaimed) == []
    assert len(told.all(NodeChecked)) == 1
