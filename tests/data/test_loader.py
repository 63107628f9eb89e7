"""`Loader`: the same samples and random numbers from any number of ranks and workers."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import random
import signal
import traceback
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from tests.e2e.launcher import launched
from undaunted.checkpointing import Checkpointer
from undaunted.data import DataChangedError, Loader, Mixture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.distributed is"),
]

Step = list[tuple[int, float, float]]


class Samples(Dataset):  # type: ignore[misc]
    """Numbers, with random numbers of torch and Python."""

    def __init__(self, length: int = 50) -> None:
        self.length = length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        self.read.append(index)
        return index, float(torch.rand(())), random.random()


class Breaking(Samples):
    """Fails, or ends its process, when one sample is read for the first time."""

    def __init__(self, at: int, by_signal: int = 0, marker: Path | None = None) -> None:
        super().__init__()
        self.at, self.by_signal, self.marker = at, by_signal, marker

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index == self.at and self.marker is not None and not self.marker.exists():
            self.marker.touch()
            if self.by_signal:
                os.kill(os.getpid(), self.by_signal)
            raise OSError("the disk hangs")
        return super().__getitem__(index)


def make(dataset: Dataset[Any] | None = None, **settings: Any) -> Loader:
    usual: dict[str, Any] = {"global_batch": 12, "micro_batch": 2, "seed": 3}
    return Loader(Samples() if dataset is None else dataset, **usual | settings)


def batch_of(loader: Loader, batch: list[torch.Tensor]) -> Step:
    rows = list(zip(*(one.tolist() for one in batch), strict=True))
    return rows[: loader.real] if loader.scale else []


def steps(loader: Loader, count: int) -> list[Step]:
    return [
        sorted(row for batch in loader.step() for row in batch_of(loader, batch))
        for _ in range(count)
    ]


def of_world(size: int, count: int, state: Any = None, **settings: Any) -> tuple[list[Step], Any]:
    """Return what all ranks together see, and the state after that."""
    seen: list[Step] = [[] for _ in range(count)]
    states = []
    for rank in range(size):
        loader = make(rank=rank, world_size=size, **settings)
        if state is not None:
            loader.load_state_dict(state)
        for at, rows in enumerate(steps(loader, count)):
            seen[at] += rows
        states.append(loader.state_dict())
        loader.close()
    assert all(one == states[0] for one in states)
    return [sorted(step) for step in seen], states[0]


@pytest.mark.parametrize("remainder", ["drop", "short", "pad"])
def test_the_world_and_workers_may_change(remainder: str) -> None:
    whole, _ = of_world(1, 12, remainder=remainder)
    first, state = of_world(3, 4, remainder=remainder)
    second, state = of_world(5, 3, state, remainder=remainder, num_workers=1)
    third, _ = of_world(2, 5, state, remainder=remainder, num_workers=2, persistent_workers=True)
    assert first + second + third == whole
    an_epoch = whole[: 4 if remainder == "drop" else 5]
    indices = [row[0] for step in an_epoch for row in step]
    assert len(set(indices)) == len(indices) == (48 if remainder == "drop" else 50)


def test_nothing_is_read_to_be_thrown_away() -> None:
    dataset = Samples(10**6)
    loader = make(dataset)
    loader.load_state_dict({**loader.state_dict(), "epoch": 5, "position": 480_000})
    steps(loader, 1)
    assert len(dataset.read) == 12
    assert dataset.read[0] == loader.order.index(5, 480_000)


def test_the_state_is_small() -> None:
    parts = [Samples(100 + number) for number in range(1000)]
    mixture = Mixture([len(one) for one in parts], [1.0] * 1000, seed=1)
    loader = make(ConcatDataset(parts), order=mixture, fingerprint="x" * 100)
    steps(loader, 2)
    assert len(json.dumps(loader.state_dict())) <= 1024


def test_a_step_that_is_left_is_done_again() -> None:
    loader, whole = make(), steps(make(), 3)
    assert steps(loader, 1) == whole[:1]
    for number, _ in enumerate(loader.step()):
        if number == 3:
            break
    assert loader.state_dict()["position"] == 12
    with pytest.raises(RuntimeError):
        loader.scale  # noqa: B018 - no micro-batch is at work
    assert steps(loader, 2) == whole[1:]


def test_a_step_that_is_left_in_its_last_micro_batch_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = make(micro_batch=12)
    first = [next(iter(loader.step()))[0].tolist() for _ in range(2)]
    assert first[0] == first[1]
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    caplog.clear()
    for _ in make().step():  # in its first one
        break
    assert not caplog.records


def test_a_step_that_is_left_and_held_is_done_again() -> None:
    loader, whole = make(), steps(make(), 3)
    assert steps(loader, 1) == whole[:1]
    held = loader.step()
    next(held)
    assert steps(loader, 1) == whole[1:2]
    held.close()
    assert steps(loader, 1) == whole[2:]
    plain, first = make(global_batch=2), steps(make(global_batch=2), 1)
    held = plain.step()
    next(held)
    assert sorted(batch_of(plain, next(iter(plain)))) == first[0]


GIVEN_UP: dict[str, Callable[[Loader, Any], object]] = {
    "close": lambda loader, _: loader.close(),
    "load_state_dict": lambda loader, state: loader.load_state_dict(state),
    "step": lambda loader, _: next(loader.step()),
}


@pytest.mark.parametrize("by", GIVEN_UP)
def test_a_step_that_was_given_up_in_its_loop_does_not_go_on(by: str) -> None:
    loader, whole = make(), steps(make(), 3)
    assert steps(loader, 1) == whole[:1]
    under_way = loader.step()
    next(under_way)
    GIVEN_UP[by](loader, loader.state_dict())
    with pytest.raises(RuntimeError, match="given up"):
        next(under_way)
    assert steps(loader, 2) == whole[1:]


def test_whole_numbers_of_other_types_are_the_same_numbers() -> None:
    np = pytest.importorskip("numpy")
    whole, loader = steps(make(), 2), make(seed=np.int64(3), global_batch=np.int32(12))
    assert json.loads(json.dumps(loader.state_dict())) == make().state_dict()
    assert steps(loader, 2) == whole
    mixed = Mixture(np.array([20, 30]), [1, 1], seed=np.int64(1), length=np.int64(40))
    assert (
        json.loads(json.dumps(mixed.settings()))
        == Mixture([20, 30], [1, 1], 1, length=40).settings()
    )
    for name in ("seed", "global_batch", "micro_batch"):
        with pytest.raises(TypeError, match=name):
            make(**{name: 4.0})
    with pytest.raises(TypeError):
        Mixture([20, 30], [1, 1], seed=1.0)  # type: ignore[arg-type]


def test_a_step_counts_when_its_loop_is_over() -> None:
    loader = make()
    for _ in loader.step():
        assert loader.position == 0
    assert loader.position == 12


def test_plain_iteration() -> None:
    loader = make(global_batch=4, micro_batch=4)
    whole = steps(make(global_batch=4, micro_batch=4), 24)
    seen = []
    for epoch in range(loader.epoch, 2):
        assert loader.epoch == epoch
        for batch in loader:
            seen.append(sorted(batch_of(loader, batch)))
            if len(seen) in (5, 12):  # a save at the end of the body, and a restart
                state = loader.state_dict()
                loader = make(global_batch=4, micro_batch=4)
                loader.load_state_dict(state)
                break
        else:
            continue
        seen += [sorted(batch_of(loader, batch)) for batch in loader]
    assert len(loader) == 12
    assert seen == whole


def test_plain_iteration_is_for_one_micro_batch_of_each_rank() -> None:
    with pytest.raises(ValueError, match="each rank has 6 micro-batches"):
        iter(make())
    assert len(list(make(rank=1, world_size=6))) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_set_loses_nothing(tmp_path: Path, workers: int) -> None:
    whole = steps(make(), 4)
    dataset = Breaking(whole[1][5][0], marker=tmp_path / "was")
    loader = make(dataset, num_workers=workers)
    assert steps(loader, 1) == whole[:1]
    with pytest.raises(OSError, match="the disk hangs") as caught:
        steps(loader, 1)
    shown = "".join(traceback.format_exception(caught.value))
    assert f"sample {dataset.at} of the data set" in shown
    assert steps(loader, 3) == whole[1:]
    (tmp_path / "was").unlink()
    plain = make(dataset, global_batch=2, num_workers=workers)
    read: list[int] = []
    for _ in range(2):
        try:
            for batch in plain:
                read += batch[0].tolist()
        except OSError:
            assert len(read) < 50
    assert sorted(read) == list(range(50))
    loader.close()
    plain.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.leaves("fds")  # torch's, of a batch that was on its way
def test_a_worker_that_dies_loses_nothing(tmp_path: Path) -> None:
    whole = steps(make(), 4)
    dataset = Breaking(whole[1][5][0], signal.SIGKILL, tmp_path / "was")
    loader = make(dataset, num_workers=2)
    with pytest.raises((RuntimeError, OSError)):  # torch's, or of the broken connection
        steps(loader, 2)
    state = loader.state_dict()
    done = state["position"] // 12
    assert steps(loader, 4 - done) == whole[done:]
    loader.close()


def test_generators_of_the_trainer_are_its_own() -> None:
    torch.manual_seed(1)
    random.seed(1)
    expected = torch.rand(3), random.random()
    torch.manual_seed(1)
    random.seed(1)
    for workers in (0, 1):
        loader = make(micro_rng=False, num_workers=workers)
        steps(loader, 2)
        loader.close()
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]


def test_random_numbers_of_a_micro_batch_do_not_depend_on_the_rank() -> None:
    drawn = []
    for size in (1, 3):
        found: list[float] = []
        for rank in range(size):
            loader = make(rank=rank, world_size=size)
            for _ in range(2):
                found += [float(torch.rand(())) for _ in loader.step()]
        drawn.append(sorted(found))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 12


def test_random_numbers_can_be_left_alone() -> None:
    torch.manual_seed(1)
    first = steps(make(sample_rng=False, micro_rng=False), 1)
    assert first != steps(make(sample_rng=False, micro_rng=False), 1)


class AtOnce(Samples):
    """Gives several samples at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[tuple[int, float, float]]:
        self.asked.append(indices)
        return [self[index] for index in indices]


