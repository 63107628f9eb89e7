"""One order of samples for any number of ranks, in place of Megatron's cyclic sampler.

from megatron.training.datasets import data_samplers  # before: megatron.legacy.data

data_samplers.MegatronPretrainingRandomSampler = GlobalSampler  # and --dataloader-type cyclic

Design: docs/design/data.md, "Frameworks".
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from undaunted.data.order import GlobalOrder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.data.order import Order

# Samples whose numbers are computed at once: few at first, as somebody waits for them.
_FIRST_BLOCK, _BLOCK = 256, 8192


class GlobalSampler:
    """Yields the micro-batches of one data-parallel rank, from a number of consumed samples on.

    The epochs follow each other without an end and without a gap. The n-th sample that a job
    consumes is a function of n and the order alone. So a global batch has the same samples whatever
    the number of ranks, the micro-batch, and the sizes of the global batches before it. A
    global batch that begins in one epoch and ends in the next has samples of both.

    Attributes:
        order: from position to sample.
        consumed_samples: where an iteration over it begins; an iteration does not change it.
    """

    def __init__(  # noqa: PLR0913 - Megatron's arguments, and the order's
        self,
        dataset: Any = None,  # noqa: ARG002 - Megatron gives it
        *,
        total_samples: int,
        consumed_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        data_sharding: bool = False,  # noqa: ARG002 - Megatron gives it
        seed: int = 0,
        shuffle: bool = True,
        order: Order | None = None,
    ) -> None:
        """Take the arguments of Megatron's ``MegatronPretrainingRandomSampler``, and an order.

        Args:
            dataset: not used.
            total_samples: of the data set.
            consumed_samples: by all ranks together, since the beginning of training.
            micro_batch_size: samples of a micro-batch.
            data_parallel_rank: of this process.
            data_parallel_size: how many ranks have different samples.
            data_sharding: not used, as each rank reads from all over the data set.
            seed: of the order.
            shuffle: False = in the order of the data set.
            order: another order than a `GlobalOrder`, such as a `Mixture`, with its seed.

        Raises:
            TypeError: a number is no whole one.
            ValueError: the numbers do not fit.
        """
        self.order = order or GlobalOrder(total_samples, seed, shuffle=shuffle)
        if self.order.samples != total_samples:
            raise ValueError(
                f"the order is one of {self.order.samples} samples, and total_samples="
                f"{total_samples}"
            )
        self.consumed_samples = _at_least("consumed_samples", consumed_samples, 0)
        self._micro_batch = _at_least("micro_batch_size", micro_batch_size, 1)
        self._ranks = _at_least("data_parallel_size", data_parallel_size, 1)
        self._rank = _at_least("data_parallel_rank", data_parallel_rank, 0)
        if self._rank >= self._ranks:
            raise ValueError(
                f"data_parallel_rank={self._rank}: from 0 to data_parallel_size={self._ranks} - 1"
            )

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the numbers of the samples of one micro-batch after the other, without an end."""
        micro, stride = self._micro_batch, self._micro_batch * self._ranks
        start, size = self.consumed_samples + self._rank * micro, _FIRST_BLOCK
        while True:
            count = max(1, size // micro)
            starts = start + stride * torch.arange(count)
            numbers = self._samples_at((starts[:, None] + torch.arange(micro)).flatten())
            yield from numbers.view(count, micro).tolist()
            start, size = start + stride * count, min(2 * size, _BLOCK)

    def _samples_at(self, consumed: torch.Tensor) -> torch.Tensor:
        """Return the samples that come after so many."""
        epochs, positions = consumed // self.order.length, consumed % self.order.length
        samples = torch.empty_like(positions)
        for epoch in epochs.unique().tolist():
            here = epochs == epoch
            samples[here] = self.order.indices(epoch, positions[here])
        return samples


def _at_least(name: str, number: int, least: int) -> int:
    try:
        number = operator.index(number)
    except TypeError:
        raise TypeError(f"{name}={number!r}: a whole number") from None
    if number < least:
        raise ValueError(f"{name}={number}: at least {least}")
    return number
