"""Steps that run twice: what is compared, and that nothing else changes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - needs torch

from tests.training.gloo_ranks import DEADLINE_S, run  # noqa: E402
from undaunted.digests.state import digest_of  # noqa: E402
from undaunted.training import (  # noqa: E402
    NotReproducibleError,
    Replay,
    Rerun,
    Saved,
    Session,
    StopReason,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("replay_program.py")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(DEADLINE_S + 30)]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))


def step(model: nn.Module) -> Any:
    loss = model(torch.randn(4, 8)).square().mean() * random.random() * np.random.random()
    loss.backward()
    return loss.detach()


def passes(*each: Callable[[], object]) -> Callable[[], Any]:
    """Return a step that does something else in each of its passes."""
    left = iter(each)
    return lambda: next(left)()  # noqa: PLW0108 - the next one at each call


def found(model: nn.Module, *each: Callable[[], object], **options: Any) -> list[str]:
    """Replay a step; return the names of what differs."""
    with pytest.raises(NotReproducibleError) as raised:
        Replay(model, **options).check(7, passes(*each))
    (one,) = raised.value.mismatches
    assert (one.rank, one.iteration, one.count) == (0, 7, len(one.what))
    assert "iteration 7" in str(raised.value)
    return list(one.what)


def test_only_steps_that_are_due_run_twice(model: nn.Module) -> None:
    calls: list[int] = []
    replay = Replay(model, every=4)
    for iteration in range(9):
        replay(iteration, lambda i=iteration: calls.append(i))
    assert calls == [0, 0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8]


def test_training_ends_as_it_does_without_a_replay() -> None:
    ends = []
    for every in (2, 10**9):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        replay = Replay(model, every=every)
        losses = []
        for iteration in range(1, 8):
            losses.append(replay(iteration, lambda m=model: step(m)))
            optimizer.step()
            optimizer.zero_grad()
        state = [model.state_dict(), losses, torch.get_rng_state(), random.getstate()[1]]
        ends.append([digest_of(one) for one in [*state, np.random.get_state()]])
    assert ends[0] == ends[1]


@pytest.mark.slow
def test_any_bit_of_a_gradient_is_seen_100_of_100(model: nn.Module) -> None:
    chance = random.Random(2)
    parameters = dict(model.named_parameters())
    for _ in range(100):
        name = chance.choice([*parameters])

        def flipped(name: str = name) -> Any:
            loss = step(model)
            numbers = parameters[name].grad.view(-1).view(torch.uint8)
            numbers[chance.randrange(len(numbers))] ^= 1 << chance.randrange(8)
            return loss

        both = [flipped, lambda: step(model)]
        chance.shuffle(both)
        assert found(model, *both) == [f"gradient of {name}"]
        model.zero_grad()


def test_what_else_is_compared(model: nn.Module) -> None:
    norm: Any = model[1]

    def draws(draw: Callable[[], object]) -> list[Callable[[], object]]:
        model.zero_grad()
        return [lambda: step(model), lambda: (step(model), draw())[0]]

    assert found(model, *draws(random.random)) == ["generator of python"]
    assert found(model, *draws(lambda: torch.rand(1))) == ["generator of torch"]
    assert found(model, *draws(np.random.random)) == ["generator of numpy"]
    assert found(model, *draws(norm.running_mean.neg_)) == ["buffer 1.running_mean"]
    model.zero_grad()
    assert found(model, lambda: 1.0, lambda: -1.0) == ["loss"]
    assert found(model, lambda: 0.0, lambda: -0.0) == ["loss"]


def test_buffers_that_a_pass_replaces_or_makes_are_put_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.register_buffer("cache", None)

        def forward(self) -> torch.Tensor:
            self.steps = self.steps + 1
            if self.cache is None:
                self.cache = torch.ones(2)
            else:
                self.cache = self.cache + 1
            return self.steps.clone()

    counting = Counting()
    assert Replay(counting).check(0, counting) == 1
    assert (counting.steps, counting.cache.tolist()) == (1, [1.0, 1.0])


def test_what_the_caller_keeps_is_put_back_and_compared(model: nn.Module) -> None:
    tokens = [5]

    def counted() -> float:
        tokens[0] += 3
        return float(tokens[0])

    saved = Saved(lambda: tokens[0], lambda value: tokens.__setitem__(0, value))
    assert Replay(model, saved=saved).check(0, counted) == 8.0
    assert tokens == [8]
    assert found(model, lambda: 1.0, lambda: counted() * 0 + 1, saved=saved) == [
        "state of the caller"
    ]


def test_gradients_that_are_there_already_are_refused(model: nn.Module) -> None:
    step(model)
    with pytest.raises(RuntimeError, match=r"0\.weight has a gradient .*zero_grad"):
        Replay(model).check(0, lambda: step(model))


def test_who_wants_to_hear_of_it_is_told_instead(model: nn.Module) -> None:
    heard: list[Any] = []
    replay = Replay(model, on_mismatch=heard.append)
    assert replay.check(3, passes(lambda: 1.0, lambda: 2.0)) == 2.0
    ((one,),) = heard
    assert (one.what, one.iteration) == (("loss",), 3)


def test_many_differences_are_counted_and_the_first_are_named() -> None:
    wide = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(20))

    def gives(value: float) -> None:
        for one in wide:
            one.grad = torch.full((1,), value)

    with pytest.raises(NotReproducibleError, match="and 12 more") as raised:
        Replay(wide).check(0, passes(lambda: gives(1.0), lambda: gives(2.0)))
    assert raised.value.mismatches[0].count == 20


def test_a_bad_interval_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="every is 0"):
        Replay(model, every=0)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [("plain", 2), ("ddp", 3), ("views", 3), ("static", 2), ("batches", 3), ("sharded", 2)],
)
def test_ranks_end_as_they_do_without_a_replay(tmp_path: Path, kind: str, ranks: int) -> None:
    for said in run(PROGRAM, ranks, tmp_path, "same", kind):
        assert said["with"] == said["without"]


@pytest.mark.e2e
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("views", 4)])
def test_a_flipped_bit_of_a_local_gradient_is_caught_before_the_optimizer(
    tmp_path: Path, kind: str, ranks: int
) -> None:
    for said in run(PROGRAM, ranks, tmp_path, "flips", kind):
        assert said == {"caught": 100, "named": 100, "updates": 0}


# --- inside of a session that computes odd results again ------------------------------------------


@pytest.fixture
def slot(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what moves this process to another slot; it is on slot 0."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    return lambda name: monkeypatch.setenv("LOCAL_RANK", name)


class Spoiled:
    """Another bit of a gradient is wrong in each pass that is bad."""

    def __init__(self, bad: Callable[[int, int], bool]) -> None:
        self.bad, self.passes = bad, 0

    def __call__(self, model: nn.Module, iteration: int) -> None:
        self.passes += 1
        if self.bad(iteration, self.passes):
            numbers = next(model.parameters()).grad.view(-1).view(torch.int32)
            numbers[self.passes % len(numbers)] ^= 1 << 20


def train(
    folder: Path, spoil: Spoiled, *, every: int = 3, replayed: Any = Replay, **settings: Any
) -> tuple[Session, str]:
    """Train from where it was saved last; return the session, and a digest of what it ends with."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    replay = replayed(model, every=every)
    path, start = folder / "state.pt", 0
    if path.exists():
        *state, start = torch.load(path)
        for one, content in zip((model, optimizer), state, strict=True):
            one.load_state_dict(content)

    def save(iteration: int) -> None:
        torch.save([model.state_dict(), optimizer.state_dict(), iteration + 1], path)

    def forward_backward() -> Any:
        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(iteration))
        loss = model(batch).square().mean()
        loss.backward()
        spoil(model, iteration)
        return loss.detach()

    rerun = Rerun(folder=folder, **settings) if settings.pop("again", True) else None
    with Session(save=save, rerun=rerun) as session:
        for iteration in range(start, 8):
            with session.step(iteration):
                for _ in session.attempts():
                    optimizer.zero_grad()
                    loss = replay(iteration, forward_backward)
                    session.check(loss, "loss")
                optimizer.step()
            if session.should_stop(iteration):
                break
    return session, digest_of([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()])


