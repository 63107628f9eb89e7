"""A `Loader` as the training data of Lightning's `Trainer`: a callback.

def train_dataloader(self):  # of the module
    return Batches(Loader(samples, global_batch=64, micro_batch=8))

trainer = Trainer(callbacks=[LoaderCallback(), ...])
"""

from __future__ import annotations

from typing import Any

from undaunted.integrations.lightning.framework import check_trainer, of_lightning
from undaunted.integrations.requirements import Requirement

_PROGRESS = "fit_loop.epoch_loop.batch_progress.current"
_COUNTS = ("ready", "started", "processed", "completed")
_NEEDED = (
    Requirement("accumulate_grad_batches"),
    Requirement("num_training_batches"),
    Requirement("train_dataloader"),
    *(Requirement(f"{_PROGRESS}.{name}") for name in _COUNTS),
)


class LoaderCallback(of_lightning("callbacks", "Callback")):  # type: ignore[misc]
    """Trains with the same samples, masks and dropout in each step, whatever happens to the job.

    The module's ``train_dataloader`` returns a `Batches`. Lightning accumulates gradients over the
    micro-batches of a step, with another number of ranks over another number of them.

    Raises:
        TypeError: training begins, and its data are no `Batches`.
        ValueError: training begins, and a setting of the trainer or of the checkpoint does not fit.
        undaunted.data.DataChangedError: training goes on, and the data are not the checkpoint's.
        RuntimeError: training begins, and the trainer is of a version that is not supported.
    """

    def __init__(self) -> None:
        self._batches: Any = None
        self._steps: dict[str, Any] = {}  # what those of the checkpoint depend on

    def state_dict(self) -> dict[str, Any]:
        """Return what the number of steps in a checkpoint depends on."""
        return self._steps if self._batches is None else self._batches.steps()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take that of a checkpoint, to compare when training begins."""
        self._steps = state_dict

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Go to the step that the trainer goes on from."""
        check_trainer(trainer, _NEEDED)
        batches = _batches_of(trainer, pl_module)
        accumulation = batches.accumulation
        if trainer.accumulate_grad_batches not in {1, accumulation}:
            raise ValueError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches}, and the global batch "
                f"needs {accumulation} on {trainer.world_size} ranks: leave it out"
            )
        trainer.accumulate_grad_batches = accumulation
        batches.go_to(trainer.global_step, self._steps or batches.steps())
        _count(trainer.fit_loop.epoch_loop.batch_progress.current, trainer.global_step, batches)
        self._batches = batches

    def on_train_batch_start(self, trainer: Any, _: Any, __: Any, batch_idx: int) -> None:
        """Seed torch's generators for a micro-batch."""
        batches = self._batches
        share = batches.share(trainer.global_step)
        batches.begin(share[batch_idx % len(share)])


def _batches_of(trainer: Any, pl_module: Any) -> Any:
    from undaunted.data import Batches

    batches = trainer.train_dataloader
    if not isinstance(batches, Batches):
        raise TypeError(
            f"LoaderCallback: train_dataloader returns {type(batches).__name__}, and has to return "
            "Batches(Loader(...))"
        )
    if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
        raise ValueError(
            "LoaderCallback counts steps of one optimizer, with automatic optimization: use a "
            "Loader in training_step's place otherwise"
        )
    if trainer.num_training_batches != len(batches):
        raise ValueError(
            f"an epoch has {trainer.num_training_batches} of the Loader's {len(batches)} "
            "micro-batches: leave out limit_train_batches, and use max_steps"
        )
    return batches


def _count(progress: Any, steps: int, batches: Any) -> None:
    """Have the trainer count in the micro-batches that there are now, if ranks are fewer or more.

    Args:
        progress: of the epoch: how many batches were begun, and done.
        steps: that were made since the beginning of training.
        batches: of which an epoch consists.
    """
    done = steps % len(batches.loader) * batches.accumulation
    if progress.ready == 0:
        return
    done = done or len(batches)
    unfinished = progress.ready - progress.completed
    progress.ready = progress.started = progress.processed = done
    progress.completed = done - unfinished
