from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.checkpointing.dcp.saved import alone
from tests.checkpointing.dcp.test_saving import together
from undaunted.agreement.agreement import Agreement
from undaunted.checkpointing.dcp.loading import fill
from undaunted.checkpointing.dcp.saving import Saver
from undaunted.checkpointing.dcp.states import is_stateful
from undaunted.checkpointing.errors import AGREED, SaveError, StructureError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:Sparse")]


def jagged() -> torch.Tensor:
    tensors = [torch.ones(2), torch.ones(3)]
    return torch.nested.nested_tensor(tensors, layout=torch.jagged)


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


class Broken:
    def state_dict(self) -> dict[str, Any]:
        raise KeyError("lost")

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda: None, "has to be a dictionary.*it is NoneType"),
        (lambda: [1], "it is list"),
        (lambda: torch.nn.Linear(1, 1), "it is Linear"),
        (lambda: {"m": torch.nn.Linear}, "m is the class Linear"),
        (lambda: {"m": Broken()}, r"m: state_dict\(\) of Broken has failed: KeyError: 'lost'"),
        (lambda: {"a": {"b": 1}, "a.b": 2}, r"key a\.b: entries are named.*rename one"),
        (lambda: {1: 1, "1": 2}, "key 1: entries"),
        (
            lambda: {"a": {"b": torch.eye(2).to_sparse_csr()}},
            r"a\.b is a tensor of layout sparse_c",
        ),
        (lambda: {"a": torch.ones(2, 2).to_mkldnn()}, "a is a tensor of layout"),
        (lambda: {"a": {"b": torch.empty(2, dtype=torch.bits8)}}, r"a\.b is a tensor of bits8"),
        (lambda: {"a": {"b": jagged()}}, r"a\.b (cannot be saved: NestedTensor|is a NestedTensor)"),
        (lambda: {"a": endless()}, "a is nested too deeply, or contains itself"),
        (lambda: {"a": [Broken()]}, r"a\.0: state_dict\(\) of Broken has failed"),
    ],
)
def test_what_cannot_be_saved_is_said(state: Any, message: str) -> None:
    with pytest.raises(SaveError, match=message):
        Saver(alone()).plan(state(), 10)


def test_other_ranks_do_not_wait() -> None:
    store = torch.distributed.HashStore()
    states: list[Any] = [{"a": 1}, None]
    for error in together(
        lambda rank: Saver(Agreement(store, rank, 2, "s", kinds=AGREED)).plan(states[rank], 60)
    ):
        assert isinstance(error, SaveError)
        assert error.ranks == (1,)
        assert "has to be a dictionary" in str(error)


def test_dictionaries_of_other_types() -> None:
    Saver(alone()).plan(OrderedDict(a=torch.eye(2).to_sparse(), b=1), 10)


def test_loading_wants_a_dictionary_too() -> None:
    state: Any = None
    source: Any = None
    with pytest.raises(StructureError, match="has to be a dictionary"):
        fill(state, source, alone(), 10)


class Half:
    def state_dict(self) -> dict[str, Any]:
        return {}


def test_modules_and_optimizers_are_stateful() -> None:
    model = torch.nn.Linear(1, 1)
    assert is_stateful(model)
    assert is_stateful(torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize("value", [torch.ones(1), OrderedDict(a=1), [1], "x", 1, 1.0, None, Half()])
def test_others_are_not_stateful(value: Any) -> None:
    assert not is_stateful(value)
