from __future__ import annotations

import gc
import sys
import time
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from undaunted.fault_tolerance.worker import leaving


@pytest.mark.parametrize("there", [True, False])
def test_frozen_objects_are_collected_only_where_triton_would_complain(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if there:
        monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
    calls: list[bool] = []
    monkeypatch.setattr(gc, "unfreeze", lambda: calls.append(True))
    leaving.leave()
    assert calls == [True] * there


def test_threads_of_gloo_have_time_to_let_go_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(4))  # its threads have their names by now
        leaving.leave()
    finally:
        dist.destroy_process_group()
    assert len(slept) >= 4, "so often it is looked whether they sleep"
