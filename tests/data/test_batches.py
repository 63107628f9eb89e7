"""Micro-batches one by one, for frameworks: their state, their places, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import Dataset

from undaunted.data import Batches, DataChangedError, Loader


class Numbers(Dataset[int]):
    """Each sample is its number."""

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def batches(rank: int = 0, world_size: int = 1, **settings: object) -> Batches:
    numbers = {"global_batch": 8, "micro_batch": 2, "seed": 3, **settings}
    return Batches(Loader(Numbers(), rank=rank, world_size=world_size, **numbers))  # type: ignore[arg-type]


def epochs(of: Batches, count: int) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in of] for _ in range(count)]


def test_the_ranks_together_have_the_micro_batches_of_one() -> None:
    alone = epochs(batches(), 2)
    assert len(batches()) == 20
    assert batches().accumulation == 4
    ranks = [batches(rank, 2) for rank in range(2)]
    assert [(len(one), one.accumulation) for one in ranks] == [(10, 2)] * 2
    first, second = (epochs(one, 2) for one in ranks)
    for whole, one, other in zip(alone, first, second, strict=True):
        steps = [one[at : at + 2] + other[at : at + 2] for at in range(0, 10, 2)]
        assert [batch for step in steps for batch in step] == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_in_an_epoch_goes_on_there_and_the_epochs_after_it_are_whole(workers: int) -> None:
    """As not in huggingface/datasets 7447, where epochs stayed short after a restart."""
    settings = {"num_workers": workers, "persistent_workers": workers > 0}
    undisturbed = epochs(batches(), 3)
    before = batches(**settings)
    seen = [next(each).tolist() for each in [iter(before)] for _ in range(12)]
    state = before.state_dict()
    before.loader.close()
    after = batches(**settings)
    after.load_state_dict(state)
    rest, *whole = epochs(after, 3)
    assert [seen + rest, *whole] == undisturbed
    after.loader.close()


def test_a_step_that_is_not_whole_does_not_count_and_comes_again() -> None:
    undisturbed = epochs(batches(), 1)[0]
    one = batches()
    reading = iter(one)
    for _ in range(6):
        next(reading)
    assert one.state_dict()["position"] == 8
    assert [batch.tolist() for batch in one] == undisturbed[4:]


def test_a_framework_that_reads_ahead_says_how_many_steps_are_done() -> None:
    undisturbed = epochs(batches(), 2)
    one = batches()
    reading = iter(one)
    for _ in range(9):
        next(reading)
    one.loader.go_to(1)
    assert [batch.tolist() for batch in one] == undisturbed[0][4:]
    one.loader.go_to(7)  # the third step of the second epoch
    assert [batch.tolist() for batch in one] == undisturbed[1][8:]


def test_an_epoch_begins_anew_if_the_framework_has_left_the_one_before() -> None:
    undisturbed = epochs(batches(), 2)
    one = batches()
    next(iter(one))
    one.set_epoch(1)
    assert epochs(one, 1)[0] == undisturbed[1]


def test_random_numbers_are_those_of_the_loop_whatever_was_read_ahead() -> None:
    loader = batches().loader
    expected = []
    for _ in range(6):
        expected += [torch.rand(1).item() for _ in loader.step()]
    one = batches()
    reading, drawn = iter(one), []
    for step in range(5):  # an epoch has five
        for _ in range(4):
            next(reading)
        for micro in one.share(step):
            one.begin(micro)
            drawn.append(torch.rand(1).item())
    for micro in one.share(5):
        one.begin(micro)
        drawn.append(torch.rand(1).item())
    assert drawn == expected


def test_steps_of_a_checkpoint_are_those_of_the_same_data_and_global_batch() -> None:
    undisturbed = epochs(batches(), 1)[0]
    noted = json.loads(json.dumps(batches().steps()))
    after = batches()
    after.go_to(2, noted)
    assert [batch.tolist() for batch in after] == undisturbed[8:]
    for others in ({"global_batch": 4}, {"remainder": "short"}):
        numbers = {"global_batch": 8, "micro_batch": 2, "seed": 3, **others}
        other = Batches(Loader(Numbers(), **numbers), even=False)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=next(iter(others))):
            other.go_to(2, noted)
    with pytest.raises(DataChangedError, match="seed"):
        batches(seed=4).go_to(2, noted)


def test_batches_of_what_is_no_loader() -> None:
    with pytest.raises(TypeError, match="Numbers"):
        Batches(Numbers())  # type: ignore[arg-type]


def test_shares_that_do_not_count_alike_are_refused_unless_the_framework_weighs_them() -> None:
    with pytest.raises(ValueError, match="take 1, 2, 4 ranks"):
        batches(0, 3)
    with pytest.raises(ValueError, match="drop"):
        batches(remainder="short")
    loader = Loader(Numbers(), global_batch=8, micro_batch=2, rank=2, world_size=3)
    weighed = Batches(loader, even=False)
    assert [micro.real for micro in weighed.share(0)] == [2, 2]
    assert len(weighed) == 10
