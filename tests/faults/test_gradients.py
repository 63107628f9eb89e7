"""Spoilt gradients: of one update, and no more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch

from undaunted.faults.injectors import inject

if TYPE_CHECKING:
    from undaunted.faults.plan import Kind


def test_the_next_update_has_nan_and_those_after_it_have_not() -> None:
    dense = torch.ones(3, requires_grad=True)
    sparse = torch.nn.Embedding(4, 2, sparse=True)
    unused = torch.ones(2, requires_grad=True)
    other = torch.ones(1, requires_grad=True)
    spoilt = torch.optim.SGD([dense, unused, *sparse.parameters()], lr=0.1)
    clean = torch.optim.SGD([other], lr=0.1)
    (dense.sum() + sparse(torch.tensor([1])).sum() + other.sum()).backward()
    inject("nan")
    spoilt.step()
    clean.step()
    assert dense.isnan().all()
    assert sparse.weight[1].isnan().all()
    assert sparse.weight[0].isfinite().all()
    assert unused.isfinite().all()
    assert other.isfinite().all()


def test_without_torch_there_is_nothing_to_spoil(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    inject("nan")
    assert "torch is not imported" in capfd.readouterr().err


def gradients(model: torch.nn.Linear, passes: int) -> list[torch.Tensor]:
    found = []
    for _ in range(passes):
        model.zero_grad()
        model(torch.tensor([[1.0, -3.0]])).sum().backward()
        assert model.weight.grad is not None
        found.append(model.weight.grad.clone())
    return found


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("wrong-result", [True, False]), ("wrong-result-always", [True, True])],
)
def test_a_bit_of_a_gradient_is_wrong_in_one_pass_or_in_all(kind: Kind, wrong: list[bool]) -> None:
    model = torch.nn.Linear(2, 1)
    right = torch.tensor([[1.0, -3.0]])
    inject(kind)
    with torch.no_grad():
        model(torch.ones(1, 2))  # an evaluation has no gradients
    expected = [torch.tensor([[1.0, 3.0]]) if bad else right for bad in wrong]
    assert all(map(torch.equal, gradients(model, 2), expected))
    assert torch.equal(gradients(torch.nn.Linear(2, 1), 1)[0], right)
