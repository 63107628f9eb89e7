"""Waiting for the memory of devices: never longer than needed, never longer than allowed."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.fault_tolerance.agent.devices import device, devices, provider
from undaunted.base import process
from undaunted.fault_tolerance.agent.node.reclaim import PROVIDER_VARIABLE, Outcome, Reclaim
from undaunted.fault_tolerance.run_config import RunConfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FREE = devices(device(mib=100))
FULL = devices(device(mib=2048))
LISTED = devices(device(pids=(7,)))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    process.end_descendants(10)


def reclaim(program: str, *, visible: str | None = None, **options: Any) -> Reclaim:
    config = RunConfig(
        run_id="x", node="here", nproc_per_node=2, max_restarts=1, kind="program", target="sleep",
        args=[], cwd="/", run_dir="/", log_dir="/", stdout=[0, 0], stderr=[0, 0],
        **{"gpu_memory_reclaim_timeout_s": 60.0, "gpu_memory_poll_interval_s": 0.02, **options},
    )  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    if visible is not None:
        environ["CUDA_VISIBLE_DEVICES"] = visible
    return Reclaim(config, environ | {PROVIDER_VARIABLE: program})


def wait(program: str, **options: Any) -> Outcome:
    async def main() -> Outcome:
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
    outcome = wait(provider(tmp_path, FULL), gpu_memory_reclaim_timeout_s=0.5)
    assert outcome.held == "GPU 0: 2048 MiB in use"


def test_a_driver_that_hangs_is_waited_for_no_longer(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, FREE, "hang"), gpu_memory_reclaim_timeout_s=0.5)
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
    waiting = reclaim(provider(tmp_path, FULL), gpu_memory_reclaim_timeout_s=0.0)
    assert not waiting.wanted
    waiting.prepare()
    assert waiting.pids() == set()


def test_the_provider_is_known_while_it_lives(tmp_path: Path) -> None:
    waiting = reclaim(provider(tmp_path, FREE))
    waiting.prepare()
    (pid,) = waiting.pids()
    assert pid in process.children()
    waiting.close()
    assert waiting.pids() == set()
    assert os.waitpid(pid, 0)[0] == pid


def test_an_answer_without_end_is_given_up(tmp_path: Path) -> None:
    outcome = wait(provider(tmp_path, "x" * (3 << 20)))
    assert "without an answer" in outcome.skipped
