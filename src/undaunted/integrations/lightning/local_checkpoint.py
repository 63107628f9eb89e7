"""`LocalCheckpointCallback` and `HierarchicalCheckpointIO`, as in NVRx: local checkpoints.

    io = HierarchicalCheckpointIO(TorchCheckpointIO(), manager, step_of)
    trainer = Trainer(
        plugins=[io],
        callbacks=[LocalCheckpointCallback(every_n_train_steps=10), ModelCheckpoint("checkpoints")],
    )
    trainer.fit(model, ckpt_path=last_checkpoint("checkpoints"))

The newer of both is loaded: what ``ckpt_path`` names, or the newest local checkpoint.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any

from undaunted.integrations.lightning.framework import check_trainer, of_lightning
from undaunted.integrations.replaced import replaced
from undaunted.integrations.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from os import PathLike

    from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
    from undaunted.checkpointing.local.base_state_dict import TensorAwareStateDict
    from undaunted.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

LOCAL_CKPT_OPTS_KEY = "local_checkpoint_options"
_NEEDED = (
    Requirement("save_checkpoint", 1, ("storage_options",)),
    Requirement("strategy.checkpoint_io.save_checkpoint", 2, ("storage_options",)),
    Requirement("strategy.save_checkpoint"),
    Requirement("strategy.broadcast", 1),
)


class LocalCheckpointCallback(of_lightning("callbacks", "ModelCheckpoint")):  # type: ignore[misc]
    """Saves local checkpoints at the end of batches; `HierarchicalCheckpointIO` has to be there.

    Args:
        every_n_train_steps: save after every so many steps.
        train_time_interval: save when so much time has passed, as rank 0 sees it. One of both.

    Raises:
        ImportError: Lightning is not there.
        ValueError: the time to save is not given, or given twice.
        RuntimeError: training begins, and the trainer is of a version that is not supported.
    """

    def __init__(
        self,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
    ) -> None:
        if (every_n_train_steps is None) == (train_time_interval is None):
            raise ValueError(
                f"every_n_train_steps is {every_n_train_steps!r} and train_time_interval "
                f"{train_time_interval!r}: give one of both"
            )
        if every_n_train_steps is not None and every_n_train_steps < 1:
            raise ValueError(f"every_n_train_steps is {every_n_train_steps!r}: give 1 or more")
        super().__init__(
            every_n_train_steps=every_n_train_steps, train_time_interval=train_time_interval
        )
        self._every = every_n_train_steps
        self._interval_s = train_time_interval.total_seconds() if train_time_interval else 0.0
        self._saved_step = 0
        self._saved_at = 0.0
        self._queue: AsyncCallsQueue | None = None

    def setup(self, trainer: Any, _: Any, stage: str) -> None:
        """Only training goes on from a local checkpoint; ``test`` loads the path it is given."""
        check_trainer(trainer, _NEEDED)
        self._leave()  # a `fit` that did not say that it had ended
        io = trainer.strategy.checkpoint_io
        while io is not None:
            if isinstance(io, HierarchicalCheckpointIO):
                io.loads_local = stage == "fit"
            io = getattr(io, "checkpoint_io", None)

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """A loaded checkpoint is not saved again."""
        self._saved_step, self._saved_at = trainer.global_step, time.monotonic()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A batch is over: save, if it is time."""
        if self._queue is not None:
            self._queue.maybe_finalize_async_calls()
        if trainer.global_step == self._saved_step or trainer.fast_dev_run:
            return
        if self._is_due(trainer):
            self._saved_step, self._saved_at = trainer.global_step, time.monotonic()
            self._save(trainer)

    def on_train_end(self, *_: Any) -> None:
        """Training is over: what is being written is waited for."""
        if self._queue is not None:
            self._queue.maybe_finalize_async_calls(blocking=True)
        self._leave()

    def on_exception(self, *_: Any) -> None:
        """Training has failed: what is being written is given up."""
        self._leave()

    def on_train_epoch_end(self, *_: Any) -> None:
        """Nothing is saved."""

    def on_validation_end(self, *_: Any) -> None:
        """Nothing is saved."""

    def state_dict(self) -> dict[str, Any]:
        """There is none."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """There is none."""

    def _is_due(self, trainer: Any) -> bool:
        if self._every is not None:
            return bool(trainer.global_step % self._every == 0)
        over = time.monotonic() - self._saved_at >= self._interval_s
        return bool(trainer.strategy.broadcast(over))

    def _save(self, trainer: Any) -> None:
        options = {"ckpt_type": "local", "iteration": trainer.global_step}
        with self._on_every_rank(trainer.strategy):
            trainer.save_checkpoint(None, storage_options={LOCAL_CKPT_OPTS_KEY: options})

    def _on_every_rank(self, strategy: Any) -> contextlib.AbstractContextManager[None]:
        """Lightning's own strategies save on rank 0 only: the others would not save their part.

        Strategies with another way to save are left to it.
        """
        lightnings = of_lightning("strategies", "Strategy").save_checkpoint
        if type(strategy).save_checkpoint is not lightnings:
            return contextlib.nullcontext()

        def save(checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            request = strategy.checkpoint_io.save_checkpoint(
                checkpoint, path, storage_options=storage_options
            )
            if request is not None:
                self._schedule(request)

        return replaced(strategy, "save_checkpoint", save)

    def _schedule(self, request: AsyncRequest) -> None:
        from undaunted.checkpointing.async_ckpt.core import AsyncCallsQueue

        if self._queue is None:
            self._queue = AsyncCallsQueue()
        self._queue.schedule_async_request(request)

    def _leave(self) -> None:
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close(abort=True)


class HierarchicalCheckpointIO(of_lightning("plugins.io.wrapper", "_WrappingCheckpointIO")):  # type: ignore[misc]
    """Saves and loads local checkpoints beside those of another `CheckpointIO`.

    Args:
        wrapped_checkpoint_io: saves and loads all others.
        local_ckpt_manager: saves and loads the local ones.
        get_global_ckpt_iteration_fn: returns the step of the checkpoint that a path names.
        async_save: local ones are written while training goes on; `save_checkpoint` returns the
            request, which `LocalCheckpointCallback` finalizes.

    Attributes:
        loads_local: whether `load_checkpoint` may load a local one.

    Raises:
        ImportError: Lightning is not there.
    """

    def __init__(
        self,
        wrapped_checkpoint_io: Any,
        local_ckpt_manager: LocalCheckpointManager,
        get_global_ckpt_iteration_fn: Callable[[str | PathLike[str]], int],
        async_save: bool = False,
    ) -> None:
        super().__init__(wrapped_checkpoint_io)
        self.local_ckpt_manager = local_ckpt_manager
        self.get_global_ckpt_iteration_fn = get_global_ckpt_iteration_fn
        self.async_save = async_save
        self.loads_local = True

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: str | PathLike[str] | None,
        storage_options: Any = None,
    ) -> Any:
        """Save a checkpoint: a local one if the options have `LOCAL_CKPT_OPTS_KEY`, on all ranks.

        Raises:
            ValueError: a local one has a path.
        """
        local = storage_options.get(LOCAL_CKPT_OPTS_KEY) if storage_options else None
        if local is None:
            return self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options)
        if path is not None:
            raise ValueError(f"the path is {path!r}: a local checkpoint has none, give None")
        state = self.to_tensor_aware_state_dict(checkpoint)
        return self.local_ckpt_manager.save(state, local["iteration"], self.async_save)

    def load_checkpoint(
        self, path: str | PathLike[str], map_location: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Load the local checkpoint if it is as new as what the path names, else that."""
        if self.loads_local:
            latest = self.local_ckpt_manager.find_latest()
            if latest >= max(0, self.get_global_ckpt_iteration_fn(path)):
                state, _ = self.local_ckpt_manager.load()
                return self.from_tensor_aware_state_dict(state, **options)
        if map_location is not None:
            options["map_location"] = map_location
        loaded: dict[str, Any] = self.checkpoint_io.load_checkpoint(path, **options)
        return loaded

    def remove_checkpoint(self, path: str | PathLike[str]) -> None:
        """Remove a checkpoint that is not a local one; the manager removes these."""
        self.checkpoint_io.remove_checkpoint(path)

    def teardown(self) -> None:
        """End, and wait for what the other one writes."""
        self.checkpoint_io.teardown()

    @classmethod
    def get_partial_wrapper_constructor(
        cls,
        local_ckpt_manager: LocalCheckpointManager,
        get_global_ckpt_iteration_fn: Callable[[str | PathLike[str]], int],
        async_save: bool = False,
    ) -> Callable[[Any], HierarchicalCheckpointIO]:
        """Return what makes one, given the `CheckpointIO` for all other checkpoints."""
        return functools.partial(
            cls,
            local_ckpt_manager=local_ckpt_manager,
            get_global_ckpt_iteration_fn=get_global_ckpt_iteration_fn,
            async_save=async_save,
        )

    def to_tensor_aware_state_dict(self, checkpoint: dict[str, Any]) -> TensorAwareStateDict:
        """Return what the manager saves; to be overridden for states with other objects.

        This one takes plain data and tensors.
        """
        from undaunted.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict

        return BasicTensorAwareStateDict(checkpoint)

    def from_tensor_aware_state_dict(
        self,
        tensor_aware_checkpoint: TensorAwareStateDict,
        **_: Any,
    ) -> dict[str, Any]:
        """Return the checkpoint that `to_tensor_aware_state_dict` was given."""
        state: dict[str, Any] = tensor_aware_checkpoint.state_dict  # type: ignore[attr-defined]
        return state
