"""Eight ranks on two nodes: one hangs, and the whole job hears which one, and that others wait."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.launcher import explained, nodes_of_a_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SCRIPT = """
    import ctypes, os, time
    import torch, torch.distributed as dist
    import undaunted
    LIBC, MUTEX = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    from undaunted.fault_tolerance import RankMonitorClient
    def load_batch():
        {hang}
    client = RankMonitorClient()
    client.init_workload_monitoring()
    dist.init_process_group("gloo")
    first_round = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(8):
        undaunted.step(step)
        if first_round and step == 5 and dist.get_rank() == 5:
            load_batch()
        dist.all_reduce(torch.ones(1))
    client.shutdown_workload_monitoring()  # the end may take long where a machine is busy
    dist.destroy_process_group()
"""
HANGS = {
    "sleep": "time.sleep(600)",
    # A signal interrupts a sleep in C, not the wait for a mutex.
    "GIL held": "LIBC.pthread_mutex_lock(MUTEX), LIBC.pthread_mutex_lock(MUTEX)",
}


@pytest.mark.parametrize("kind", ["sleep", pytest.param("GIL held", marks=pytest.mark.slow)])
def test_one_verdict_for_the_job(tmp_path: Path, kind: str) -> None:
    limit = ("--ft-rank-heartbeat-timeout", "3")
    options = ("--nnodes", "2", "--nproc-per-node", "4", "--max-restarts", "1", *limit)
    with nodes_of_a_job(tmp_path, SCRIPT.format(hang=HANGS[kind]), *options) as start:
        launchers = [start("one", "is_host=1"), start("two", "is_host=0")]
        assert [each.finish() for each in launchers] == [0, 0], launchers[0].text
        journals = [events(tmp_path, node) for node in ("one", "two")]
    culprit = next(
        node
        for node, journal in zip(("one", "two"), journals, strict=True)
        if 5 in first(journal, "round_started")["ranks"]
    )
    (other,) = {"one", "two"} - {culprit}
    for launcher, journal in zip(launchers, journals, strict=True):
        (blamed,) = [event for event in journal if event["event"] == "round_blamed"]
        assert (blamed["node"], blamed["ranks"]) == (culprit, [5])
        # A rank that holds the lock, or has no time at all, cannot say what it has recorded.
        assert blamed["cause"] in {"no_dump", "host_lag" if kind == "sleep" else "no_dump"}
        assert blamed["victims"] == [other]
        told = re.findall(r"rank \d.*hang.*", launcher.text)
        assert len(told) == 1, "one line for people"
        # Where the machine is busy, a rank that waits may not be seen in time.
        assert re.search(rf"rank 5 \(node {culprit}, pid \d+\) .*\d ranks .*wait for it", told[0])
        assert f"the ranks of {other} are victims" in told[0]
        assert "in load_batch (train.py:" in told[0]
        assert re.search(r"\d ranks on nodes one and two wait for it in all_reduce", told[0])
        assert re.search(r"recorded: ranks? [\d,-]+ waits? in all_reduce .*number 6 of", told[0])
        assert ("its interpreter does not answer" in told[0]) is (kind == "GIL held")


UNEQUAL = """
    import os, torch, torch.distributed as dist, undaunted
    dist.init_process_group("gloo")
    for step in range(8):
        undaunted.step(step)
        if step == 5 and dist.get_rank() == dist.get_world_size() - 1:
            os._exit(0)
        dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_left_is_named_where_ranks_of_other_nodes_failed(
    tmp_path: Path, ranks: int
) -> None:
    options = ("--nnodes", "2", "--nproc-per-node", str(ranks), "--max-restarts", "0")
    with nodes_of_a_job(tmp_path, UNEQUAL, *options) as start:
        launchers = [start("one", "is_host=1"), start("two", "is_host=0")]
        assert [each.finish() for each in launchers] == [1, 1], launchers[0].text
    left = 2 * ranks - 1
    assert re.search(rf"first cause .*rank {left} .*had ended with 0", launchers[0].text)
    why = explained(tmp_path / "run")
    assert (why["cause"], why["ranks"]) == ("unequal_work", [left])
    assert "after 3 times the advice is: stop" in why["reason"]


IN_PROCESS = """
    import os, time
    from datetime import timedelta
    import torch, torch.distributed as dist
    import undaunted
    from undaunted import inprocess
    from undaunted.fault_tolerance import RankMonitorClient

    def load_batch():
        time.sleep(600)

    soft = timedelta(seconds=40)

    @inprocess.Wrapper(soft_timeout=soft, hard_timeout=2 * soft)
    def train(call: inprocess.CallWrapper):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", store=call.store, rank=rank, world_size=size)
        for step in range(4):
            undaunted.step(step)
            if call.iteration == 0 and step == 2 and rank == 1:
                load_batch()
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        print(f"rank {rank} of {size} is done in {os.environ['TORCHELASTIC_RESTART_COUNT']}")

    client = RankMonitorClient()
    client.init_workload_monitoring()
    train()
    client.shutdown_workload_monitoring()  # the end may take long where a machine is busy
"""


def test_the_victims_of_a_hang_go_on_with_min_healthy(tmp_path: Path) -> None:
    policy = ("--ft-restart-policy", "min-healthy", "--max-restarts", "0")
    options = ("--nnodes", "2:3", "--nproc-per-node", "1", "--ft-rank-heartbeat-timeout", "3")
    names = ("one", "two", "three")
    with nodes_of_a_job(tmp_path, IN_PROCESS, *options, *policy) as start:
        hosts = ("is_host=1,last_call_timeout=60", "is_host=0", "is_host=0")
        launchers = [start(name, host) for name, host in zip(names, hosts, strict=True)]
        assert [each.finish() for each in launchers] == [0, 0, 0], launchers[0].text
        texts = "\n".join(each.text for each in launchers)
    assert "rank 0 of 2 is done in 0" in texts
    assert "rank 1 of 2 is done in 0" in texts
    journals = {name: events(tmp_path, name) for name in names}
    assert all(first(each, "round_blamed")["ranks"] == [1] for each in journals.values())
    culprit = first(journals["one"], "round_blamed")["node"]
    assert first(journals[culprit], "round_started")["ranks"] == [1]


def events(tmp_path: Path, node: str) -> list[dict[str, Any]]:
    path = tmp_path / "run" / f"journal-{node}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def first(journal: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(event for event in journal if event["event"] == kind)
