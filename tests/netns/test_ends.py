"""Ranks that fail, nodes that are told to leave, and how their launchers end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.netns.job import Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXCLUDE = """
from undaunted.fault_tolerance import (
    RankMonitorClient, WorkloadAction, WorkloadControlRequest
)
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_workload_control_request(
    WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "its memory is broken")
)
todo.unlink()
"""

GLOO = """
    import os, pathlib, sys
    import torch, torch.distributed as dist
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo")
    number, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], dist.get_rank()
    sys.stdout.write(f"rank {rank} of {dist.get_world_size()} in round {number}\\n")
    finish = torch.zeros(1)
    for step in range(10**9):
        if number == "0" and step == 20 and rank == 3:
            raise ValueError("bad batch 17")
        finish[0] = pathlib.Path("finish").exists()
        dist.all_reduce(finish, dist.ReduceOp.MAX)
        if finish.item():
            break
    dist.destroy_process_group()
"""


def test_a_rank_fails_and_the_others_with_it(job: Callable[..., Job]) -> None:
    """All of them say which rank of which node was the first cause."""
    run = job("abcd", "4", "--nproc-per-node", "1", script=GLOO)
    run.start()
    run.begins(1, *"abcd")
    for name in "abcd":
        run[name].wait_for(r"first cause in round 0: rank 3 \(node d, .*ValueError: bad batch 17")
    run.finish()
    run.ends(*"abcd")


def test_the_last_restart_fails_too(job: Callable[..., Job]) -> None:
    run = job("abc", "2:3", "--max-restarts", "1")
    run.start()
    run.begins(0, "a", "b")
    run.tell(0, 1, 1, "raise ValueError('first')")
    run.begins(1, "a", "b")
    run.tell(1, 0, 0, "raise ValueError('second')")
    run.ends("a", "b", "c", code=1)
    for name in "abc":
        assert "ValueError: second" in run[name].seen[-1], run[name].text
        assert "node a" in run[name].seen[-1], run[name].text
    run.one_world()


def test_a_rank_asks_for_the_exclusion_of_its_node(job: Callable[..., Job]) -> None:
    run = job("abc", "2:3")
    run.start()
    run.begins(0, "a", "b")
    run.tell(0, 1, 1, EXCLUDE)
    run.begins(1, "a", "c")
    assert run["b"].finish() == 1
    assert "its memory is broken" in run["b"].seen[-1], run["b"].text
    again = run.start_as("b2", "b", "--node-name", "b", "--run-dir", "other")
    assert again.finish() == 1
    assert "its memory is broken" in again.seen[-1], again.text
    run.finish()
    run.ends("a", "c")
    run.one_world()


# The second is too small for a vote once the node of the coordinator has left.
SIZES = [("abcd", "3:4"), ("abc", "2:3")]


@pytest.mark.parametrize(("hosts", "nodes"), SIZES)
def test_the_node_of_the_coordinator_is_excluded(
    job: Callable[..., Job], hosts: str, nodes: str
) -> None:
    run = job(hosts, nodes)
    run.start()
    run.begins(0, *hosts[:-1])
    run.tell(0, 0, 0, EXCLUDE)
    run.begins(1, *hosts[1:])
    assert run["a"].finish() == 1
    assert "its memory is broken" in run["a"].seen[-1], run["a"].text
    run.finish()
    run.ends(*hosts[1:])
    run.one_world()


def test_one_launcher_is_told_to_stop(job: Callable[..., Job]) -> None:
    """Its place is taken by a spare, at no cost for the budget."""
    run = job("abc", "2:3", "--max-restarts", "0")
    run.start()
    run.begins(0, "a", "b")
    run["b"].process.send_signal(signal.SIGTERM)
    run.begins(1, "a", "c")
    assert run["b"].finish() == 75
    run.finish()
    run.ends("a", "c")
    run.one_world()


@pytest.mark.parametrize(("hosts", "nodes"), SIZES)
def test_the_launcher_of_the_coordinator_is_told_to_stop(
    job: Callable[..., Job], hosts: str, nodes: str
) -> None:
    run = job(hosts, nodes, "--max-restarts", "0")
    run.start()
    run.begins(0, *hosts[:-1])
    run["a"].process.send_signal(signal.SIGTERM)
    run.begins(1, *hosts[1:])
    assert run["a"].finish() == 75
    run[hosts[1]].wait_for("following the coordinator on")
    run.finish()
    run.ends(*hosts[1:])
    run.one_world()


def test_the_launcher_of_the_coordinator_leaves_an_elastic_job(job: Callable[..., Job]) -> None:
    run = job("abc", "2:3", "--elastic", "--max-restarts", "0")
    run.start()
    run.begins(0, *"abc")
    run["a"].process.send_signal(signal.SIGTERM)
    run.begins(1, *"bc")
    assert run["a"].finish() == 75
    run.finish()
    run.ends(*"bc")
    run.one_world()


def test_all_launchers_are_told_to_stop(job: Callable[..., Job]) -> None:
    run = job("abcd", "3:4")
    run.start()
    run.begins(0, "a", "b", "c")
    for name in "abcd":
        run[name].process.send_signal(signal.SIGTERM)
    run.ends(*"abcd", code=75)
    for name in "abcd":
        assert "SIGTERM" in run[name].seen[-1], run[name].text


def test_too_few_nodes_tell_all_others_to_stop(job: Callable[..., Job]) -> None:
    run = job("ab", "2")
    run.start()
    run.begins(0, "a", "b")
    run["b"].process.send_signal(signal.SIGTERM)
    run.ends("a", "b", code=75)
    assert "node b" in run["a"].seen[-1], run["a"].text