def test_a_data_set_that_gives_several_samples_is_asked_for_a_micro_batch() -> None:
    dataset = AtOnce()
    whole = steps(make(dataset), 6)
    assert {len(one) for one in dataset.asked} == {2}
    assert len({noise for step in whole for _, noise, _ in step}) == 6 * 12
    learned, _ = of_world(3, 6, dataset=dataset)
    assert learned == whole
    some = Subset(Samples(), range(40))  # it can, by asking one by one
    assert steps(make(some), 3) == steps(make(some, micro_batch=3), 3)
    parts = AtOnce()
    steps(make(Subset(parts, range(40))), 1)
    assert {len(one) for one in parts.asked} == {2}


class Collating:
    """Masks at random, as for language models."""

    def __call__(self, samples: list[Any]) -> torch.Tensor:
        return torch.tensor([one[0] for one in samples]) + torch.rand(len(samples))


def test_what_collates_has_random_numbers_of_the_micro_batch() -> None:
    def read(**settings: Any) -> list[Any]:
        loader = make(collate_fn=Collating(), **settings)
        found = [batch.tolist() for _ in range(2) for batch in loader.step()]
        loader.close()
        return found

    whole = read()
    assert read(num_workers=2) == whole
    assert read(rank=1, world_size=2) == whole[3:6] + whole[9:]


