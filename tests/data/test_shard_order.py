"""`ShardOrder`: a shuffle within windows of shuffled shards, as a function of the position."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from undaunted.data import ShardOrder

pytestmark = pytest.mark.torch

LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=30).filter(any)


def everything(order: ShardOrder, epoch: int = 0) -> list[int]:
    found: list[int] = order.indices(epoch, torch.arange(order.length)).tolist()
    return found


@given(LENGTHS, st.integers(), st.integers(1, 400), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_each_sample_has_one_position(
    lengths: list[int], seed: int, window: int, epoch: int
) -> None:
    order = ShardOrder(lengths, seed, window=window)
    assert order.length == order.samples == sum(lengths)
    indices = everything(order, epoch)
    assert sorted(indices) == list(range(order.length))
    for position in range(0, order.length, 1 + order.length // 20):
        assert order.index(epoch, position) == indices[position]
        assert order.position(epoch, indices[position]) == position


@given(LENGTHS, st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 90))
@settings(max_examples=40, deadline=None)
def test_any_positions_in_any_order(lengths: list[int], wanted: list[int], window: int) -> None:
    order = ShardOrder(lengths, 1, window=window)
    positions = [one % order.length for one in wanted]
    found = order.indices(3, torch.tensor(positions, dtype=torch.int64)).tolist()
    assert found == [order.index(3, one) for one in positions]


def test_it_depends_on_seed_epoch_window_and_lengths() -> None:
    orders = [
        everything(ShardOrder(lengths, seed, window=window), epoch)
        for lengths in ([40] * 20, [80] * 10)
        for seed in (0, 1)
        for window in (100, 200)
        for epoch in (0, 1)
    ]
    assert len({tuple(one) for one in orders}) == 16
    settings_of = [ShardOrder([4, 5], 1, window=3), ShardOrder([5, 4], 1, window=3)]
    assert settings_of[0].settings() != settings_of[1].settings()
    # Saved states count on these numbers.
    assert everything(ShardOrder([3, 2, 5], 1, window=4), 2) == FIXED
    assert ShardOrder([10**6] * 1000, 7).index(3, 10**8) == FIXED_LONG


FIXED = [5, 6, 8, 3, 9, 7, 2, 1, 4, 0]
FIXED_LONG = 153001340


def test_reads_stay_within_few_shards() -> None:
    order = ShardOrder([100] * 1000, seed=3, window=500)
    shards = torch.div(order.indices(5, torch.arange(order.length)), 100, rounding_mode="floor")
    for start in range(0, order.length - 500, 997):
        assert len(set(shards[start : start + 500].tolist())) <= 12
    first = {one: at for at, one in reversed(list(enumerate(shards.tolist())))}
    last = {one: at for at, one in enumerate(shards.tolist())}
    assert max(last[one] - first[one] for one in first) < 3 * 500


@pytest.mark.slow
def test_samples_of_a_window_and_shards_are_as_good_as_shuffled() -> None:
    """Places in a window that covers all, and first shards of epochs, with equal chances."""
    epochs, length = 400, 120
    order = ShardOrder([12] * 10, seed=5, window=length)
    places = torch.stack([order.indices(one, torch.arange(length)) for one in range(epochs)])
    assert abs(chi_squared((places[:, :12] // 12).reshape(-1), 10)) < 4.5
    assert abs(chi_squared((places[:, 60] // 12).reshape(-1), 10)) < 4.5
    small = ShardOrder([12] * 10, seed=5, window=7)
    starts = torch.tensor([small.index(one, 0) // 12 for one in range(2000)])
    assert abs(chi_squared(starts, 10)) < 4.5
    # Borders of windows move: two neighbours in a shard are not always in one window.
    apart = Counter(abs(small.position(one, 6) - small.position(one, 7)) > 6 for one in range(200))
    assert 0 < apart[True] < 200


def chi_squared(found: torch.Tensor, kinds: int) -> float:
    counts = torch.bincount(found, minlength=kinds).double()
    expected = counts.sum().item() / kinds
    value: float = ((counts - expected) ** 2 / expected).sum().item()
    return (value - (kinds - 1)) / math.sqrt(2 * (kinds - 1))


@pytest.mark.parametrize(
    ("lengths", "window", "kind"),
    [
        ([], 5, ValueError),
        ([0, 0], 5, ValueError),
        ([3, -1], 5, ValueError),
        ([3], 0, ValueError),
        ([2.5], 5, TypeError),
        ([3], 2.5, TypeError),
        ([1 << 53, 1], 5, ValueError),
    ],
)
def test_orders_that_cannot_be(lengths: list[int], window: int, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        ShardOrder(lengths, window=window)


def test_what_is_not_there() -> None:
    order = ShardOrder([3, 2])
    for call in (order.index, order.position):
        for number in (-1, 5):
            with pytest.raises(IndexError, match=str(number)):
                call(0, number)
