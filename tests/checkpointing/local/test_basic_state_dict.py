"""Any nesting of containers with tensors in it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from undaunted.checkpointing.local.base_state_dict import TensorPlaceholder  # noqa: E402
from undaunted.checkpointing.local.basic_state_dict import (  # noqa: E402
    BasicTensorAwareStateDict,
)

pytestmark = pytest.mark.torch


class Pair(NamedTuple):
    first: Any
    second: Any


def nested():
    shared = torch.arange(3)
    return {
        "model": OrderedDict(a=shared, b=torch.ones(2, 2)),
        "deep": [({1: torch.tensor(5)},), Pair(shared, "x")],
        "rest": defaultdict(list, n=[torch.zeros(0)]),
        "size": torch.Size([1, 2]),
        "none": None,
    }


def test_tensors_come_out_and_go_back_in() -> None:
    given = nested()
    state = BasicTensorAwareStateDict(given)
    whole = list(state.tensors)
    assert not state.is_hollow
    assert len(whole) == 5
    taken = state.pop_tensors()
    assert state.is_hollow
    assert [id(t) for t in taken] == [id(t) for t in whole]
    assert list(state.values()) == []
    assert state.state_dict["deep"][1].first == TensorPlaceholder("cpu", (3,), torch.int64)
    state.insert_tensors(taken)
    assert not state.is_hollow
    assert state.state_dict["deep"][1] is not given["deep"][1]
    assert isinstance(state.state_dict["deep"][1], Pair)
    assert isinstance(state.state_dict["model"], OrderedDict)
    assert state.state_dict["rest"].default_factory is list
    assert state.state_dict["size"] == torch.Size([1, 2])
    assert state.state_dict["model"]["a"] is given["model"]["a"]


def test_what_was_given_is_not_changed() -> None:
    given = nested()
    BasicTensorAwareStateDict(given).pop_tensors()
    assert isinstance(given["model"]["a"], torch.Tensor)


def test_wrong_tensors_are_refused_and_nothing_changes() -> None:
    state = BasicTensorAwareStateDict([torch.ones(2), torch.ones(3)])
    state.pop_tensors()
    for wrong, why in [
        ([torch.ones(2)], "fewer tensors"),
        ([torch.ones(2), torch.ones(3), torch.ones(1)], "more tensors"),
        ([torch.ones(2), torch.ones(2)], r"shape \(2,\).* shape \(3,\)"),
        ([torch.ones(2), torch.ones(3).int()], "torch.int32"),
    ]:
        with pytest.raises(ValueError, match=why):
            state.insert_tensors(wrong)
        assert state.is_hollow


def test_new_tensors_have_the_form_of_the_old() -> None:
    state = BasicTensorAwareStateDict(nested())
    forms = [(t.shape, t.dtype, t.device) for t in state.pop_tensors()]
    state.init_tensors()
    assert [(t.shape, t.dtype, t.device) for t in state.tensors] == forms


def test_devices_are_remembered_while_copies_stand_for_their_tensors() -> None:
    state = BasicTensorAwareStateDict({"m": torch.ones(2, device="meta"), "c": torch.ones(1)})
    hollow_devices = ["meta", "cpu"]
    taken = state.pop_tensors()
    assert [taken[0].device.type, taken[1].device.type] == hollow_devices
    state.insert_tensors([torch.zeros(2), taken[1]])
    state.copy_tensors_to_cpu()
    state.pop_tensors()
    assert [p.device for p in state.state_dict.values()] == hollow_devices
    state.insert_tensors([torch.zeros(2), taken[1]])
    state.restore_tensor_device()
    assert [t.device.type for t in state.tensors] == hollow_devices
    assert state.state_dict["c"] is taken[1]


def test_no_tensors_at_all() -> None:
    state = BasicTensorAwareStateDict({"a": 1})
    assert state.pop_tensors() == []
    state.insert_tensors([])
    assert not state.is_hollow
    assert state.state_dict == {"a": 1}
