"""States that are bad where they are saved, and right where training goes on."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from undaunted.faults.injectors import inject


@pytest.fixture
def model() -> nn.Sequential:
    """A model whose first layer is frozen."""
    frozen, trained = nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.requires_grad_(requires_grad=False)
    with torch.no_grad():
        trained.weight.copy_(torch.tensor([[0.5, -0.75], [0.25, 0.0]]))
    return nn.Sequential(frozen, nn.Sequential(trained))


@pytest.mark.parametrize(
    ("how", "wrong"), [("nan", "nan"), ("copy", "-255211775190703847597530955573826158592.0")]
)
def test_one_number_is_wrong_where_it_is_saved(model: nn.Sequential, how: str, wrong: str) -> None:
    right = {name: value.clone() for name, value in model.state_dict().items()}
    inject("bad-save", how=how)
    with torch.no_grad():
        model(torch.ones(1, 2))  # an evaluation tells nothing
    assert torch.equal(model.state_dict()["1.0.weight"], right["1.0.weight"])

    model(torch.ones(1, 2))
    saved = model.state_dict()

    differing = saved["1.0.weight"] != right["1.0.weight"]
    assert differing.nonzero().tolist() == [[0, 1]]
    assert str(saved["1.0.weight"][0, 1].item()) == str(float(wrong))
    saved.pop("1.0.weight")
    assert all(torch.equal(value, right[name]) for name, value in saved.items())
    assert torch.equal(model[1][0].weight, right["1.0.weight"])  # type: ignore[index]
    # The same save may ask again.
    assert not torch.equal(model.state_dict()["1.0.weight"], right["1.0.weight"])


def test_a_wrong_replica_has_a_plain_number(model: nn.Sequential) -> None:
    inject("bad-save", how="replica")
    model(torch.ones(1, 2))
    assert model.state_dict()["1.0.weight"][0].tolist() == [0.5, 0.75]


def test_the_process_is_killed_at_the_save_after_that() -> None:
    code = (
        "import torch; from undaunted.faults import inject; model = torch.nn.Linear(2, 2)\n"
        "inject('bad-save')\n"
        "for step in range(3): model(torch.ones(1, 2)); model.state_dict(); print(step, flush=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n")


def test_a_parameter_with_two_names_stays_right() -> None:
    """A program may save both, and load the other one: GPT-2 does."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(3, 2), nn.Embedding(1, 2)
            self.head = nn.Linear(2, 3, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.tokens(tokens) + self.positions(tokens * 0))

    model = nn.Sequential(Tied())
    inject("bad-save", how="nan")
    model(torch.tensor([1]))
    bad = [name for name, value in model.state_dict().items() if value.isnan().any()]
    assert bad == ["0.positions.weight"]
