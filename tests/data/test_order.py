"""The order of samples: a permutation for each epoch, computed at each position for itself."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from undaunted.data import GlobalOrder, Mixture

pytestmark = pytest.mark.torch

LENGTHS = st.one_of(st.integers(1, 50), st.integers(1, 5000))
BLOCK = 1 << 16


def everything(order: GlobalOrder | Mixture, epoch: int = 0) -> list[int]:
    found: list[int] = order.indices(epoch, torch.arange(order.length)).tolist()
    return found


@given(LENGTHS, st.integers(), st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_each_sample_has_one_position(length: int, seed: int, epoch: int) -> None:
    order = GlobalOrder(length, seed)
    indices = everything(order, epoch)
    assert sorted(indices) == list(range(length))
    for position in range(0, length, 1 + length // 20):
        assert order.index(epoch, position) == indices[position]
        assert order.position(epoch, indices[position]) == position


@given(st.integers(1, 1 << 53), st.integers(), st.integers(0, 1 << 40), st.data())
@settings(max_examples=40, deadline=None)
def test_any_length(length: int, seed: int, epoch: int, data: st.DataObject) -> None:
    order = GlobalOrder(length, seed)
    position = data.draw(st.integers(0, length - 1))
    index = order.index(epoch, position)
    assert 0 <= index < length
    assert order.position(epoch, index) == position
    assert order.indices(epoch, torch.tensor([position])).tolist() == [index]


def test_it_depends_on_seed_and_epoch_and_nothing_else() -> None:
    orders = [everything(GlobalOrder(1000, seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(one) for one in orders}) == 4
    assert everything(GlobalOrder(1000, 1), 1) == orders[3]
    assert everything(GlobalOrder(10, shuffle=False), 5) == list(range(10))
    # Saved states count on these numbers.
    assert everything(GlobalOrder(10, 1)) == FIXED
    assert GlobalOrder(10**12, 7).index(3, 10**11) == FIXED_LONG


FIXED = [2, 3, 0, 6, 4, 7, 9, 1, 5, 8]
FIXED_LONG = 302167685914


def test_a_trillion_samples_take_no_memory() -> None:
    tracemalloc.start()
    order = GlobalOrder(10**12, seed=1)
    order.indices(0, torch.arange(10**11, 10**11 + 1000))
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


def chi_squared(counts: torch.Tensor) -> float:
    """In standard deviations from what equal chances give."""
    expected = counts.sum().item() / counts.numel()
    free = counts.numel() - 1
    value: float = ((counts - expected) ** 2 / expected).sum().item()
    return float((value - free) / math.sqrt(2 * free))


@pytest.mark.parametrize("length", [7, 12, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_it_is_as_good_as_a_list_that_is_shuffled(length: int) -> None:
    """The same statistics, of as many orders, beside those of `torch.randperm`."""
    many = 3_000 // length + 500
    generator = torch.Generator().manual_seed(1)
    orders = torch.stack(
        [GlobalOrder(length, 5).indices(one, torch.arange(length)) for one in range(many)]
    )
    shuffled = torch.stack([torch.randperm(length, generator=generator) for _ in range(many)])
    found, usual = statistics(orders), statistics(shuffled)
    for name, value in found.items():
        assert abs(value) < 4.5, (name, found, usual)
        assert abs(usual[name]) < 4.5, (name, usual)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_of_few_samples_every_order_comes_as_often(length: int) -> None:
    many = 40 * math.factorial(length)
    found = Counter(
        tuple(GlobalOrder(length, 9).index(epoch, at) for at in range(length))
        for epoch in range(many)
    )
    assert len(found) == math.factorial(length)
    assert abs(chi_squared(torch.tensor(list(found.values())).double())) < 4.5


def statistics(orders: torch.Tensor) -> dict[str, float]:
    """Return how many standard deviations each number is from that of a perfect shuffle."""
    many, length = orders.shape
    groups = 10 if length >= 100 else length
    rows, columns = torch.arange(length) * groups // length, orders * groups // length
    places = torch.bincount((rows * groups + columns).reshape(-1), minlength=groups**2)
    pairs = columns[:, :-1] * groups + columns[:, 1:]
    neighbours = (orders[:, 1:] - orders[:, :-1] == 1).sum().item()
    fixed = (orders == torch.arange(length)).sum().item()
    rising = (orders[:, 1:] > orders[:, :-1]).sum().item()
    cycles = sum(map(cycles_of, orders[:300].tolist()))
    mean_cycles = sum(1 / k for k in range(1, length + 1))
    variance = mean_cycles - sum(1 / k**2 for k in range(1, length + 1))
    first = orders[:, : max(1, length // 4)].double().mean(1)
    spread = math.sqrt((length + 1) * (length - first_size(length)) / 12 / first_size(length))
    found = {
        "neighbours": (neighbours - many * (length - 1) / length) / math.sqrt(many),
        "fixed points": (fixed - many) / math.sqrt(many),
        "rising": (rising - many * (length - 1) / 2) / math.sqrt(many * (length + 1) / 12),
        "cycles": (cycles - len(orders[:300]) * mean_cycles)
        / math.sqrt(len(orders[:300]) * variance),
        "first quarter": (first.mean().item() - (length - 1) / 2) / spread * math.sqrt(many),
    }
    found["places"] = chi_squared(places.double())
    if length >= 100:
        found["pairs"] = chi_squared_of_pairs(pairs, groups)
    return found


def first_size(length: int) -> int:
    return max(1, length // 4)


def chi_squared_of_pairs(pairs: torch.Tensor, groups: int) -> float:
    counts = torch.bincount(pairs.reshape(-1), minlength=groups**2).double()
    equal = torch.eye(groups, dtype=torch.bool).reshape(-1)
    return chi_squared(counts[~equal])  # of one group: a number has one neighbour less


def cycles_of(order: list[int]) -> int:
    seen: set[int] = set()
    count = 0
    for start in range(len(order)):
        if start not in seen:
            count += 1
            at = start
            while at not in seen:
                seen.add(at)
                at = order[at]
    return count


# --- mixtures -------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(30, 900), st.floats(0.1, 10)), min_size=1, max_size=6),
    st.integers(),
    st.integers(1, 3000),
    st.integers(0, 2000),
)
@settings(max_examples=15, deadline=None)
def test_a_mixture_is_the_same_from_all_sides(
    parts: list[tuple[int, float]], seed: int, length: int, epoch: int
) -> None:
    lengths, weights = [one for one, _ in parts], [weight for _, weight in parts]
    mixture = Mixture(lengths, weights, seed, length=length)
    indices = everything(mixture, epoch)
    for position in range(0, length, 1 + length // 15):
        which, own = mixture.source(epoch, position)
        assert 0 <= own < lengths[which]
        assert sum(lengths[:which]) + own == indices[position] == mixture.index(epoch, position)
        assert position in mixture.positions(epoch, indices[position])
    for index in range(0, mixture.samples, 1 + mixture.samples // 5):
        expected = [at for at, one in enumerate(indices) if one == index]
        assert mixture.positions(epoch, index) == expected


def test_weights_hold_and_no_sample_comes_twice_before_all_came() -> None:
    mixture = Mixture([1000, 30_000], [0.25, 0.75], seed=3, length=BLOCK)
    counts = Counter(everything(mixture))
    first = [counts[index] for index in range(1000)]
    assert sum(first) == BLOCK // 4
    assert max(first) - min(first) == 1
    second = [counts[index] for index in range(1000, 31_000)]
    assert sum(second) == BLOCK * 3 // 4
    assert max(second) - min(second) == 1
    few = mixture.indices(0, torch.arange(10_000)) < 1000
    assert 2300 < few.sum() < 2700


def test_without_shuffling_each_data_set_is_in_its_own_order_of_turns() -> None:
    mixture = Mixture([5000, 5000], [1, 1], shuffle=False, length=2 * BLOCK)
    assert len(set(everything(mixture))) == 10_000


@pytest.mark.parametrize(
    ("lengths", "weights", "complaint"),
    [
        ([], [], "0 data sets"),
        ([1, 2], [1.0], "1 weights"),
        ([1, 2], [1.0, 0.0], "data set 1"),
        ([1, 2], [1.0, math.nan], "data set 1"),
        ([1, 2], [1.0, 1e-6], "data set 1"),
        ([1, 0], [1.0, 1.0], "data set 1 has 0"),
    ],
)
def test_mixtures_that_cannot_be(lengths: list[int], weights: list[float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Mixture(lengths, weights)


def test_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="length=0"):
        GlobalOrder(0)
    for call in (GlobalOrder(5).index, GlobalOrder(5).position, Mixture([5], [1]).index):
        for number in (-1, 5):
            with pytest.raises(IndexError, match=str(number)):
                call(0, number)
