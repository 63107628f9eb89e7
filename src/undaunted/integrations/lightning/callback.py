"""`UndauntedCallback`: tells a session what a trainer does, and the trainer when to stop."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any

from undaunted.integrations.lightning.changes import around
from undaunted.integrations.lightning.checkpoints import folder_of, refuse_no_folder, save_at_stop
from undaunted.integrations.lightning.framework import check_trainer, of_lightning
from undaunted.integrations.replaced import replaced
from undaunted.integrations.requirements import Requirement
from undaunted.integrations.resuming import begin_alike
from undaunted.progress.api import heartbeat
from undaunted.training.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

_LOG = logging.getLogger("undaunted")
_NEEDED = (
    Requirement("save_checkpoint", 1),
    Requirement("checkpoint_callbacks"),
    Requirement("_signal_connector.register_signal_handlers", 0),
    Requirement("_checkpoint_connector.resume_start", 1),
    Requirement("_logger_connector.epoch_end_reached", 0),
    Requirement("_active_loop"),
    Requirement("fit_loop.epoch_loop.val_loop.batch_progress.current"),
    Requirement("fit_loop.restarted_mid_epoch"),
    Requirement("fit_loop.reset_restart_stage", 0),
)


class UndauntedCallback(of_lightning("callbacks", "Callback")):  # type: ignore[misc]
    """Has a `Session` around ``trainer.fit``: progress, sections, and a stop of all ranks together.

    A stop is asked for by SIGTERM, by the launcher, or by `Session.request_stop`. Then all ranks
    save a checkpoint after the same step, and ``fit`` raises SystemExit with the session's exit
    code, as Lightning does for SIGTERM; handlers of signals of Lightning are not used meanwhile.
    ``validate``, ``test`` and ``predict`` have a session, too. They have nothing to save.

    Args:
        folder: where the checkpoint of a stop is saved, for `last_checkpoint`: a path, or a URL
            that fsspec opens; None = where the first ModelCheckpoint saves.
        session: more arguments of `Session`, such as ``end_time``.

    Attributes:
        session: the session of what the trainer does now, else None.

    Raises:
        ImportError: Lightning is not there.
        ValueError: a value cannot be meant, or the trainer has a second callback of this kind.
        RuntimeError: ``fit`` finds that ranks go on from different checkpoints, or the trainer is
            of a version that is not supported.
    """

    def __init__(self, folder: str | PathLike[str] | None = None, **session: Any) -> None:
        super().__init__()
        Session(**session)  # bad values are refused here
        if folder is not None:
            refuse_no_folder(folder)
        self.session: Session | None = None
        self._folder = folder
        self._arguments = session
        self._run: contextlib.ExitStack | None = None
        self._section: contextlib.AbstractContextManager[None] | None = None
        self._step = 0  # which comes next, or is under way
        self._idle = True  # no batch was seen
        self._loader = 0  # of the evaluation that is made
        self._left: contextlib.ExitStack | None = None  # hooks of an evaluation that the ranks left
        self._ended: Any = None  # states of loaders, of an epoch that is complete

    # --- begin and end ----------------------------------------------------------------------------

    def setup(self, trainer: Any, _: Any, stage: str) -> None:
        """Begin: the process group is there, nothing is loaded yet."""
        if sum(isinstance(each, UndauntedCallback) for each in trainer.callbacks) > 1:
            raise ValueError("there are two UndauntedCallback: give Trainer(callbacks=...) one")
        check_trainer(trainer, _NEEDED)
        self._leave(None)  # of what did not say that it had ended
        with contextlib.ExitStack() as run:
            run.enter_context(_place(trainer))
            self.session = run.enter_context(Session(**self._arguments))
            if stage == "fit":
                self._step, self._idle = 0, True
                _say_if_not_found_again(trainer)
                run.enter_context(_begin_alike(trainer))
                run.enter_context(around(trainer, "save_checkpoint", self._saving))
                _go_last(trainer, self)
            else:
                run.enter_context(_own_signals(trainer, _nothing))
            self._run = run.pop_all()

    def teardown(self, trainer: Any, *_: Any, stage: str) -> None:
        """End."""
        fits = stage == "fit" and self._run is not None
        if fits and self._idle and trainer.is_global_zero:
            _say_no_step(trainer)
        self._leave(None)

    def on_exception(self, _: Any, __: Any, exception: BaseException) -> None:
        """End, by an exception or by a stop."""
        self._leave(exception)

    def _leave(self, error: BaseException | None) -> None:
        self._close()
        left, self._left = self._left, None
        if left is not None:
            left.close()
        run, self._run = self._run, None
        if run is not None:
            run.__exit__(type(error) if error else None, error, None)
        self.session = None

    # --- what the trainer does --------------------------------------------------------------------

    # Lightning calls those that are callable, inside of a context manager of its profiler. These
    # would do nothing, and each of them take 2 us of a batch.
    on_before_zero_grad = on_before_backward = on_after_backward = on_before_optimizer_step = None

    def on_load_checkpoint(self, _: Any, __: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the states of loaders whose epoch is complete, of which there may be none."""
        loop = checkpoint.get("loops", {}).get("fit_loop", {})
        ended = loop.get("epoch_loop.batch_progress", {}).get("is_last_batch")
        self._ended = loop.get("state_dict", {}).get("combined_loader", []) if ended else None

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """All is loaded."""
        self._step = trainer.global_step
        states, self._ended = self._ended, None
        if states is not None and trainer.fit_loop.restarted_mid_epoch:
            _begin_epoch(trainer.fit_loop, states)

    def on_train_batch_start(self, *_: Any) -> None:
        """A step begins, or a part of one whose gradients are accumulated."""
        self._idle = False
        if self._section is not None:
            self._close()  # a batch that was skipped has no end
        if self.session is not None:
            self.session.begin_step(self._step)
            self._section = self.session.step_section

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """A batch is over. If the optimizer made a step, the ranks may stop after it."""
        session, step, self._step = self.session, self._step, trainer.global_step
        if session is None or self._step == step:
            self._close()
            return
        if self._section is not session.step_section:
            self._close()
        self._section = None
        if session.end_step(step):
            self._save_at_stop(trainer, session)
            raise SystemExit(session.exit_code)

    # --- evaluations ------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        """An evaluation begins."""
        self._loader = 0
        if self.session is not None:
            if not _fits(trainer):
                self.session.ready()
            self._open(self.session.section("evaluation"))

    def on_validation_batch_start(
        self, trainer: Any, module: Any, _: Any, __: int, dataloader_idx: int = 0
    ) -> None:
        """A part of it begins. Ranks that have had all batches of a loader need not go on."""
        if dataloader_idx != self._loader and self._ended_loaders(dataloader_idx):
            self._leave_evaluation(trainer, module)
            raise StopIteration

    def on_validation_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        """A part of it is over. All ranks may leave it: `StopIteration` ends Lightning's loop.

        Callbacks and loggers take the results for those of a sanity check then, and ignore them.
        """
        if self.session is None:
            return
        heartbeat()
        if self.session.leaves_evaluation():
            self._leave_evaluation(trainer, module)
            raise StopIteration

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """There are no more batches, here perhaps; nothing has the results yet."""
        if self._left is None and self._ended_loaders(_loaders(trainer)):
            self._leave_evaluation(trainer, module)

    def on_validation_end(self, *_: Any) -> None:
        """It is over, or the ranks have left it, and the module's own hook comes next."""
        self._close()

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end
    on_test_end = on_predict_end = on_validation_end

    def _ended_loaders(self, loader: int) -> bool:
        """All before this one have no more batches, some of them none at all on this rank."""
        leaves = False
        while self._loader < loader:
            self._loader += 1
            leaves = self.session is not None and self.session.leaves_evaluation(ended=True)
        return leaves

    def _leave_evaluation(self, trainer: Any, module: Any) -> None:
        """Have what is left of it run as after a sanity check, then save.

        Hooks for its end put back what they have changed, such as averaged weights.
        """
        session = self.session
        assert session is not None
        if not _fits(trainer):
            raise SystemExit(session.exit_code)
        saves = not trainer.sanity_checking
        if saves:
            _reduce_results(trainer)
        trainer.sanity_checking = True
        self._left = contextlib.ExitStack()
        for owner in (*trainer.callbacks, module):
            for name in ("on_validation_epoch_end", "on_validation_end"):
                self._left.enter_context(replaced(owner, name, _tolerant(owner, name)))
        ends = module.on_validation_end

        def save_and_stop() -> None:
            ends()
            if saves:
                trainer.validating = True
                _begin_evaluation(trainer.fit_loop.epoch_loop.val_loop)
                self._save_at_stop(trainer, session)
            raise SystemExit(session.exit_code)

        self._left.enter_context(replaced(module, "on_validation_end", save_and_stop))

    def _open(self, section: contextlib.AbstractContextManager[None]) -> None:
        self._close()
        section.__enter__()
        self._section = section

    def _close(self) -> None:
        section, self._section = self._section, None
        if section is not None:
            section.__exit__(None, None, None)

    # --- saving -----------------------------------------------------------------------------------

    def _save_at_stop(self, trainer: Any, session: Session) -> None:
        with session.checkpointing():
            save_at_stop(trainer, self._folder or folder_of(trainer))

    def _saving(self) -> contextlib.AbstractContextManager[None]:
        assert self.session is not None
        return self.session.checkpointing(self._step - 1 if self._step else None)


