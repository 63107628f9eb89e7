"""Forward passes and updates of programs that know nothing of being watched."""

from __future__ import annotations

import contextlib
import copy
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from undaunted.digests.generators import Generators
from undaunted.digests.hooks import Companions, Hooks
from undaunted.digests.observer import Observer, Past
from undaunted.digests.record import FORWARD, UPDATE, Record, Recorder, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from undaunted.digests.state import Parts


class Watch:
    """An observer of rank 0, in a process that may not be its first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        past = Past(self.records)
        self.announced: list[int] = []
        self.observer = Observer(
            Recorder(directory, 0),
            Generators(directory, 0),
            rank=0,
            round_=0,
            announce=self.announced.append,
            past=lambda: past,
        )

    @property
    def records(self) -> list[Record]:
        return read_records(self.directory).by_rank.get(0, [])

    @property
    def kinds(self) -> list[tuple[int, str, int]]:
        return [(one.iteration, one.at, one.n) for one in self.records]


@pytest.fixture
def watch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Watch]:
    watch = Watch(tmp_path)
    hooks = Hooks(watch.observer)
    try:
        yield watch
    finally:
        hooks.remove()
    assert "not recorded" not in capfd.readouterr().err


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def descend(net: Any, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), torch.ones(len(x), 1)).backward()
    optimizer.step()


def data(iteration: int) -> torch.Tensor:
    return torch.full((4, 2), float(iteration)) + torch.arange(4).reshape(4, 1)


def test_a_script_that_counts(watch: Watch) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    for iteration in (5, 6):
        watch.observer.step(iteration, None)
        descend(net, optimizer, data(iteration))
    assert watch.kinds == [(5, FORWARD, 0), (5, UPDATE, 0), (6, FORWARD, 0), (6, UPDATE, 0)]
    first, update, second, _ = watch.records
    assert set(first.parts) == {"data", "rng", "parameters", "buffers"}
    assert set(update.parts) == {"gradients", "parameters", "optimizer"}
    assert first.parts["parameters"] != second.parts["parameters"]
    assert not first.counted
    assert first.finite == update.finite == ""


def test_what_is_beside_model_and_optimizer_counts_where_an_update_begins(watch: Watch) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for iteration in (5, 6, 3, 4):  # it goes back, as a function that is restarted inside
        watch.observer.step(iteration, None)
        descend(net, optimizer, data(iteration))
        scheduler.step()
    begun = [set(one.parts) for one in watch.records if one.at == FORWARD]
    assert ["scheduler" in parts for parts in begun] == [False, True, False, True]


def test_a_script_that_does_not(watch: Watch) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    descend(net, optimizer, data(0))
    assert watch.records == []  # nobody knows yet
    descend(net, optimizer, data(1))
    descend(net, optimizer, data(2))
    assert watch.kinds == [(i, at, 0) for i in range(3) for at in (FORWARD, UPDATE)]
    assert all(one.counted for one in watch.records)
    assert watch.announced == [0, 1, 2]


def test_a_process_that_resumes_goes_on_counting(tmp_path: Path) -> None:
    def run(iterations: range, state: dict[str, Any] | None) -> tuple[Watch, dict[str, Any]]:
        watch = Watch(tmp_path)
        hooks = Hooks(watch.observer)
        try:
            net = model()
            net.load_state_dict(state or net.state_dict())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for iteration in iterations:
                descend(net, optimizer, data(iteration))
                if iteration == 2:
                    state = {name: one.clone() for name, one in net.state_dict().items()}
        finally:
            hooks.remove()
        return watch, state or {}

    first, state = run(range(6), None)
    again, _ = run(range(3, 5), state)
    anew, _ = run(range(2), None)
    announced = [watch.announced for watch in (first, again, anew)]
    assert announced == [[0, 1, 2, 3, 4, 5], [3, 4], [0, 1]]
    records = first.records
    assert records[12:16] == records[6:10]


def test_a_process_that_goes_on_after_the_last_update_goes_on_counting(tmp_path: Path) -> None:
    net = model()
    for iterations in (range(3), range(3, 5)):
        watch = Watch(tmp_path)
        hooks = Hooks(watch.observer)
        try:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for iteration in iterations:
                descend(net, optimizer, data(iteration))
        finally:
            hooks.remove()
        assert watch.announced == list(iterations)


def test_accumulated_gradients(watch: Watch) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.observer.step(0, None)
    for part in range(3):
        net(data(part)).sum().backward()
    optimizer.step()
    assert watch.kinds == [*((0, FORWARD, n) for n in range(3)), (0, UPDATE, 0)]
    first, second, third, _ = watch.records
    assert set(second.parts) == {"data", "rng"}
    assert len({one.parts["data"] for one in (first, second, third)}) == 3


def test_a_model_that_plays_is_not_recorded_without_end(watch: Watch) -> None:
    net = model()
    watch.observer.step(0, None)
    for _ in range(40):
        net(data(0))
    assert len(watch.records) == 16


def test_several_optimizers(watch: Watch) -> None:
    one, other = model(), model()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other)]
    watch.observer.step(0, None)
    descend(one, optimizers[0], data(0))
    descend(other, optimizers[1], data(0))
    assert watch.kinds == [(0, FORWARD, 0), (0, UPDATE, 0), (0, FORWARD, 1), (0, UPDATE, 1)]


def test_further_models_of_an_update(watch: Watch) -> None:
    one, other = model(), model()
    frozen = model().requires_grad_(requires_grad=False)
    watch.observer.step(0, None)
    for net in (one, other, frozen, other):
        net(data(0)).sum()
    assert watch.kinds == [(0, FORWARD, n) for n in range(3)]
    state = {"data", "rng", "parameters", "buffers"}
    assert [set(record.parts) for record in watch.records] == [state, state, {"data", "rng"}]


def test_two_optimizers_of_one_pass_are_one_counted_iteration(watch: Watch) -> None:
    net = model()
    optimizers = [torch.optim.SGD(net[at].parameters(), lr=0.1) for at in (0, 2)]
    for iteration in range(3):
        net(data(iteration)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert watch.announced == [0, 1, 2]


def test_evaluation_losses_and_preparation_are_not_recorded(watch: Watch) -> None:
    net, loss, prepare = model(), nn.MSELoss(), nn.Dropout()
    watch.observer.step(0, None)
    net.eval()
    net(data(0))
    net.train()
    with torch.no_grad():
        net(data(0))
    loss(net(prepare(data(0))), torch.ones(4, 1))
    assert watch.kinds == [(0, FORWARD, 0)]


def test_a_forward_pass_that_raises(watch: Watch) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.observer.step(0, None)
    with pytest.raises(RuntimeError):
        net(torch.ones(4, 7))
    descend(net, optimizer, data(0))
    assert watch.kinds == [(0, FORWARD, 0), (0, FORWARD, 1), (0, UPDATE, 0)]


def test_a_forward_pass_that_an_interrupt_ends(watch: Watch) -> None:
    class Interrupted(nn.Linear):  # type: ignore[misc] # torch is Any here
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            raise KeyboardInterrupt

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.observer.step(0, None)
    with contextlib.suppress(KeyboardInterrupt):
        nn.Sequential(Interrupted(2, 2))(data(0))
    optimizer.step()
    watch.observer.step(1, None)
    descend(net, optimizer, data(1))
    assert watch.kinds[-2:] == [(1, FORWARD, 0), (1, UPDATE, 0)]


def test_a_restart_inside_of_the_process(watch: Watch) -> None:
    class Interrupted(nn.Linear):  # type: ignore[misc] # torch is Any here
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
            raise KeyboardInterrupt

    net = model()
    watch.observer.step(4, None)
    net(data(4))  # of an update that is never made
    with contextlib.suppress(KeyboardInterrupt):
        nn.Sequential(Interrupted(2, 2))(data(4))
    watch.observer.step(3, None)
    again = model()
    descend(again, torch.optim.SGD(again.parameters(), lr=0.1), data(3))
    assert watch.kinds == [(4, FORWARD, 0), (4, FORWARD, 1), (3, FORWARD, 0), (3, UPDATE, 0)]


def test_modules_with_parameters_of_their_own_making(watch: Watch) -> None:
    class Odd(nn.Linear):  # type: ignore[misc] # torch is Any here
        def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
            raise RuntimeError(recurse)

    watch.observer.step(0, None)
    Odd(2, 2)(data(0))
    assert watch.records == []


def test_keyword_arguments_are_data(watch: Watch) -> None:
    class Keywords(nn.Linear):  # type: ignore[misc] # torch is Any here
        def forward(self, *, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    net = Keywords(2, 1)
    watch.observer.step(0, None)
    for value in (1.0, 1.0, 2.0):
        net(x=torch.full((1, 2), value))
    same, again, other = (one.parts["data"] for one in watch.records)
    assert same == again != other


def test_what_backward_computes_anew_is_no_pass(watch: Watch) -> None:
    net, after = model(), nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*net.parameters(), *after.parameters()], lr=0.1)
    watch.observer.step(0, None)
    result = after(checkpoint(net, data(0).requires_grad_(), use_reentrant=False))
    optimizer.step()  # of another model, say: the next pass would begin an update
    result.sum().backward()
    assert watch.kinds == [(0, FORWARD, 0), (0, FORWARD, 1), (0, UPDATE, 0)]


def test_gradients_that_are_not_finite(watch: Watch) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.observer.step(0, None)
    net(data(0)).sum().backward()
    next(net.parameters()).grad.fill_(float("nan"))
    optimizer.step()
    assert [one.finite for one in watch.records] == ["", "no"]


def test_updates_are_counted_where_there_are_no_passes(watch: Watch) -> None:
    weight = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        (weight - 1).square().sum().backward()
        optimizer.step()
    assert watch.kinds == [(i, UPDATE, 0) for i in range(3)]


def test_a_step_that_only_makes_room_for_a_state_is_no_update(watch: Watch) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    get_state_dict(net, optimizer)
    assert optimizer.state
    for iteration in range(2):
        descend(net, optimizer, data(iteration))
    assert watch.kinds == [(i, at, 0) for i in range(2) for at in (FORWARD, UPDATE)]


def test_compiled_models_work_and_have_nothing_of_ours_inside(watch: Watch) -> None:
    plain, net = model(), model()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    watch.observer.step(0, None)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    descend(compiled, optimizer, data(0))
    descend(plain, torch.optim.SGD(plain.parameters(), lr=0.1), data(0))
    assert torch.equal(plain[0].weight, net[0].weight)
    assert watch.kinds[:2] == [(0, FORWARD, 0), (0, UPDATE, 0)]


def test_modules_compiled_in_place_and_compiled_functions(watch: Watch) -> None:
    net = model()
    net.compile(backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.observer.step(0, None)
    descend(net, optimizer, data(0))
    function = torch.compile(lambda x: net(x).sum(), backend="eager")
    function(data(1)).backward()
    assert (0, UPDATE, 0) in watch.kinds


def test_traced_models_have_nothing_of_ours_inside(watch: Watch) -> None:
    net = nn.Linear(2, 1)
    watch.observer.step(0, None)
    with warnings.catch_warnings():  # some versions of torch warn of it
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(net, torch.ones(1, 2))
    assert "bitwise" not in str(traced.graph)
    assert watch.records == []


def test_threads_have_passes_of_their_own(watch: Watch) -> None:
    net, other = model(), model()
    watch.observer.step(0, None)

    class Inside(nn.Module):  # type: ignore[misc] # torch is Any here
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(target=other, args=(x,))
            thread.start()
            thread.join()
            result: torch.Tensor = net(x)
            return result

    outer = Inside()
    outer.net = net
    outer(data(0))
    assert watch.kinds == [(0, FORWARD, 0)]


def test_random_numbers_and_results_are_those_without(tmp_path: Path) -> None:
    def trained() -> tuple[torch.Tensor, torch.Tensor]:
        net = nn.Sequential(model(), nn.Dropout())
        optimizer = torch.optim.AdamW(net.parameters())
        for iteration in range(3):
            descend(net, optimizer, data(iteration))
        return torch.get_rng_state(), torch.cat([one.reshape(-1) for one in net.parameters()])

    expected = trained()
    hooks = Hooks(Watch(tmp_path).observer)
    try:
        found = trained()
    finally:
        hooks.remove()
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


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
