"""A `Loader` as the training data of torchtitan: a mixin for a data loader.

class Data(LoaderMixin, BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        global_batch: int

    def samples(self, config, tokenizer, seq_len): ...  # a data set of ({"input": tokens}, labels)
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import Dataset

    from undaunted.data.plan import MicroBatch

_SETTINGS = ("seed", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")


class LoaderMixin:
    """Gives torchtitan the same samples in each step, whatever happens to the job.

    Comes before ``BaseDataLoader`` among the bases of a class, whose ``Config`` has
    ``global_batch``, the same as ``training.global_batch_size``. It may have ``seed``,
    ``num_workers`` and other settings of `undaunted.data.Loader`. torchtitan accumulates gradients
    over the micro-batches (``training.local_batch_size``) of a step, over more of them with fewer
    ranks. Epochs follow each other without an end.

    A trainer that has `UndauntedTrainerMixin` calls `begin`: random numbers of a forward pass, as
    of dropout, are then those of the micro-batch.

    Raises:
        ValueError: the job begins, and the numbers do not fit.
    """

    def __init__(
        self,
        config: Any,
        *,
        dp_world_size: int,
        dp_rank: int,
        tokenizer: Any,
        seq_len: int,
        local_batch_size: int,
        **_: Any,
    ) -> None:
        from undaunted.data import Batches, Loader

        given = {name: getattr(config, name) for name in _SETTINGS if hasattr(config, name)}
        loader = Loader(
            self.samples(config, tokenizer, seq_len),
            global_batch=config.global_batch,
            micro_batch=local_batch_size,
            rank=dp_rank,
            world_size=dp_world_size,
            **given,
        )
        self._batches = Batches(loader)
        self._to_begin: Iterator[MicroBatch] = iter(())  # those of the step that was read last

    def samples(self, config: Any, tokenizer: Any, seq_len: int) -> Dataset[Any]:
        """Return the data set; its samples are pairs: a dictionary with "input", and labels."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's micro-batches from the state on."""
        while True:
            self._to_begin = iter(self._batches.share())
            yield from islice(self._batches, self.in_step)

    @property
    def in_step(self) -> int:
        """The number of micro-batches of a step that this rank has."""
        return self._batches.accumulation

    def begin(self, count: int = 1) -> None:
        """Seed torch's generators for the next forward pass of the step that was read.

        Args:
            count: micro-batches of that pass, several with pipeline parallelism: the first counts.
        """
        for micro in [*islice(self._to_begin, count)][:1]:
            self._batches.begin(micro)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader: the same on all ranks, and for any number of them."""
        return self._batches.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where the loader was."""
        if state_dict:
            self._batches.load_state_dict(state_dict)