@pytest.fixture
def undisturbed(tmp_path: Path, slot: Callable[[str], None]) -> str:
    """Return the digest of a training in which nothing runs twice."""
    session, digest = train(tmp_path, Spoiled(lambda *_: False), every=10**9, again=False)
    assert session.stop is None
    return digest


def test_a_session_that_replays_ends_as_one_that_does_not(tmp_path: Path, undisturbed: str) -> None:
    spoil = Spoiled(lambda *_: False)
    session, digest = train(tmp_path, spoil)
    assert (session.stop, digest) == (None, undisturbed)
    assert spoil.passes == 8 + 3


@pytest.mark.parametrize("wrong", [5, 6])
def test_passes_that_agree_when_computed_again_differed_by_a_transient_error(
    tmp_path: Path, undisturbed: str, wrong: int
) -> None:
    session, _ = train(tmp_path, Spoiled(lambda _, number: number == wrong))
    assert (session.stop.reason, session.stop.iteration) == (StopReason.INVALID, 2)
    assert "two passes of the step differ in iteration 3, computed on cpu:0" in session.stop.text
    assert "a transient error" in session.stop.text

    spoil = Spoiled(lambda _, number: number == wrong)
    session, digest = train(tmp_path, spoil, go_on_after=["transient_error"])
    assert (session.stop, digest) == (None, undisturbed)
    assert spoil.passes == 8 + 3 + 2


