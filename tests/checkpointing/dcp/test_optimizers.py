from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.dcp.saved import save
from tests.checkpointing.dcp.test_loading import read
from tests.checkpointing.dcp.test_saving import assert_same
from undaunted.checkpointing.dcp.metadata import decode
from undaunted.checkpointing.dcp.optimizers import state_to_fill

if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

pytestmark = pytest.mark.torch


def parameters(*sizes: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(size)) for size in sizes]


def stepped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def metadata_of(folder: Path, state: dict[str, Any]) -> Metadata:
    save(folder, state)
    return decode((folder / ".metadata").read_bytes(), "path")


def test_a_fresh_one_gets_what_was_saved(tmp_path: Path) -> None:
    saved = stepped(torch.optim.Adam(parameters(3, 4)))
    metadata = metadata_of(tmp_path, {"opt": saved, "other": {"state": {"0": torch.ones(1)}}})
    fresh = torch.optim.Adam(parameters(3, 4), lr=0.5)
    state = state_to_fill(fresh, "opt", metadata)
    assert state["param_groups"][0]["lr"] == 0.5
    assert {
        number: {name: (tensor.shape, tensor.dtype) for name, tensor in of.items()}
        for number, of in state["state"].items()
    } == {
        number: {
            "step": (torch.Size(()), torch.float32),
            "exp_avg": (torch.Size((size,)), torch.float32),
            "exp_avg_sq": (torch.Size((size,)), torch.float32),
        }
        for number, size in ((0, 3), (1, 4))
    }


def test_the_tensors_it_has_are_used(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, {"opt": stepped(torch.optim.Adam(parameters(3)))})
    own = stepped(torch.optim.Adam(parameters(3)))
    state = state_to_fill(own, "opt", metadata)
    assert state["state"][0]["exp_avg"] is own.state_dict()["state"][0]["exp_avg"]


def test_parameters_it_does_not_have_are_left_out(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path, {"opt": stepped(torch.optim.Adam(parameters(3, 4)))})
    state = state_to_fill(torch.optim.Adam(parameters(3)), "opt", metadata)
    assert list(state["state"]) == [0]


def test_state_that_is_nested_or_no_tensor(tmp_path: Path) -> None:
    deep = {"state": {0: {"deep": {"m": torch.ones(3), "n": 5}}}, "param_groups": []}
    metadata = metadata_of(tmp_path, {"opt": deep})
    state = state_to_fill(torch.optim.SGD(parameters(3)), "opt", metadata)
    assert state["state"][0]["deep"]["m"].shape == (3,)
    assert state["state"][0]["deep"]["n"] is None


# Old versions warn of their own LBFGS.
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning")
def test_lists_are_lists_again(tmp_path: Path) -> None:
    owned = parameters(3)
    saved = torch.optim.LBFGS(owned, history_size=3, max_iter=4)

    def closure() -> torch.Tensor:
        saved.zero_grad()
        loss = (owned[0] ** 4).sum() + owned[0][0]
        loss.backward()
        return loss

    saved.step(closure)  # type: ignore[arg-type]
    save(tmp_path, {"opt": saved})
    fresh = torch.optim.LBFGS(parameters(3), history_size=3, max_iter=4)
    read({"opt": fresh}, tmp_path)
    assert saved.state_dict()["state"][0]["old_dirs"]
    assert_same(saved.state_dict()["state"], fresh.state_dict()["state"])
