"""Schedulers, averages and scalers: their state counts where training uses them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

from undaunted.digests.companions import Companions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.digests.state import Parts


@pytest.fixture
def companions() -> Iterator[Companions]:
    one = Companions()
    yield one
    one.remove()


class Training:
    """A model with everything beside it; every update ends with a look at the companions."""

    def __init__(self, companions: Companions) -> None:
        torch.manual_seed(1)
        self.companions = companions
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 100)
        self.average = AveragedModel(self.model)
        self.scaler = GradScaler("cpu", init_scale=4.0)

    def update(self) -> Parts:
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(torch.ones(1, 2)).sum()).backward()
        self.scaler.step(self.optimizer)
        self.companions.updated()
        self.scaler.update()
        self.scheduler.step()
        self.average.update_parameters(self.model)
        return self.companions.parts()

    def state(self, *without: str) -> dict[str, Any]:
        names = {"model", "optimizer", "scheduler", "average", "scaler"} - set(without)
        return {name: copy.deepcopy(getattr(self, name).state_dict()) for name in names}


def resumed(companions: Companions, state: dict[str, Any]) -> Training:
    companions.forget()
    training = Training(companions)
    for name, one in state.items():
        getattr(training, name).load_state_dict(one)
    return training


def test_what_is_restored_is_as_it_was(companions: Companions) -> None:
    training = Training(companions)
    training.update()
    saved = training.state()
    expected = training.update()
    assert set(expected) == {"scheduler", "average", "scaler"}

    assert resumed(companions, saved).update() == expected


@pytest.mark.parametrize("part", ["scheduler", "average", "scaler"])
def test_what_is_not_restored_differs(companions: Companions, part: str) -> None:
    training = Training(companions)
    training.update()
    saved = training.state(part)
    expected = training.update()

    found = resumed(companions, saved).update()

    assert [name for name in expected if found[name] != expected[name]] == [part]


def test_one_made_with_the_number_it_had_counted_to_is_as_it_was(companions: Companions) -> None:
    training = Training(companions)
    training.update()
    saved = training.state("scheduler")
    expected = training.update()

    again = resumed(companions, saved)
    again.scheduler = lr_scheduler.StepLR(again.optimizer, 100, last_epoch=0)
    assert again.scheduler.last_epoch == 1

    assert again.update() == expected


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_what_is_only_made_or_led_to_its_place_does_not_count(companions: Companions) -> None:
    training = Training(companions)
    for _ in range(3):
        training.scheduler.step()
    companions.updated()

    assert companions.parts() == {}
    assert set(training.update()) == {"scheduler", "average", "scaler"}
    assert companions.parts() == {}  # since then, nothing was used


def test_several_are_told_apart(companions: Companions) -> None:
    training = Training(companions)
    other = AveragedModel(training.model, use_buffers=True)
    companions.updated()
    for average in (training.average, other, training.average):
        average.update_parameters(training.model)

    assert list(companions.parts()) == ["average", "2.average"]


def test_one_that_is_gone_is_left_out(companions: Companions) -> None:
    companions.updated()
    AveragedModel(nn.Linear(2, 1)).update_parameters(nn.Linear(2, 1))

    assert companions.parts() == {}


def test_nothing_is_left_of_it() -> None:
    before = lr_scheduler.LRScheduler.step, AveragedModel.update_parameters, GradScaler.update
    companions = Companions()
    assert lr_scheduler.LRScheduler.step is not before[0]

    companions.remove()

    after = lr_scheduler.LRScheduler.step, AveragedModel.update_parameters, GradScaler.update
    assert after == before
