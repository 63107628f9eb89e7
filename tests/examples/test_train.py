"""The parts of the character model's training script; the demo's test runs it as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from examples.char_lm import train  # noqa: E402 - it needs torch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
VOCABULARY = 10


@pytest.fixture
def rank_1_of_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(train.dist, "get_world_size", lambda: 2)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank whose collectives do nothing but what one rank would see."""
    monkeypatch.setattr(train.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(train.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(train.dist, "broadcast", lambda tensor, src: None)
    monkeypatch.setattr(train.dist, "gather", lambda tensor, into: into[0].copy_(tensor))


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


def test_resuming_goes_on_bit_for_bit(alone: None, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    one_step(model, optimizer)
    train.save(tmp_path, 1, model, optimizer)
    one_step(model, optimizer)  # dropout draws from the random state, AdamW from its moments

    resumed, its_optimizer = model_and_optimizer(seed=99)
    assert train.resume(tmp_path, resumed, its_optimizer) == 1
    one_step(resumed, its_optimizer)
    assert train.digest(resumed) == train.digest(model)


def test_without_checkpoint_it_starts_from_scratch(alone: None, tmp_path: Path) -> None:
    assert train.resume(tmp_path / "none", *model_and_optimizer()) == 0


def test_latest_checkpoints_are_kept_in_order_of_steps(alone: None, tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    for step in (99_999_999, 100_000_000, 100_000_001):  # by name the first would be the last
        train.save(tmp_path, step, model, optimizer)
    assert [train.step_of(one) for one in train.checkpoints(tmp_path)] == [100_000_000, 100_000_001]


def test_a_write_that_fails_leaves_no_checkpoint_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-00000002.pt"

    def disk_full(content: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(train.torch, "save", disk_full)
        with pytest.raises(OSError, match="No space"):
            train.write_atomically(path, {"step": 2})
    assert train.checkpoints(tmp_path) == []

    train.write_atomically(path, {"step": 2})  # what was left is no obstacle
    assert train.checkpoints(tmp_path) == [path]
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_rank_that_does_not_write_leaves_the_disk_alone(
    rank_1_of_2: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[object] = []
    monkeypatch.setattr(train.dist, "gather", lambda tensor, into: gathered.append(into))
    train.save(tmp_path, 5, *model_and_optimizer())
    assert gathered == [None]
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_ranks_is_refused_with_the_remedy(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.save(tmp_path, 3, *model_and_optimizer())
    monkeypatch.setattr(train.dist, "get_world_size", lambda: 4)
    with pytest.raises(SystemExit, match=r"written by 1 ranks, this run has 4: start as many"):
        train.resume(tmp_path, *model_and_optimizer())