def _go_last(trainer: Any, callback: UndauntedCallback) -> None:
    """Have what other callbacks do at the end of a step be in the checkpoint of a stop.

    Lightning has callbacks that save at the end of the list, and goes through the old list now.
    """
    savers = trainer.checkpoint_callbacks
    others = [each for each in trainer.callbacks if each is not callback and each not in savers]
    trainer.callbacks = [*others, callback, *savers]


def _begin_epoch(loop: Any, states: Any) -> None:
    """Begin the next epoch after a checkpoint of the last batch of one.

    Lightning goes on as if the epoch that begins had begun before: it does not count it, and the
    start after this one would train for an epoch more. Loaders have got the states of the one that
    is complete. Those of torch have no batch left then, and Lightning would end the epoch without
    a step; their next iterator gives the next epoch. Other loaders may go on by themselves.
    """
    from torch.utils.data import DataLoader

    loop.reset_restart_stage()
    if not states:
        return

    loaders, fetcher = loop._combined_loader, loop._data_fetcher  # noqa: SLF001
    for loader in loaders.flattened:
        for owner in (loader, getattr(loader, "batch_sampler", None)):
            sampler: Any = getattr(owner, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(loop.epoch_progress.current.processed)
    left = next(fetcher, None)  # samplers take their state when they are asked for a batch
    if left is not None and not all(isinstance(one, DataLoader) for one in loaders.flattened):
        loaders._load_state_dicts(states)  # noqa: SLF001 - as if nobody had asked
    iter(fetcher)


def _fits(trainer: Any) -> bool:
    return str(trainer.state.fn.value) == "fit"


def _loaders(trainer: Any) -> int:
    """Return how many loaders an evaluation has, one after another."""
    loop = trainer._active_loop  # noqa: SLF001
    one_by_one = loop._combined_loader._mode == "sequential"  # noqa: SLF001
    return int(loop.num_dataloaders) if one_by_one else 1


def _reduce_results(trainer: Any) -> None:
    """Take part in what ranks reduce that have had all their batches: ``log(sync_dist=True)``."""
    if trainer.world_size > 1:
        results = trainer._logger_connector  # noqa: SLF001
        results.epoch_end_reached()
        _ = results.metrics


def _tolerant(owner: Any, name: str) -> Callable[..., None]:
    """Return a hook that only logs what it raises: it has results of some batches, or of none."""
    hook = getattr(owner, name)

    def run(*args: Any) -> None:
        try:
            if callable(hook):
                hook(*args)
        except Exception as error:  # noqa: BLE001 - the checkpoint of the stop is worth more
            _LOG.warning(
                "%s.%s raises %r, as the ranks have left the validation to stop: they save all the "
                "same",
                *(type(owner).__name__, name, error),
            )

    return run


def _begin_evaluation(loop: Any) -> None:
    """Have what is saved look as if the first batch were under way: it is made from the begin."""
    for count in (loop.batch_progress.total, loop.batch_progress.current):
        count.ready = count.started = 1
        count.processed = count.completed = 0


def _say_no_step(trainer: Any) -> None:
    """Say that nothing was left to do, or that something is wrong."""
    _LOG.warning(
        "fit has made no step: training goes on from step %d in epoch %d, and ends there by "
        "max_epochs=%s and max_steps=%s of the Trainer, or the loader has no batches",
        trainer.global_step,
        trainer.current_epoch,
        trainer.max_epochs,
        trainer.max_steps,
    )


def _say_if_not_found_again(trainer: Any) -> None:
    savers = trainer.checkpoint_callbacks
    if not savers or not trainer.loggers or not trainer.is_global_zero:
        return
    if not any(getattr(each, "dirpath", None) for each in savers):
        _LOG.warning(
            "ModelCheckpoint has no dirpath: it saves in a folder of the logger, another one at "
            "each start, where last_checkpoint does not look; give ModelCheckpoint(dirpath=...) "
            "and last_checkpoint the same folder"
        )


@contextlib.contextmanager
def _begin_alike(trainer: Any) -> Iterator[None]:
    """Compare where ranks begin: before they load, some of it together, and when all is loaded.

    Lightning registers its handlers of signals then, which save, or broadcast: the session has its
    own.
    """
    loads = trainer._checkpoint_connector  # noqa: SLF001
    load, place = loads.resume_start, "the beginning"

    def resume_start(path: Any = None, *args: Any, **options: Any) -> None:
        nonlocal place
        place = str(path or place)
        begin_alike(bool(path), place)
        load(path, *args, **options)

    def loaded() -> None:
        begin_alike(trainer.global_step, f"step {trainer.global_step} ({place})")

    with replaced(loads, "resume_start", resume_start), _own_signals(trainer, loaded):
        yield


def _own_signals(
    trainer: Any, instead: Callable[[], None]
) -> contextlib.AbstractContextManager[None]:
    """Do something else where Lightning would register its handlers of signals."""
    return replaced(trainer._signal_connector, "register_signal_handlers", instead)  # noqa: SLF001


def _nothing() -> None:
    pass


@contextlib.contextmanager
def _place(trainer: Any) -> Iterator[None]:
    """Say which rank this is, where Lightning has started the ranks and has not said it."""
    place = {"RANK": trainer.global_rank, "WORLD_SIZE": trainer.world_size}
    missing = [key for key in place if key not in os.environ and trainer.world_size > 1]
    new = {key: f"{place[key]}" for key in missing}
    os.environ.update(new)
    try:
        yield
    finally:
        for key in new:
            os.environ.pop(key, None)