def test_passes_that_differ_on_one_slot_only_are_its_fault(
    tmp_path: Path, undisturbed: str, slot: Callable[[str], None]
) -> None:
    spoil = Spoiled(lambda iteration, _: iteration >= 3 and os.environ["LOCAL_RANK"] == "0")
    settings = {"go_on_after": ["transient_error", "persistent_error"]}
    session, _ = train(tmp_path, spoil, **settings)
    assert (session.stop.reason, session.exit_code) == (StopReason.SUSPECT, 16)
    assert torch.load(tmp_path / "state.pt")[-1] == 3
    slot("1")
    session, digest = train(tmp_path, spoil, **settings)
    assert (session.stop, digest) == (None, undisturbed)


def test_a_step_whose_passes_differ_everywhere_is_not_deterministic(
    tmp_path: Path, slot: Callable[[str], None]
) -> None:
    spoil = Spoiled(lambda iteration, _: iteration >= 3)
    settings = {"go_on_after": ["transient_error", "persistent_error"]}
    assert train(tmp_path, spoil, **settings)[0].exit_code == 16
    slot("1")
    session, _ = train(tmp_path, spoil, **settings)
    assert (session.stop.reason, session.exit_code) == (StopReason.INVALID, 17)
    assert "the step is not deterministic" in session.stop.text


def test_without_rerun_passes_that_differ_raise(
    tmp_path: Path, slot: Callable[[str], None]
) -> None:
    spoil = Spoiled(lambda iteration, _: iteration >= 3)
    for settings in ({"again": False}, {"mode": "report_determinism_stats"}):
        with pytest.raises(NotReproducibleError):
            train(tmp_path, spoil, **settings)


def test_who_wants_to_hear_of_it_is_told_inside_of_attempts_too(
    tmp_path: Path, slot: Callable[[str], None]
) -> None:
    heard: list[Any] = []

    def replayed(model: nn.Module, every: int) -> Replay:
        return Replay(model, every=every, on_mismatch=heard.append)

    spoil = Spoiled(lambda _, number: number == 5)
    session, _ = train(tmp_path, spoil, replayed=replayed)
    assert session.stop is None
    assert [one.iteration for (one,) in heard] == [3]
