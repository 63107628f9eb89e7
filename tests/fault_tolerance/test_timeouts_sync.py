from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from undaunted.fault_tolerance import timeouts_sync
from undaunted.fault_tolerance.timeouts_calc import Maxima
from undaunted.fault_tolerance.timeouts_sync import SynchronizationError, synchronized

SRC = Path(__file__).parents[2] / "src"

RANKS = """
import json, sys, time
from datetime import timedelta
import torch.distributed as dist
from undaunted.fault_tolerance.timeouts_calc import Maxima
from undaunted.fault_tolerance.timeouts_sync import SynchronizationError, synchronized

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
alone = dist.new_group([0], timeout=timedelta(seconds=20))
big = 10**15 + 7  # nanoseconds that a float of 32 bits could not tell apart
results = [
    synchronized(Maxima(big + rank, 5 - rank, 7, {"a": 1 + rank, "b": 2 - rank})),
    synchronized(Maxima(1, 2, 3, {"only 0": 4} if rank == 0 else {"only 1": 5, "x" * 90: 6})),
    synchronized(Maxima()),
]
found = [[r.initial_ns, r.subsequent_ns, r.out_of_section_ns, dict(r.sections_ns)] for r in results]
if rank == 0:
    found.append(synchronized(Maxima(9), group=alone).initial_ns)
else:
    try:
        synchronized(Maxima(9), group=alone)
    except SynchronizationError as error:
        found.append(str(error))
dist.barrier()
if rank == 0:  # the other one does not come
    began = time.monotonic()
    try:
        synchronized(Maxima(1), timeout_s=0.5)
    except SynchronizationError as error:
        found.append([time.monotonic() - began < 10, bool(str(error))])
print(json.dumps(found), flush=True)
sys.stdin.read()
dist.destroy_process_group()
found = synchronized(Maxima(3)).initial_ns
assert found == 3
"""


@pytest.mark.torch
def test_ranks_agree_or_give_up_in_time(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "ranks.py").write_text(RANKS)
    ranks = [
        subprocess.Popen(
            [sys.executable, "ranks.py", str(rank), str(tmp_path / "store")],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        lines = [rank.stdout.readline() for rank in ranks]
        # Gloo cannot give up what rank 0 waits for until its peer is gone.
        ends = [rank.communicate(timeout=60) for rank in reversed(ranks)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert all(lines), ends
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    zero, one = (json.loads(line) for line in lines)
    assert zero[:3] == one[:3]
    assert zero[0] == [10**15 + 8, 5, 7, {"a": 2, "b": 2}]
    assert zero[1] == [1, 2, 3, {"only 0": 4, "only 1": 5, "x" * 90: 6}]
    assert zero[2] == [0, 0, 0, {}]
    assert zero[3] == 9
    assert "does not belong" in one[3]
    assert zero[4] == [True, True]


def test_a_rank_without_torch_is_alone(monkeypatch):
    seen = Maxima(1, 2, 3, {"a": 4})
    monkeypatch.delitem(timeouts_sync.sys.modules, "torch.distributed", raising=False)
    assert synchronized(seen) is seen


def test_a_closed_group_is_no_crash(monkeypatch):
    class Closed:
        is_available = is_initialized = staticmethod(lambda: True)

        @staticmethod
        def get_world_size(group):
            raise ValueError("group is not initialized\nand a stack")

    monkeypatch.setitem(timeouts_sync.sys.modules, "torch.distributed", Closed)
    with pytest.raises(SynchronizationError, match=r"^group is not initialized$"):
        synchronized(Maxima())


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl", "cuda"),
        ("xpu:xccl", "xpu"),
        ("npu:hccl", "npu"),
        ("mine", "cpu"),
    ],
)
def test_values_are_where_the_backend_can_reach_them(monkeypatch, backends, device):
    """Spec 3.1 item 10: any backend, whole numbers of 64 bits, any group, a deadline."""

    class Distributed:
        @staticmethod
        def get_backend_config(group):
            return backends

    monkeypatch.setitem(timeouts_sync.sys.modules, "torch", Distributed)
    assert timeouts_sync._Exchange(Distributed, None, 1.0)._device == device
