"""Optimizers and schedulers, of torch and of others, go on exactly from a checkpoint."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.checkpointing.resuming import (
    Make,
    by_checkpointer,
    by_torch,
    equal,
    layers,
    resumed,
    undisturbed,
)
from undaunted.checkpointing import SaveError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

# Of the optimizers of other packages, if these are installed: some, or all with ALL_OPTIMIZERS=1.
ALL = os.environ.get("ALL_OPTIMIZERS") == "1"


def classes(module: Any, base: type) -> list[Any]:
    found = [one for name, one in vars(module).items() if inspect.isclass(one) and name[0] != "_"]
    return [one for one in found if issubclass(one, base) and one is not base]


def with_optimizer(kind: Any) -> dict[str, Any]:
    model: Any = layers()
    parameters = model.parameters()
    if kind is torch.optim.SparseAdam:
        model = nn.Sequential(nn.Embedding(6, 3, sparse=True))
        parameters = model.parameters()
    elif kind is getattr(torch.optim, "Muon", None):
        parameters = [one for one in model.parameters() if one.ndim == 2]
    return {"model": model, "optimizer": kind(parameters, lr=0.01)}


@pytest.mark.parametrize("kind", classes(torch.optim, torch.optim.Optimizer))
def test_optimizers_of_torch(kind: Any) -> None:
    make = partial(with_optimizer, kind)
    assert equal(resumed(make, by_checkpointer), undisturbed(make))


SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4]),
    "ConstantLR": lr_scheduler.ConstantLR,
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.MultiStepLR(o, [1, 3])], [2]
    ),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 10),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, 3),
}


def test_all_schedulers_of_torch_are_tried() -> None:
    known = {one.__name__ for one in classes(lr_scheduler, lr_scheduler.LRScheduler)}
    assert known <= SCHEDULERS.keys()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_torch(name: str) -> None:
    def make() -> dict[str, Any]:
        parts = with_optimizer(partial(torch.optim.SGD, momentum=0.9))
        return {**parts, "schedulers": [SCHEDULERS[name](parts["optimizer"])]}

    if any(map(callable, make()["schedulers"][0].state_dict().values())):
        pytest.skip(f"{name} of this torch has a method in its state, which no safe load takes")
    assert equal(resumed(make, by_checkpointer), undisturbed(make))


def with_other(make: Any, name: str) -> dict[str, Any]:
    model = layers()
    graph = name in {"adahessian", "sophiah"}  # which take the second derivative
    return {"model": model, "optimizer": make(name, model), "create_graph": graph}


def goes_on(make: Make) -> bool | None:
    """Whether it resumes exactly; None if it does not with torch either, or does not run here."""
    try:
        expected = undisturbed(make)
        known = equal(resumed(make, by_torch), expected)
    except Exception:
        return None
    return equal(resumed(make, by_checkpointer), expected) if known else None


def outcome(make: Make, types: list[Any]) -> Any:
    try:
        return goes_on(make)
    except SaveError:  # it keeps objects of its own types
        with torch.serialization.safe_globals(types):
            return "allowed" if goes_on(make) else "differs"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def check(package: str, makes: dict[str, Make]) -> None:
    modules = [one for name, one in sys.modules.items() if name.split(".")[0] == package]
    found = (one for module in modules for one in vars(module).values() if inspect.isclass(one))
    types = [one for one in found if one.__module__.split(".")[0] == package]
    outcomes = {name: outcome(make, types) for name, make in makes.items()}
    tried = {name: came for name, came in outcomes.items() if came is not None}
    print(f"{len(tried)} of {len(makes)} go on exactly with torch.save")
    print("the others:", sorted(outcomes.keys() - tried.keys()))
    print("once their types are allowed:", [n for n, came in tried.items() if came == "allowed"])
    assert tried
    wrong = {name: came for name, came in tried.items() if came not in (True, "allowed")}
    assert wrong == {}


SOME = ["adan", "conda", "aggmo", "dadaptsgd", "lamb", "lion", "adashift", "ranger21", "sophiah"]


@pytest.mark.timeout(1200)
@pytest.mark.leaves("threads")  # some use torch.compile, which keeps threads
def test_optimizers_of_pytorch_optimizer() -> None:
    package = pytest.importorskip("pytorch_optimizer")
    names = sorted(package.get_supported_optimizers()) if ALL else SOME
    # It keeps transposed tensors. New ones are contiguous, with which products round differently.
    names = [name for name in names if name != "splus"]

    def of(name: str, model: nn.Module) -> Any:
        kind = package.load_optimizer(name)
        needed = inspect.signature(kind).parameters
        if "model" in needed:
            return kind(model)
        return kind(
            model.parameters(), **({"num_iterations": 10} if "num_iterations" in needed else {})
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check("pytorch_optimizer", {name: partial(with_other, of, name) for name in names})


@pytest.mark.timeout(1200)
@pytest.mark.leaves("threads")  # some use torch.compile, which keeps threads
def test_optimizers_of_timm() -> None:
    package = pytest.importorskip("timm.optim", exc_type=ImportError)
    names = package.list_optimizers() if ALL else ["adan", "lamb", "lion", "nadamw"]

    def of(name: str, model: nn.Module) -> Any:
        return package.create_optimizer_v2(model, name, lr=1e-2)

    check("timm", {name: partial(with_other, of, name) for name in names})
