"""Between two rounds: never longer than needed, never longer than allowed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

from tests.fault_tolerance.agent.devices import device, devices, provider
from tests.fault_tolerance.agent.journal_and_lines import Kept
from undaunted.base import process
from undaunted.fault_tolerance.agent.clearing import Clearing, MemoryWait, Reclaim
from undaunted.fault_tolerance.agent.devices import PROVIDER_VARIABLE
from undaunted.fault_tolerance.agent.node_health import NodeHealth
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.run_config import RunConfig
from undaunted.health.check import Settings
from undaunted.journal.events import MemoryReclaimed, NodeChecked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.journal.writer import JournalWriter

T = TypeVar("T")
FREE = devices(device(mib=100))
FULL = devices(device(mib=2048))
LISTED = devices(device(pids=(7,)))


class Told(Kept):
    """Keeps what is to be closed as well."""

    def __init__(self) -> None:
        super().__init__()
        self.health: list[NodeHealth] = []


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    process.end_descendants(10)


NO_WAIT = FaultToleranceConfig(gpu_memory_reclaim_timeout=0)


def clearing(told: Told, program: str, **options: Any) -> Clearing:
    config = RunConfig(
        run_id="x", node="here", nproc_per_node=1, max_restarts=1, kind="program", target="sleep",
        args=[], cwd="/", run_dir="/", log_dir="/", stdout=[0], stderr=[0],
        **{"health_checks": Settings(gpus=False, nic_link=False), **options},
    )  # fmt: skip
    environ = {**os.environ, PROVIDER_VARIABLE: program}
    journal = cast("JournalWriter", told)
    told.health.append(NodeHealth(config, environ, journal, told.say))
    return Clearing(config, environ, journal, told.health[-1])


def test_free_memory_is_told_to_the_journal_and_no_problem(tmp_path: Path) -> None:
    told = Told()

    async def main() -> str:
        cleared = clearing(told, provider(tmp_path, devices(device())))
        assert cleared.longest_s == pytest.approx(55)
        cleared.prepare()
        assert len(cleared.pids()) == 1
        problem = await asyncio.wait_for(cleared.clear(4, {7}), 30)
        assert cleared.pids() == set()
        return problem

    assert asyncio.run(main()) == ""
    (event,) = told.all(MemoryReclaimed)
    assert (event.devices, event.timeout_s) == (1, 50.0)


def test_what_is_under_way_can_be_given_up(tmp_path: Path) -> None:
    told = Told()

    async def main() -> None:
        cleared = clearing(told, provider(tmp_path, "hang"))
        task = asyncio.ensure_future(cleared.clear(4, set()))
        await asyncio.sleep(0)
        cleared.close()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleared.pids() == set()

    asyncio.run(main())
    assert told.events == []


def test_without_a_wait_there_is_nothing_to_do(tmp_path: Path) -> None:
    cleared = clearing(Told(), provider(tmp_path, "end"), ft=NO_WAIT)
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
            return await asyncio.wait_for(cleared.clear(4, set()), 60)
        finally:
            told.health[-1].close()

    problem = asyncio.run(main())
    assert problem.endswith("/none failed: No such file or directory")
    assert len(told.all(MemoryReclaimed)) == len(told.all(NodeChecked)) == 1


def test_only_the_node_is_checked(tmp_path: Path) -> None:
    told = Told()
    checks = Settings(gpus=False, nic_link=False, storage_paths=(str(tmp_path),))
    options = {"health_checks": checks, "ft": NO_WAIT}

    async def main() -> str:
        cleared = clearing(told, provider(tmp_path, "end"), **options)
        assert cleared.longest_s == pytest.approx(85)
        try:
            return await asyncio.wait_for(cleared.clear(4, set()), 60)
        finally:
            told.health[-1].close()

    assert asyncio.run(main()) == ""
    assert told.all(MemoryReclaimed) == []
    assert len(told.all(NodeChecked)) == 1


def reclaim(program: str, *, visible: str | None = None, timeout_s: float = 60.0) -> Reclaim:
    config = RunConfig(
        run_id="x", node="here", nproc_per_node=2, max_restarts=1, kind="program", target="sleep",
        args=[], cwd="/", run_dir="/", log_dir="/", stdout=[0, 0], stderr=[0, 0],
        ft=FaultToleranceConfig(
            gpu_memory_reclaim_timeout=timeout_s, gpu_memory_poll_interval=0.02
        ),
    )  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    return Reclaim(config, environ | {PROVIDER_VARIABLE: program})


def wait(program: str, **options: Any) -> MemoryWait:
    async def main() -> MemoryWait:
        waiting = reclaim(program, **options)
        try:
            return await asyncio.wait_for(waiting.wait({7, 8}), 60)
        finally:
            waiting.close()

    return asyncio.run(main())


def test_free_devices_are_not_waited_for(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, FULL, FREE))
    assert (outcome.devices, outcome.held, outcome.skipped) == (1, "", "")
    assert outcome.duration_ns > 0


def test_a_restart_waits_until_memory_is_free(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, FULL, FULL, FULL, FREE))
    assert (outcome.held, outcome.pids) == ("", ())


def test_a_restart_waits_until_ended_processes_are_off_the_list(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, LISTED, LISTED, LISTED, FREE))
    assert (outcome.held, outcome.pids) == ("", (7,))


def test_the_wait_is_bounded(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, FULL), timeout_s=3.0)  # it has to answer in that time
    assert outcome.held == "GPU 0: 2048 MiB in use"


def test_a_driver_that_hangs_is_waited_for_no_longer(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, FREE, "hang"), timeout_s=0.5)
    assert outcome.held == "the driver did not answer"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"error": "no driver"}, "no driver"),
        ("end", "the device provider ended without an answer"),
        ("nonsense", "no answer of a device provider"),
    ],
)
def test_what_cannot_be_asked_is_not_waited_for(
    tmp_path: Path, answer: dict[str, str] | str, reason: str
) -> None:
    outcome = wait(provider(tmp_path, answer))
    assert reason in outcome.skipped


def test_devices_that_the_ranks_do_not_see_are_not_waited_for(tmp_path: Path) -> None:
    program = provider(tmp_path, devices(device(0), device(1, mib=4096)))
    outcome = wait(program, visible="0")
    assert (outcome.devices, outcome.held) == (1, "")


def test_a_provider_that_is_missing_is_said(tmp_path: Path) -> None:
    assert "ended without an answer" in wait(str(tmp_path / "absent.py")).skipped


def test_no_time_means_no_wait(tmp_path: Path) -> None:
    waiting = reclaim(provider(tmp_path, FULL), timeout_s=0.0)
    assert not waiting.wanted
    waiting.prepare()
    assert waiting.pids() == set()


def test_the_provider_is_known_while_it_lives(tmp_path: Path) -> None:
    async def main() -> int:
        waiting = reclaim(provider(tmp_path, FREE))
        waiting.prepare()
        (pid,) = waiting.pids()
        assert pid in process.children()
        waiting.close()
        assert waiting.pids() == set()
        return pid

    assert process.is_dying(asyncio.run(main()))


def test_an_answer_without_end_is_given_up(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, "x" * (3 << 20)))
    assert "says too much" in outcome.skipped
