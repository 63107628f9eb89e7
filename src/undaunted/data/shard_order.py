"""An order of samples whose reads stay within a few shards. Design: docs/design/data.md."""

from __future__ import annotations

import hashlib
import operator
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.data.order import LONGEST, Permutation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# Below so many numbers of one window, each by itself is faster than all at once.
_FEW = 64


class ShardOrder:
    """A shuffle of shards, and of samples within windows of the shuffled shards.

    The effect of a shuffle buffer of ``window`` samples, as a function of the position:
    reads of neighbouring positions stay within the shards that a window overlaps.

    Attributes:
        length: how many samples there are.
        samples: the same.
        seed: all permutations depend on it, and on the epoch.
        window: samples that are shuffled among one another.
    """

    def __init__(self, lengths: Sequence[int], seed: int = 0, *, window: int = 10_000) -> None:
        """Order the samples of shards.

        Args:
            lengths: samples of each shard, as `Shards.lengths`; some may be 0.
            seed: of all permutations.
            window: samples that are shuffled among one another: several shards are good.

        Raises:
            TypeError: a length, the seed or the window is no whole number.
            ValueError: there are no samples, or too many, or a length is below 0; the window is
                below 1.
        """
        self._lengths = [operator.index(one) for one in lengths]
        if min(self._lengths, default=0) < 0:
            raise ValueError(f"a shard of {min(self._lengths)} samples")
        self._offsets = [0, *accumulate(self._lengths)]
        self.length = self.samples = self._offsets[-1]
        if not 1 <= self.length <= LONGEST:
            raise ValueError(f"the shards have {self.length} samples; 1 to 2^53 are possible")
        self.seed, self.window = operator.index(seed), operator.index(window)
        if self.window < 1:
            raise ValueError(f"window={window}: at least 1")
        self._epochs: dict[int, _Epoch] = {}

    def index(self, epoch: int, position: int) -> int:
        """Return the sample at a position from 0.

        Raises:
            IndexError: there is no such position.
        """
        self._check("position", position)
        this = self._of(epoch)
        start, permutation = self._window(epoch, this, position)
        place = start + permutation.forth(position - start)
        shard = bisect_right(this.starts, place) - 1
        return self._offsets[this.shards[shard]] + place - this.starts[shard]

    def position(self, epoch: int, index: int) -> int:
        """Return where a sample stands in an epoch.

        Raises:
            IndexError: there is no such sample.
        """
        self._check("index", index)
        this = self._of(epoch)
        shard = bisect_right(self._offsets, index) - 1
        place = this.starts[this.places[shard]] + index - self._offsets[shard]
        start, permutation = self._window(epoch, this, place)
        return start + permutation.back(place - start)

    def indices(self, epoch: int, positions: Tensor) -> Tensor:
        """Return the samples at many positions, both int64 on the CPU."""
        import torch

        this = self._of(epoch)
        windows = (positions + this.phase) // self.window
        places = []
        _, counts = windows.unique_consecutive(return_counts=True)
        for some in positions.split(counts.tolist()):
            start, permutation = self._window(epoch, this, int(some[0]))
            if len(some) < _FEW:
                made = [start + permutation.forth(one - start) for one in some.tolist()]
                places.append(torch.tensor(made))
            else:
                places.append(start + permutation.all_forth(some - start))
        place = torch.cat(places) if places else positions
        starts = torch.tensor(this.starts)
        shard = torch.searchsorted(starts, place, right=True) - 1
        offsets = torch.tensor(self._offsets)[torch.tensor(this.shards)]
        return offsets[shard] + place - starts[shard]

    def settings(self) -> dict[str, Any]:
        """Return what the order depends on."""
        made = hashlib.blake2b(repr(self._lengths).encode(), digest_size=8).hexdigest()
        return {"length": self.length, "seed": self.seed, "window": self.window, "shards": made}

    def _of(self, epoch: int) -> _Epoch:
        """Return the shuffled shards; a loader goes from one epoch to the next."""
        if (found := self._epochs.get(epoch)) is None:
            while len(self._epochs) > 1:
                del self._epochs[next(iter(self._epochs))]
            found = self._epochs[epoch] = self._shuffled(epoch)
        return found

    def _shuffled(self, epoch: int) -> _Epoch:
        import torch

        key = f"shards {self.seed} {epoch}"
        count = len(self._lengths)
        shards: list[int] = Permutation(count, key).all_forth(torch.arange(count)).tolist()
        places = [0] * count
        for place, shard in enumerate(shards):
            places[shard] = place
        starts = [0, *accumulate(self._lengths[shard] for shard in shards)][:-1]
        drawn = int.from_bytes(hashlib.shake_128(f"phase {key}".encode()).digest(16))
        phase = drawn % self.window if self.window < self.length else 0
        return _Epoch(shards, places, starts, phase)

    def _window(self, epoch: int, this: _Epoch, position: int) -> tuple[int, Permutation]:
        """Return the start of the window with a position, and the permutation in it."""
        number = (position + this.phase) // self.window
        start = max(0, number * self.window - this.phase)
        end = min(self.length, (number + 1) * self.window - this.phase)
        return start, _permutation(end - start, f"window {self.seed} {epoch} {number}")

    def _check(self, name: str, number: int) -> None:
        if not 0 <= number < self.length:
            raise IndexError(f"{name} {number}: there are {self.length}, from 0")


class _Epoch(NamedTuple):
    """Shards one after the other: which, where each one is, where each place begins."""

    shards: list[int]
    places: list[int]
    starts: list[int]
    phase: int  # how many positions the first window lacks


@lru_cache(maxsize=64)
def _permutation(length: int, key: str) -> Permutation:
    return Permutation(length, key)
