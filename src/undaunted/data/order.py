"""The order of samples, computed for each position for itself. Design: docs/design/data.md.

order = GlobalOrder(10**12, seed=1)
order.index(epoch=0, position=7)     # which sample is the seventh
order.position(epoch=0, index=42)    # where sample 42 stands

No list of indices exists, so a data set of any size costs the same.
"""

from __future__ import annotations

import hashlib
import math
import operator
import struct
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

LONGEST = 1 << 53
_ROUNDS = 10
_32_BITS = (1 << 32) - 1
# Odd numbers with which products depend on every lower bit alike; from Wellons' search for hashes
# of 32 bits, "lowbias32".
_FACTORS = (0x7FEB352D, 0x846CA68B)
_BLOCK = 1 << 16  # positions in which each data set of a mixture has its exact share


class Order(Protocol):
    """The sample at each position of an epoch.

    Attributes:
        length: positions of an epoch.
        samples: how many samples the data set must have.
    """

    length: int
    samples: int

    def index(self, epoch: int, position: int) -> int:
        """Return the sample at a position from 0."""

    def indices(self, epoch: int, positions: Tensor) -> Tensor:
        """Return the samples at many positions, both int64 on the CPU."""

    def settings(self) -> dict[str, Any]:
        """Return what the order depends on."""


class GlobalOrder:
    """The order of one data set: another permutation in each epoch, or as it is.

    Attributes:
        length: how many samples there are.
        samples: the same.
        seed: the permutations depend on it, and on the epoch.
        shuffle: False = the order of the data set.
    """

    def __init__(self, length: int, seed: int = 0, *, shuffle: bool = True) -> None:
        """Order ``length`` samples; see the class.

        Raises:
            TypeError: the length or the seed is no whole number.
            ValueError: the length is not from 1 to 2^53.
        """
        length = operator.index(length)
        if not 1 <= length <= LONGEST:
            raise ValueError(f"length={length}: the data set must have 1 to 2^53 samples")
        self.length = self.samples = length
        self.seed = operator.index(seed)
        self.shuffle = shuffle

    def index(self, epoch: int, position: int) -> int:
        """Return the sample at a position from 0.

        Raises:
            IndexError: there is no such position.
        """
        self._check("position", position)
        return self._permutation(epoch).forth(position) if self.shuffle else position

    def position(self, epoch: int, index: int) -> int:
        """Return where a sample stands in an epoch.

        Raises:
            IndexError: there is no such sample.
        """
        self._check("index", index)
        return self._permutation(epoch).back(index) if self.shuffle else index

    def indices(self, epoch: int, positions: Tensor) -> Tensor:
        """Return the samples at many positions, both int64 on the CPU."""
        return self._permutation(epoch).all_forth(positions) if self.shuffle else positions

    def settings(self) -> dict[str, Any]:
        """Return what the order depends on."""
        return {"length": self.length, "seed": self.seed, "shuffle": self.shuffle}

    def _permutation(self, epoch: int) -> Permutation:
        return _permutation(self.length, f"order {self.seed} {epoch}")

    def _check(self, name: str, number: int) -> None:
        if not 0 <= number < self.length:
            raise IndexError(f"{name} {number}: there are {self.length}, from 0")


