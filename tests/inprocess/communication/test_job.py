"""Aborts in jobs of real ranks: who is blocked comes back, and new groups work at once.

Each rank has, besides, a client of a store that rank 0 serves in its process, and a TCP connection
of its own: `job.py` checks after each round that these work as before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("torch")
pytestmark = [pytest.mark.e2e, pytest.mark.torch]

ROOT = Path(__file__).parents[3]
BLOCKED = [
    "all_reduce",
    "broadcast",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "irecv",
    "sub_group",
    "all_gather_object",
    "ddp_backward",
]
BEING_MADE = ["new_group", "init", "accept", "init_env", "init_env_without_server"]
LATE = {"TORCH_GLOO_LAZY_INIT": "1"}


@pytest.fixture(scope="module")
def run_job() -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """A program that forks ranks; a function that has it run a job and returns what ranks said."""
    environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "FATAL", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("job.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        requests, answers = program.stdin, program.stdout

        def run(scenario: str, ranks: int, rounds: int, **more: Any) -> list[dict[str, Any]]:
            request = {"scenario": scenario, "ranks": ranks, "rounds": rounds, **more}
            requests.write(json.dumps(request) + "\n")
            requests.flush()
            # gloo of some versions of torch prints lines of its own
            answer = next((line for line in answers if line.startswith('{"ranks"')), "{}")
            said: list[dict[str, Any]] = json.loads(answer)["ranks"]
            errors = [rank["error"] for rank in said if "error" in rank]
            assert not errors, errors[0]
            assert all(len(rank["rounds"]) == rounds for rank in said)
            return said

        yield run


@pytest.mark.parametrize("scenario", BLOCKED + BEING_MADE)
def test_blocked_ranks_come_back(scenario: str, run_job: Callable[..., Any]) -> None:
    run_job(scenario, ranks=3, rounds=2)


@pytest.mark.parametrize("scenario", ["all_reduce", "recv", "sub_group"])
def test_groups_that_connect_when_they_are_used(scenario: str, run_job: Callable[..., Any]) -> None:
    run_job(scenario, ranks=3, rounds=2, environment=LATE)


@pytest.mark.parametrize("scenario", ["all_reduce", "init", "init_env"])
def test_ipv6(scenario: str, run_job: Callable[..., Any]) -> None:
    run_job(scenario, ranks=3, rounds=2, host="::1", environment={"GLOO_SOCKET_IFNAME": "lo"})


@pytest.mark.parametrize(("scenario", "ranks"), [("all_reduce", 8), ("new_group", 8)])
def test_more_ranks(scenario: str, ranks: int, run_job: Callable[..., Any]) -> None:
    run_job(scenario, ranks=ranks, rounds=2)


@pytest.mark.parametrize("scenario", ["all_reduce", "init"])
def test_again_and_again(scenario: str, run_job: Callable[..., Any]) -> None:
    for rank in run_job(scenario, ranks=4, rounds=20):
        # Threads and descriptors after the first round and after the last: what a group held is
        # released beside the next one.
        for kind, before in rank["before"].items():
            assert rank["after"][kind] <= before + 3, (kind, before, rank["after"])