@pytest.mark.parametrize("remainder", ["drop", "short", "pad"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_the_mean_gradient_is_that_of_the_step(remainder: str, size: int) -> None:
    weight = torch.linspace(1, 2, 50, dtype=torch.float64)

    def gradient(world: int, number: int) -> float:
        """DDP's: the mean over ranks of the sum over their micro-batches."""
        total = 0.0
        for rank in range(world):
            loader = make(rank=rank, world_size=world, remainder=remainder)
            for _ in range(number):
                steps(loader, 1)
            for batch in loader.step():
                mean = weight[batch[0][: loader.real]].mean()
                total += float(mean * loader.scale)
        return total / world

    for number in (0, 4 if remainder != "drop" else 3):
        rows = steps(make(remainder=remainder), number + 1)[number]
        expected = weight[[row[0] for row in rows]].mean().item()
        assert gradient(size, number) == pytest.approx(expected, rel=1e-12)


def test_other_data_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    state = make(Samples(50)).state_dict()
    for loader, what in (
        (make(Samples(51)), "length was 50 and is 51"),
        (make(seed=4), r"data: seed was 3 and is 4\n"),
        (make(shuffle=False), "shuffle was True and is False"),
        (make(fingerprint="b"), "data was None and is 'b'"),
    ):
        with pytest.raises(DataChangedError, match=what):
            loader.load_state_dict(state)
    loader = make(Samples(51), on_data_change="warn")
    loader.load_state_dict({**state, "position": 24})
    assert "length was 50 and is 51" in caplog.text
    assert loader.position == 24
    make(global_batch=6).load_state_dict(state)  # is no other order


def test_a_copy_of_a_loader_at_work_goes_on_from_its_state() -> None:
    loader, whole = make(num_workers=1), steps(make(), 3)
    assert steps(loader, 1) == whole[:1]
    next(loader.step())
    copied = pickle.loads(pickle.dumps(loader))
    assert steps(copied, 2) == whole[1:]
    copied.close()
    loader.close()


def test_workers_that_are_where_they_should_go_stay() -> None:
    loader, whole = make(num_workers=1, persistent_workers=True), steps(make(), 6)
    assert steps(loader, 4) == whole[:4]  # an epoch
    workers = multiprocessing.active_children()
    loader.load_state_dict(loader.state_dict())
    loader.go_to(4)
    assert multiprocessing.active_children() == workers != []
    assert steps(loader, 2) == whole[4:]
    loader.close()


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        yield 1


def test_settings_that_are_none() -> None:
    with pytest.raises(TypeError, match="num_worker is no setting of Loader"):
        make(num_worker=2)
    with pytest.raises(ValueError, match="step=-1"):
        make().go_to(-1)


def test_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for no_data in (Stream(), DataLoader(Samples()), make(), None):
        with pytest.raises(TypeError, match=type(no_data).__name__):
            Loader(no_data, global_batch=12, micro_batch=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="order"):
        make(order=[1, 2])
    for name in (5, "x" * 300):
        with pytest.raises(ValueError, match="fingerprint"):
            make(fingerprint=name)
    for name in ("sampler", "batch_size", "drop_last"):
        with pytest.raises(TypeError, match=f"{name} is not for a Loader"):
            make(**{name: 3})
    with pytest.raises(ValueError, match="on_data_change"):
        make(on_data_change="x")
    with pytest.raises(ValueError, match="give both"):
        make(rank=1)
    with pytest.raises(ValueError, match="7 ranks"):
        make(rank=1, world_size=7)
    with pytest.raises(ValueError, match="20 samples, and the data set has 50"):
        make(order=Mixture([10, 10], [1, 1]))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="init_process_group"):
        make()


def test_a_checkpoint_has_it(tmp_path: Path) -> None:
    loader = make()
    whole = steps(make(), 5)
    with Checkpointer(tmp_path / "all", process_group="alone") as checkpoints:
        steps(loader, 2)
        checkpoints.save(2, {"loader": loader})
        again = make()
        assert checkpoints.load({"loader": again}) == 2
    assert steps(again, 3) == whole[2:]


PROGRAM = """
import hashlib, os, sys
import torch, torch.distributed as dist
from torch import nn
from undaunted.checkpointing import Checkpointer
from undaunted.data import Loader

torch.set_num_threads(1)
dist.init_process_group("gloo")
folder, until, exact = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "exact"

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return torch.randn(16) + index / 50

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1))
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = Loader(Samples(), global_batch=24, micro_batch=3, seed=1, remainder="short",
                num_workers=1, exact=exact)
state = {"model": model, "optimizer": optimizer, "loader": loader}
with Checkpointer(folder) as checkpoints:
    done = checkpoints.load(state) or 0
    for number in range(done + 1, until + 1):
        for batch in loader.step():
            with loader.accumulate(ddp):
                (ddp(batch[: loader.real]).square().mean() * loader.scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoints.save(number, state)
loader.close()
if dist.get_rank() == 0:
    content = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    print("SAID", hashlib.sha256(content.numpy().tobytes()).hexdigest(), float(content.sum()))
dist.destroy_process_group()
"""


def train(folder: Path, ranks: int, until: int, how: str = "exact") -> tuple[str, float]:
    """Train up to a step under the launcher; return a digest of the parameters and their sum."""
    words = ("--standalone", "--nproc-per-node", str(ranks), "--preload", "torch")
    with launched(folder, PROGRAM, *words, args=("all", str(until), how)) as launcher:
        assert launcher.finish(100) == 0, launcher.text
    digest, total = launcher.text.partition("SAID ")[2].split()[:2]
    return digest, float(total)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("no_compiler")
def test_other_ranks_come_to_the_same_bits(tmp_path: Path) -> None:
    """Eight ranks, five, and eight again, beside one rank alone."""
    folders = {name: tmp_path / name for name in ("one", "changing", "summed")}
    for folder in folders.values():
        folder.mkdir()
    whole = train(folders["one"], 1, 12)
    for ranks, until in ((8, 4), (5, 7), (8, 12)):
        changing = train(folders["changing"], ranks, until)
    assert changing == whole
    summed = train(folders["summed"], 3, 12, "summed")
    assert summed[0] != whole[0]  # else this test could not fail
    assert summed[1] == pytest.approx(whole[1], rel=1e-3)