class Mixture:
    """The order of several data sets that are mixed by weight.

    An index counts through the data sets one after the other, as in torch's ``ConcatDataset``.
    Each data set has another order, and goes on from epoch to epoch of the mixture: all its
    samples are seen once before one is seen again.

    Attributes:
        length: positions of an epoch.
        samples: of all data sets together.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[float],
        seed: int = 0,
        *,
        length: int | None = None,
        shuffle: bool = True,
    ) -> None:
        """Mix data sets.

        Args:
            lengths: of the data sets.
            weights: how often each of them has a turn, in proportion to the others.
            seed: of all orders.
            length: positions of an epoch; None = as many as there are samples.
            shuffle: False = each data set in its own order; turns are mixed all the same.

        Raises:
            TypeError: a length or the seed is no whole number.
            ValueError: the numbers do not fit, or a weight is too small for a turn in 2^16.
        """
        # Whole numbers of other types, as numpy's, are the same to a state and must be to a key.
        seed = operator.index(seed)
        self._shares = _shares(lengths, weights)
        if empty := [number for number, one in enumerate(lengths) if one < 1]:
            raise ValueError(
                f"data set {empty[0]} has {lengths[empty[0]]} samples: leave it out of the mixture"
            )
        self._starts = [0, *accumulate(self._shares)]
        self._offsets = [0, *accumulate(lengths)]
        self._orders = [
            GlobalOrder(one, _seed_of(seed, number), shuffle=shuffle)
            for number, one in enumerate(lengths)
        ]
        self.samples = sum(order.length for order in self._orders)
        self.length = self.samples if length is None else operator.index(length)
        self.seed = seed
        if not 1 <= self.length <= LONGEST:
            raise ValueError(f"length={length}: an epoch must have 1 to 2^53 positions")

    def source(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the number of the data set at a position, and the index in it.

        Raises:
            IndexError: there is no such position.
        """
        if not 0 <= position < self.length:
            raise IndexError(f"position {position}: an epoch has {self.length}, from 0")
        block, at = divmod(epoch * self.length + position, _BLOCK)
        slot = self._turns(block).forth(at)
        which = bisect_right(self._starts, slot) - 1
        served = block * self._shares[which] + slot - self._starts[which]
        order = self._orders[which]
        return which, order.index(*divmod(served, order.length))

    def index(self, epoch: int, position: int) -> int:
        """Return the sample at a position from 0; see the class."""
        which, index = self.source(epoch, position)
        return self._offsets[which] + index

    def positions(self, epoch: int, index: int) -> list[int]:
        """Return where a sample stands in an epoch: nowhere, once, or more often.

        Raises:
            IndexError: there is no such sample.
        """
        if not 0 <= index < self.samples:
            raise IndexError(f"index {index}: there are {self.samples}, from 0")
        which = bisect_right(self._offsets, index) - 1
        order, share = self._orders[which], self._shares[which]
        first, end = epoch * self.length, (epoch + 1) * self.length
        found = []
        before = first // _BLOCK * share // order.length  # epoch of the data set
        after = ((end - 1) // _BLOCK + 1) * share // order.length
        for own in range(before, after + 1):
            served = own * order.length + order.position(own, index - self._offsets[which])
            block, slot = divmod(served, share)
            number = block * _BLOCK + self._turns(block).back(self._starts[which] + slot)
            if first <= number < end:
                found.append(number - first)
        return sorted(found)

    def indices(self, epoch: int, positions: Tensor) -> Tensor:
        """Return the samples at many positions, both int64 on the CPU."""
        import torch

        numbers = epoch * self.length + positions
        blocks, at = numbers // _BLOCK, numbers % _BLOCK
        slots = torch.empty_like(at)
        for block in blocks.unique().tolist():
            here = blocks == block
            slots[here] = self._turns(block).all_forth(at[here])
        starts = torch.tensor(self._starts)
        which = torch.searchsorted(starts, slots, right=True) - 1
        served = blocks * torch.tensor(self._shares)[which] + slots - starts[which]
        found = torch.empty_like(at)
        for source in which.unique().tolist():
            order = self._orders[source]
            here = which == source
            epochs, own = served[here] // order.length, served[here] % order.length
            indices = torch.empty_like(own)
            for one in epochs.unique().tolist():
                indices[epochs == one] = order.indices(one, own[epochs == one])
            found[here] = indices + self._offsets[source]
        return found

    def settings(self) -> dict[str, Any]:
        """Return what the order depends on."""
        lengths = [order.length for order in self._orders]
        made = hashlib.blake2b(repr((lengths, self._shares)).encode(), digest_size=8).hexdigest()
        shuffle = self._orders[0].shuffle
        return {"length": self.length, "seed": self.seed, "shuffle": shuffle, "mixture": made}

    def _turns(self, block: int) -> Permutation:
        return _permutation(_BLOCK, f"turns {self.seed} {block}")


class Permutation:
    """A keyed permutation of 0 to ``length`` - 1: a Feistel network of pairs; walks cycles."""

    def __init__(self, length: int, key: str) -> None:
        """Args: how many numbers, and which permutation of them."""
        self._length = length
        self._columns = math.isqrt(length - 1) + 1
        self._rows = -(-length // self._columns)
        # Of two odd numbers each round would be an even permutation, and so would be the result.
        self._rows += self._columns % 2 and self._rows % 2
        made = hashlib.shake_128(key.encode()).digest(8 * _ROUNDS)
        self._keys = list(struct.iter_unpack("<2I", made))

    def forth(self, number: int) -> int:
        """Return what a number becomes."""
        result: int = self._once(number)
        while result >= self._length:
            result = self._once(result)
        return result

    def back(self, number: int) -> int:
        """Return what becomes a number."""
        number = self._undone(number)
        while number >= self._length:
            number = self._undone(number)
        return number

    def all_forth(self, numbers: Tensor) -> Tensor:
        """Return what many numbers become."""
        results: Tensor = self._once(numbers)
        while (outside := results >= self._length).any():
            results[outside] = self._once(results[outside])
        return results

    def _once(self, number: Any) -> Any:
        x, y = number % self._columns, number // self._columns
        for left, right in zip(self._keys[::2], self._keys[1::2], strict=True):
            x = (x + _mixed(y, left)) % self._columns
            y = (y + _mixed(x, right)) % self._rows
        return y * self._columns + x

    def _undone(self, number: int) -> int:
        x, y = number % self._columns, number // self._columns
        for left, right in zip(self._keys[-2::-2], self._keys[::-2], strict=True):
            y = (y - _mixed(x, right)) % self._rows
            x = (x - _mixed(y, left)) % self._columns
        return y * self._columns + x


@lru_cache(maxsize=256)
def _permutation(length: int, key: str) -> Permutation:
    return Permutation(length, key)


def _mixed(number: Any, key: tuple[int, int]) -> Any:
    """Return 32 bits that depend on all bits of both.

    Of a number, or of each of a tensor, whose products may wrap around.
    """
    number = ((number ^ key[0]) * _FACTORS[0]) & _32_BITS
    number = ((number ^ (number >> 15)) + key[1]) & _32_BITS
    number = (number * _FACTORS[1]) & _32_BITS
    return number ^ (number >> 16)


def _seed_of(seed: int, number: int) -> int:
    made = hashlib.blake2b(f"mixture {seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(made, "little")


def _shares(lengths: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return how many positions of a block each data set has: the largest remainders round up."""
    if not len(lengths) or len(lengths) != len(weights):
        raise ValueError(f"{len(weights)} weights for {len(lengths)} data sets: one for each")
    for number, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight {weight!r} of data set {number}: a number above 0")
    total = math.fsum(weights)
    exact = [weight / total * _BLOCK for weight in weights]
    shares = [int(one) for one in exact]
    by_remainder = sorted(range(len(exact)), key=lambda at: shares[at] - exact[at])
    for at in by_remainder[: _BLOCK - sum(shares)]:
        shares[at] += 1
    for number, share in enumerate(shares):
        if not share:
            raise ValueError(
                f"weight {weights[number]!r} of data set {number} is less than one turn in "
                f"{_BLOCK}: leave it out, or join small data sets"
            )
    return shares
