"""What ranks learn of each other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.training import gloo_ranks
from undaunted.base import torch_ranks


def test_a_process_that_is_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert torch_ranks.any_rank([True, False]) == [True, False]
    assert torch_ranks.gather({"a": 1}) == [{"a": 1}]
    assert torch_ranks.place() == (0, 1)
    assert not torch_ranks.is_distributed()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert torch_ranks.place() == (3, 4)


@pytest.mark.e2e
@pytest.mark.torch
def test_ranks_of_gloo(tmp_path):
    program = Path(__file__).with_name("torch_ranks_program.py")
    said = gloo_ranks.run(program, 2, tmp_path)
    for rank, one in enumerate(said):
        assert one["place"] == [rank, 2]
        assert one["distributed"]
        assert one["any"] == [True, False, True]
        gathered = [{"rank": n, "text": "x" * n, "inf": math.inf} for n in range(2)]
        assert one["gathered"] == gathered
