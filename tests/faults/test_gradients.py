"""Spoilt gradients: of one update, and no more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from undaunted.faults.injectors import inject

if TYPE_CHECKING:
    import pytest


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
