from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from undaunted.checkpointing.dcp.stateful import is_stateful

pytestmark = pytest.mark.torch


class Half:
    def state_dict(self) -> dict[str, Any]:
        return {}


def test_modules_and_optimizers_are() -> None:
    model = torch.nn.Linear(1, 1)
    assert is_stateful(model)
    assert is_stateful(torch.optim.SGD(model.parameters()))


@pytest.mark.parametrize("value", [torch.ones(1), OrderedDict(a=1), [1], "x", 1, 1.0, None, Half()])
def test_others_are_not(value: Any) -> None:
    assert not is_stateful(value)
