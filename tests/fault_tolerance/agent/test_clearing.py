"""Between two rounds."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.fault_tolerance.agent.devices import device, devices, provider
from undaunted.base import process
from undaunted.fault_tolerance.agent.clearing import Clearing
from undaunted.fault_tolerance.agent.reclaim import PROVIDER_VARIABLE, Outcome
from undaunted.fault_tolerance.run_config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.fault_tolerance.agent.scribe import Scribe


class Told:
    """What the journal would get."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def memory_reclaimed(self, outcome: Outcome, timeout_s: float) -> None:
        assert timeout_s == 50.0
        self.outcomes.append(outcome)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    process.end_descendants(10)


def clearing(told: Told, program: str, **options: Any) -> Clearing:
    config = RunConfig(
        run_id="x", node="here", nproc_per_node=1, max_restarts=1, kind="program", target="sleep",
        args=[], cwd="/", run_dir="/", log_dir="/", stdout=[0], stderr=[0], **options,
    )  # fmt: skip
    return Clearing(config, {**os.environ, PROVIDER_VARIABLE: program}, cast("Scribe", told))


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
    assert [outcome.devices for outcome in told.outcomes] == [1]


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
    assert told.outcomes == []


def test_without_a_wait_there_is_nothing_to_do(tmp_path: Path) -> None:
    cleared = clearing(Told(), provider(tmp_path, "end"), gpu_memory_reclaim_timeout_s=0.0)
    assert cleared.longest_s == 0
    cleared.prepare()
    assert cleared.pids() == set()
