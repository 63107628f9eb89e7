from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp

from undaunted.checkpointing import StructureError, load_dcp

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.distributed is")]


def test_a_model_and_a_step(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    dcp.save({"model": model.state_dict(), "step": 7}, checkpoint_id=tmp_path)
    other = torch.nn.Linear(2, 3)
    state = {"model": other, "step": 0}
    load_dcp(state, tmp_path)
    assert state["step"] == 7
    assert torch.equal(other.weight, model.weight)


def test_what_is_not_there(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(1)}, checkpoint_id=tmp_path)
    with pytest.raises(StructureError, match="has no b"):
        load_dcp({"b": torch.ones(1)}, tmp_path)
