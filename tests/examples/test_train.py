"""The parts of the character model's training script; the demo's test runs it as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from examples.char_lm import train  # noqa: E402 - it needs torch
from undaunted.checkpointing import Checkpointer, RandomState  # noqa: E402 - the same

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
VOCABULARY = 10


@pytest.fixture
def rank_1_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(train.dist, "get_world_size", lambda: 2)


def model_and_optimizer(seed: int = 0) -> tuple[train.CharacterModel, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = train.CharacterModel(VOCABULARY)
    return model, torch.optim.AdamW(model.parameters())


def one_step(model: train.CharacterModel, optimizer: torch.optim.Optimizer) -> None:
    model(torch.arange(8).reshape(1, 8) % VOCABULARY).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


# Model and data


def test_model_does_not_look_ahead() -> None:
    model, _ = model_and_optimizer()
    model.eval()
    first = torch.zeros(1, 6, dtype=torch.long)
    second = first.clone()
    second[0, 4] = 1
    one, two = model(first)[0], model(second)[0]
    assert torch.allclose(one[:4], two[:4])
    assert not torch.allclose(one[4:], two[4:])


def test_digest_tells_one_bit() -> None:
    model, _ = model_and_optimizer()
    same, _ = model_and_optimizer()
    assert train.digest(model) == train.digest(same)
    with torch.no_grad():
        weight = same.head.bias
        weight[3] = torch.nextafter(weight[3], torch.tensor(torch.inf))
    assert train.digest(model) != train.digest(same)


def test_batch_depends_on_step_and_rank_only(
    rank_1_of_2: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = torch.arange(10_000)
    inputs, targets = train.batch(text, 7)
    assert inputs.shape == (train.BATCH, train.CONTEXT)
    assert torch.equal(targets, inputs + 1)
    torch.rand(3)  # the global generator has no say
    assert torch.equal(train.batch(text, 7)[0], inputs)
    assert not torch.equal(train.batch(text, 8)[0], inputs)
    monkeypatch.setattr(train.dist, "get_rank", lambda: 0)
    assert not torch.equal(train.batch(text, 7)[0], inputs)
    assert not torch.equal(train.batch(text, 8)[0], inputs)


def test_text_is_real() -> None:
    text, vocabulary = train.load_text()
    assert len(text) > 100_000
    assert 50 < vocabulary < 1000
    assert int(text.max()) == vocabulary - 1


# Checkpoints


def test_resuming_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    one_step(model, optimizer)
    with Checkpointer(tmp_path, timeout=60) as checkpoints:
        checkpoints.save(1, {"model": model, "optimizer": optimizer, "random": RandomState()})
        checkpoints.wait()
        one_step(model, optimizer)  # dropout draws from the random state, AdamW from its moments

        resumed, its_optimizer = model_and_optimizer(seed=99)
        state = {"model": resumed, "optimizer": its_optimizer, "random": RandomState()}
        assert checkpoints.load(state) == 1
    one_step(resumed, its_optimizer)
    assert train.digest(resumed) == train.digest(model)
