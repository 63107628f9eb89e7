"""A `Loader` as the training data of Transformers' `Trainer`: a mixin.

from undaunted.integrations.transformers import LoaderMixin

class MyTrainer(LoaderMixin, Trainer):
    pass

trainer = MyTrainer(..., global_batch=64)
"""

from __future__ import annotations

import logging
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

from undaunted.integrations.replaced import replaced
from undaunted.integrations.requirements import Requirement, check

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import Trainer as _Trainer

    from undaunted.data.batches import Batches
    from undaunted.data.plan import MicroBatch
else:
    _Trainer = object

_NAME = "undaunted_loader"  # of what is noted in the trainer's state
_FROM_TORCH = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "timeout")
_NEEDED = (  # of the trainer whose methods the mixin extends
    Requirement("get_train_dataloader", 0),
    Requirement("_run_epoch"),
    Requirement("get_batch_samples", 3),
    Requirement("training_step"),
    Requirement("compute_loss"),
)
_NEEDED_OF_IT = (
    Requirement("_train_batch_size"),
    Requirement("state.stateful_callbacks"),
    Requirement("args.train_sampling_strategy"),
    Requirement("is_deepspeed_enabled"),
    Requirement("loss_is_scaled_for_ga"),
    Requirement("compute_loss_func"),
    Requirement("model_accepts_loss_kwargs"),
    Requirement("get_total_train_batch_size", 1),
)
_LOG = logging.getLogger("undaunted")


class LoaderMixin(_Trainer):
    """Trains with the same samples, masks and dropout in each step, whatever happens to the job.

    Comes before the trainer among the bases of a class. The data set, the collator, the size of a
    micro-batch (``per_device_train_batch_size``) and the workers are the trainer's; ``seed`` is
    ``data_seed``, or else ``seed``. With another number of ranks ``gradient_accumulation_steps`` is
    another one, so that the global batch stays.

    Args:
        global_batch: samples of a step of the optimizer, on all ranks together.
        loader_options: other settings of `undaunted.data.Loader`, such as ``sample_rng``.

    Raises:
        ValueError: training begins, and a setting of the trainer or of the checkpoint does not fit.
        undaunted.data.DataChangedError: training goes on, and the data are not the checkpoint's.
        RuntimeError: training begins, and the trainer is of a version that is not supported.
    """

    _data: Batches
    _share: Iterator[MicroBatch]  # those of the step at work that have not begun
    _micro: MicroBatch | None = None  # the one that is trained with

    def __init__(
        self,
        *args: Any,
        global_batch: int,
        loader_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._loader_options = {"global_batch": global_batch, **(loader_options or {})}
        super().__init__(*args, **options)

    def get_train_dataloader(self) -> Any:
        """Return this rank's micro-batches of the trainer's data."""
        from undaunted.data import Batches, Loader

        check("transformers", super(), _NEEDED)
        check("transformers", self, _NEEDED_OF_IT)
        args, theirs = self.args, super().get_train_dataloader()
        if refused := [why for why, holds in self._refused().items() if holds]:
            raise ValueError(f"LoaderMixin: {refused[0]}")
        settings = {
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "shuffle": args.train_sampling_strategy == "random",
            "remainder": "drop" if args.dataloader_drop_last else "short",
            "collate_fn": theirs.collate_fn,
            **{name: getattr(theirs, name) for name in _FROM_TORCH},
            **self._loader_options,
        }
        place = {"rank": args.process_index, "world_size": args.world_size}
        loader = Loader(theirs.dataset, micro_batch=self._train_batch_size, **place, **settings)
        self._data = Batches(loader, even=False)
        args.gradient_accumulation_steps = self._data.accumulation
        return self._data

    def _run_epoch(self, *args: Any, **options: Any) -> Any:
        """Train for an epoch, or the rest of one: a Loader goes to a step, and skips nothing."""
        noted, steps = self.state.stateful_callbacks, self._data.steps()
        if self.state.global_step and _NAME not in noted and self.args.process_index == 0:
            _LOG.warning("the checkpoint has no Loader: samples of its epoch may come again")
        self._data.go_to(self.state.global_step, noted.get(_NAME, steps))
        noted[_NAME] = steps
        module = sys.modules["transformers.trainer"]
        with replaced(module, "skip_first_batches", lambda data, _: data):
            return super()._run_epoch(*args, **options)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Return a step's micro-batches, and how many labels count in it on all ranks."""
        share = self._data.share()
        self._share = iter(share)
        batches = list(islice(epoch_iterator, num_batches))
        pairs = zip(batches, share, strict=True)
        counted = [batch if micro.real else _without_labels(batch) for batch, micro in pairs]
        return batches, super().get_batch_samples(iter(counted), num_batches, device)[1]

    def training_step(self, *args: Any, **options: Any) -> Any:
        """Make forward and backward pass of a micro-batch, with its random numbers."""
        self._micro = next(self._share)
        self._data.begin(self._micro)
        try:
            return super().training_step(*args, **options)
        finally:
            self._micro = None

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        """Compute the loss; that of a micro-batch counts as its samples do."""
        result, micro = super().compute_loss(*args, **options), self._micro
        if micro is None:  # an evaluation
            return result
        is_sum = self.loss_is_scaled_for_ga
        if is_sum is None:
            counted = options.get("num_items_in_batch") is not None
            is_sum = self.compute_loss_func or (self.model_accepts_loss_kwargs and counted)
        # The trainer divides a mean by the number of micro-batches, and then by that of ranks.
        shared = self.args.world_size * self.current_gradient_accumulation_steps
        weight = float(micro.real > 0) if is_sum else shared * micro.real / micro.of
        return (result[0] * weight, *result[1:]) if isinstance(result, tuple) else result * weight

    def _refused(self) -> dict[str, bool]:
        """Return what cannot be, and whether it is so."""
        args = self.args
        on_rank = self._train_batch_size * args.gradient_accumulation_steps
        return {
            f"train_sampling_strategy={args.train_sampling_strategy!r} is neither random nor "
            "sequential": args.train_sampling_strategy not in {"random", "sequential"},
            "ignore_data_skip=True would begin the epoch anew": args.ignore_data_skip,
            "DeepSpeed counts micro-batches itself": self.is_deepspeed_enabled,
            "ranks cannot share samples, as by tensor or sequence parallelism": (
                self.get_total_train_batch_size(args) != on_rank * args.world_size
            ),
        }


def _without_labels(batch: Any) -> Any:
    """Return it with labels that Transformers does not count."""
    names = [name for name in ("labels", "shift_labels") if name in batch]
    return {**batch, **{name: batch[name].clone().fill_(-100) for name in names}}
