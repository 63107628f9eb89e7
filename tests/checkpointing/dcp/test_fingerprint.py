from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from undaunted.checkpointing.dcp.fingerprint import BYTES, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch


def base() -> dict[str, Any]:
    return {"a": torch.ones(2, 3), "b": torch.ones(4), "n": 1}


def test_values_have_no_part_in_it() -> None:
    one = fingerprint(base())
    assert one is not None
    assert len(one) == BYTES
    other = {"a": torch.zeros(3, 2).t(), "b": torch.zeros(8)[::2], "n": "text"}
    assert fingerprint(other) == one


@pytest.mark.parametrize(
    "change",
    [
        {"a": torch.ones(3, 2)},
        {"a": torch.ones(2, 3, dtype=torch.float64)},
        {"a": torch.ones(2, 3, requires_grad=True)},
        {"a": 1},
        {"n": torch.ones(())},
        {"c": 1},
        {"c": torch.ones(1)},
    ],
)
def test_everything_else_has(change: dict[str, Any]) -> None:
    assert fingerprint({**base(), **change}) != fingerprint(base())


def test_the_order_of_names_has() -> None:
    assert fingerprint(dict(reversed(base().items()))) != fingerprint(base())


def test_what_only_a_plan_can_tell() -> None:
    class Own:
        def __create_write_items__(self, fqn: str, value: Any) -> list[Any]:
            return []

    assert fingerprint({"a": Own()}) is None
    assert fingerprint({"a": torch.eye(2).to_sparse()}) is None


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.leaves("fds")  # torch keeps a pipe of the first store until the process ends
def test_how_tensors_are_distributed_has(mesh: Any) -> None:
    def state(*placements: Any, rows: int = 2) -> dict[str, Any]:
        local = torch.ones(rows, 3)
        return {"a": DTensor.from_local(local, mesh, list(placements), run_check=False)}

    known = {
        fingerprint(state(Shard(0))),
        fingerprint(state(Shard(1))),
        fingerprint(state(Replicate())),
        fingerprint(state(Shard(0), rows=4)),
        fingerprint({"a": torch.ones(2, 3)}),
    }
    assert len(known) == 5
    assert fingerprint(state(Shard(0))) in known
