from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from undaunted.checkpointing.dcp.plan_codec import (
    BYTES,
    decode_part,
    decode_plan,
    encode_part,
    encode_plan,
    fingerprint,
)
from undaunted.checkpointing.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch


def plan_of(state: dict[str, Any], **options: Any) -> SavePlan:
    planner = DefaultSavePlanner(**options)
    planner.set_up_planner(state, None, True)
    return planner.create_local_plan()


STATE = {
    "a": torch.ones(2, 3, dtype=torch.bfloat16),
    "n": {"b": torch.tensor(1.0, requires_grad=True), "l": [torch.ones(1)]},
    "o": {"x": None},
    "s": torch.eye(2).to_sparse(),
    "i": torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("options", [{}, {"flatten_state_dict": False}])
def test_a_plan_comes_back(options: dict[str, Any]) -> None:
    state = STATE if not options else {"a": torch.ones(2), "o": {"x": 1}}
    plan = plan_of(state, **options)
    assert decode_plan(encode_plan(plan)) == plan


def test_strides_of_new_versions_of_torch_come_back() -> None:
    plan = plan_of({"a": torch.ones(3, 2).t()})
    plan.items[0].tensor_data.properties.strides = (1, 2)
    (item,) = decode_plan(encode_plan(plan)).items
    assert item.tensor_data.properties.strides == (1, 2)


def test_fewer_items_with_other_hints() -> None:
    local = plan_of(STATE)
    hinted = dataclasses.replace(
        local.items[2], index=dataclasses.replace(local.items[2].index, index=7)
    )
    final = dataclasses.replace(local, items=[hinted, local.items[0]])
    content = encode_part(local, final)
    assert len(content) < 20
    decoded = decode_part(local, content)
    assert decoded == final
    assert decoded.items[0].index.index == 7


def test_items_that_were_changed_or_added() -> None:
    local = plan_of(STATE)
    changed = dataclasses.replace(local.items[0], tensor_data=local.items[1].tensor_data)
    other = plan_of({"new": torch.ones(3)}).items[0]
    for items in ([changed], [*local.items, other]):
        final = dataclasses.replace(local, items=items)
        assert decode_part(local, encode_part(local, final)) == final


def test_other_planner_data_are_sent() -> None:
    local = plan_of(STATE)
    final = dataclasses.replace(local, planner_data={"a": ("b", 3)})
    assert decode_part(local, encode_part(local, final)) == final


@pytest.mark.parametrize("data", [object(), {"a": [object()]}, {1: ("a",)}, "text"])
def test_data_that_cannot_be_sent(data: Any) -> None:
    plan = dataclasses.replace(plan_of(STATE), planner_data=data)
    with pytest.raises(CheckpointError, match="planner_data into its plan that cannot be sent"):
        encode_plan(plan)


def test_plans_that_only_torch_can_use() -> None:
    with pytest.raises(CheckpointError, match="without enable_plan_caching"):
        encode_plan(SavePlan([], usable=False))
    with pytest.raises(CheckpointError, match="str into the plan's storage_data"):
        encode_plan(SavePlan([], storage_data="x"))


def test_a_dtype_that_is_unknown_here() -> None:
    content = encode_plan(plan_of({"a": torch.ones(1)})).replace(b"float32", b"float99")
    with pytest.raises(CheckpointError, match=r"torch\.float99, which is unknown here"):
        decode_plan(content)


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
