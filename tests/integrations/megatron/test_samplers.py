"""Global batches by `GlobalSampler`, driven as Megatron drives its samplers.

Megatron itself is not here: `Job` stands for the part of it that has to do with data.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from undaunted.data import GlobalOrder, Mixture
from undaunted.integrations.megatron.samplers import GlobalSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SAMPLES, GLOBAL_BATCH = 52, 8  # no whole number of global batches in an epoch


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """As Megatron has it for ``--dataloader-type cyclic``."""
    while True:
        yield from loader


def sampler(rank: int = 0, ranks: int = 1, **given: Any) -> GlobalSampler:
    """Make one as Megatron does: the data set by place, all others by name."""
    samples = given.pop("samples", SAMPLES)
    arguments = {
        "total_samples": samples,
        "consumed_samples": 0,
        "micro_batch_size": 1,
        "data_parallel_rank": rank,
        "data_parallel_size": ranks,
        "data_sharding": True,
        **given,
    }
    return GlobalSampler(range(samples), **arguments)


class Job:
    """The data-parallel ranks of a job, from its start to its end.

    Attributes:
        consumed: what Megatron's checkpoints have as ``consumed_train_samples``.
    """

    def __init__(
        self, ranks: int, micro: int, consumed: int = 0, workers: int = 0, **given: Any
    ) -> None:
        self.ranks, self.micro, self.consumed = ranks, micro, consumed
        samples = given.get("samples", SAMPLES)
        self._data = [
            endless(
                DataLoader(
                    range(samples),
                    batch_sampler=sampler(
                        rank, ranks, consumed_samples=consumed, micro_batch_size=micro, **given
                    ),
                    num_workers=workers,
                    persistent_workers=workers > 0,
                )
            )
            for rank in range(ranks)
        ]

    def train(self, batches: Sequence[int]) -> list[list[int]]:
        """Return the samples of global batches of these sizes, each sorted."""
        return [sorted(self._iteration(size)) for size in batches]

    def _iteration(self, global_batch: int) -> list[int]:
        micros, rest = divmod(global_batch, self.ranks * self.micro)
        assert not rest, "Megatron refuses this when it begins"
        seen = [one for data in self._data for batch in islice(data, micros) for one in batch]
        self.consumed += global_batch
        return [int(one) for one in seen]


def undisturbed(batches: Sequence[int], **given: Any) -> list[list[int]]:
    return Job(1, 1, **given).train(batches)


@pytest.mark.parametrize(("ranks", "micro"), [(1, 8), (2, 1), (2, 4), (4, 1), (4, 2), (8, 1)])
def test_global_batches_are_the_same_from_any_number_of_ranks(ranks: int, micro: int) -> None:
    assert Job(ranks, micro).train([GLOBAL_BATCH] * 30) == undisturbed([GLOBAL_BATCH] * 30)


def test_each_sample_comes_once_an_epoch() -> None:
    seen = [one for batch in Job(4, 1).train([4] * 39) for one in batch]
    epochs = [seen[at : at + SAMPLES] for at in range(0, 3 * SAMPLES, SAMPLES)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3, "in another order"


@pytest.mark.parametrize("stopped", range(0, 30, 3))
def test_a_job_goes_on_with_other_ranks_and_micro_batches(stopped: int) -> None:
    before = Job(4, 2)
    seen = before.train([GLOBAL_BATCH] * stopped)
    for ranks, micro in ((2, 1), (1, 8), (8, 1)):
        after = Job(ranks, micro, before.consumed).train([GLOBAL_BATCH] * (30 - stopped))
        assert seen + after == undisturbed([GLOBAL_BATCH] * 30)


def test_batches_that_grow_are_the_same_after_a_restart() -> None:
    """``--rampup-batch-size``: what was consumed is no multiple of the present global batch."""
    batches = [8] * 5 + [16] * 3 + [24] * 9
    expected = undisturbed(batches)
    for stopped in range(len(batches)):
        before = Job(4, 2)
        seen = before.train(batches[:stopped])
        assert seen + Job(2, 4, before.consumed).train(batches[stopped:]) == expected


def test_ranks_stay_together_at_the_end_of_an_epoch() -> None:
    """As not in Megatron-LM 7299: 10 samples, and ranks with 2, 1 and 1 micro-batches of them."""
    job = Job(3, 2, samples=10)
    seen = job.train([6] * 5)
    assert sorted(one for batch in seen for one in batch) == sorted([*range(10)] * 3)
    assert job.consumed == 30
    assert Job(1, 6, 6, samples=10).train([6] * 4) == seen[1:]


def test_a_data_set_smaller_than_a_global_batch_is_seen_evenly() -> None:
    (seen,) = Job(4, 2, samples=3).train([24])
    assert seen == sorted([*range(3)] * 8)


def test_what_workers_read_ahead_does_not_count() -> None:
    before = Job(2, 2, workers=1)
    seen = before.train([GLOBAL_BATCH] * 2)
    after = Job(1, 2, before.consumed, workers=1).train([GLOBAL_BATCH] * 2)
    assert seen + after == undisturbed([GLOBAL_BATCH] * 4)


def test_who_begins_again_begins_at_the_same_place() -> None:
    """Some start the workers with an iterator that they throw away."""
    one = sampler(consumed_samples=20)
    first, second = (list(islice(one, 5)) for _ in range(2))
    assert first == second
    assert one.consumed_samples == 20


def test_the_order_is_that_of_a_global_order() -> None:
    order = GlobalOrder(SAMPLES, seed=7)
    expected = [order.index(*divmod(at, SAMPLES)) for at in range(200)]
    assert [one for (one,) in islice(sampler(seed=7), 200)] == expected
    assert [one for (one,) in islice(sampler(shuffle=False), 4)] == [0, 1, 2, 3]


def test_another_order() -> None:
    mixture = Mixture([40, 12], [0.5, 0.5], seed=1, length=30)
    expected = [mixture.index(*divmod(at, 30)) for at in range(64)]
    assert [one for (one,) in islice(sampler(order=mixture), 64)] == expected


def test_a_place_far_away_costs_nothing() -> None:
    samples = 10**12
    given = {"total_samples": samples, "consumed_samples": 3 * samples - 1, "seed": 5}
    order = GlobalOrder(samples, seed=5)
    first = list(islice(sampler(**given), 2))
    assert first == [[order.index(2, samples - 1)], [order.index(3, 0)]]


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"consumed_samples": -1}, ValueError, "consumed_samples"),
        ({"consumed_samples": 1.5}, TypeError, "consumed_samples"),
        ({"micro_batch_size": 0}, ValueError, "micro_batch_size"),
        ({"data_parallel_size": 0}, ValueError, "data_parallel_size"),
        ({"data_parallel_rank": 1}, ValueError, "data_parallel_rank"),
        ({"data_parallel_rank": -1}, ValueError, "data_parallel_rank"),
        ({"samples": 0}, ValueError, "length"),
        ({"order": GlobalOrder(SAMPLES + 1)}, ValueError, "total_samples"),
        ({"seed": 0.5}, TypeError, "integer"),
    ],
)
def test_numbers_that_do_not_fit(given: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        sampler(**given)
