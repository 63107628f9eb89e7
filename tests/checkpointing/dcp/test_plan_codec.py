from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan

from undaunted.checkpointing.dcp.plan_codec import (
    decode_part,
    decode_plan,
    encode_part,
    encode_plan,
)
from undaunted.checkpointing.errors import CheckpointError

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
