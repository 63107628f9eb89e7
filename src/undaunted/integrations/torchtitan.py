"""The `Trainer` of torchtitan in a session: a mixin.

from torchtitan import trainer
from undaunted.integrations.torchtitan import UndauntedTrainerMixin

class Trainer(UndauntedTrainerMixin, trainer.Trainer):
    pass

def my_model() -> Trainer.Config: ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from undaunted.base import torch_ranks
from undaunted.integrations.replaced import replaced
from undaunted.integrations.requirements import Requirement, check
from undaunted.integrations.resuming import older_step
from undaunted.integrations.torchtitan_data import LoaderMixin
from undaunted.progress.api import heartbeat
from undaunted.training.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["LoaderMixin", "UndauntedTrainerMixin"]

_LOG = logging.getLogger("undaunted")
_STEP = re.compile(r"step-([0-9]+)")
_NEEDED = (
    Requirement("step"),
    Requirement("should_continue_training", 0),
    Requirement("close", 0),
    Requirement("train_step", 1),
    Requirement("gradient_accumulation_steps"),
    Requirement("num_pipeline_parallel_microbatches"),
    Requirement("checkpointer.save", 2),
    Requirement("checkpointer.load", 1),
    Requirement("checkpointer.maybe_wait_for_saving", 0),
    Requirement("checkpointer.enable"),
)
# One that saves nothing has no more attributes than that.
_NEEDED_TO_SAVE = (
    *map(Requirement, ("checkpointer.interval", "checkpointer.load_only")),
    Requirement("checkpointer.last_save_model_only"),
)


class UndauntedTrainerMixin:
    """Says what the trainer does, and has all ranks stop after the same step, having saved.

    Comes before the trainer among the bases of a class. The session lasts as long as ``train``. A
    stop saves a checkpoint as torchtitan does, and then ``train`` raises SystemExit with the
    session's exit code. torchtitan itself goes on from its newest checkpoint; where that leads to
    failures, from an older one (see `undaunted.checkpointing.choose`).

    A class that defines no ``Config`` gets one, whose ``build`` makes that class.

    Attributes:
        session_options: arguments of `Session`, such as ``end_time``; set them in the class.
        session: the session of a training that is under way, else None.

    Raises:
        ValueError: training begins, and an option cannot be meant.
        RuntimeError: training begins, and the trainer is of a version that is not supported.
    """

    session_options: ClassVar[Mapping[str, Any]] = {}
    session: Session | None = None
    _saved_step = -1
    step: int
    checkpointer: Any
    dataloader: Any

    def __init_subclass__(cls, **options: Any) -> None:
        theirs = getattr(cls, "Config", None)
        if theirs is not None and "Config" not in vars(cls):
            names = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Config"}
            config = type("Config", (theirs,), {**names, "__doc__": theirs.__doc__})
            setattr(cls, "Config", dataclasses.dataclass(kw_only=True, slots=True)(config))  # noqa: B010
        super().__init_subclass__(**options)

    # --- what torchtitan calls --------------------------------------------------------------------

    def train(self) -> None:
        """Train, in a session."""
        session = Session(**self.session_options)
        check("torchtitan", self, _NEEDED)
        if self.checkpointer.enable:
            check("torchtitan", self, _NEEDED_TO_SAVE)
        _say_what_is_not_kept(self.checkpointer)
        _check_global_batch(self)
        with session, contextlib.ExitStack() as replacements:
            for replacement in self._sections(session):
                replacements.enter_context(replacement)
            replacements.enter_context(replaced(self, "session", session))
            super().train()  # type: ignore[misc]
        if session.stop is not None:  # torchtitan returns where a script would end with 0
            raise SystemExit(session.exit_code)

    def train_step(self, data_iterator: Any) -> None:
        """Make a step, after which the ranks may stop."""
        session = self.session
        if session is None:
            super().train_step(data_iterator)  # type: ignore[misc]
            return
        iteration = self.step - 1  # torchtitan counts from 1
        with session.step(iteration):
            super().train_step(data_iterator)  # type: ignore[misc]
        # After the last step the job is done sooner than another one starts.
        if self.should_continue_training() and session.should_stop(iteration):
            self._save_at_stop(session)
            raise SystemExit(session.exit_code)

    def forward_backward_step(self, **given: Any) -> Any:
        """Make forward and backward pass of a micro-batch, with its random numbers."""
        if isinstance(self.dataloader, LoaderMixin):
            inputs = given["input_dict"]  # of several with pipeline parallelism
            self.dataloader.begin(len(inputs) if isinstance(inputs, list) else 1)
        return super().forward_backward_step(**given)  # type: ignore[misc]

    if TYPE_CHECKING:

        def should_continue_training(self) -> bool:
            """Of the trainer."""

        def close(self) -> None:
            """Of the trainer."""

    # --- sections ---------------------------------------------------------------------------------

    def _sections(self, session: Session) -> Iterator[contextlib.AbstractContextManager[None]]:
        """Replace what has no hook: methods of the objects that save and evaluate."""
        yield replaced(self.checkpointer, "save", self._saving(session))
        yield replaced(self.checkpointer, "load", _loading(self.checkpointer))
        validator = getattr(self, "validator", None)  # there if the configuration has one
        if validator is None:
            return
        yield replaced(validator, "validate", self._validating(session, validator.validate))
        prepare = getattr(validator, "post_dataloading_process", None)
        if prepare is not None:
            instead = self._preparing(session, prepare)
            yield replaced(validator, "post_dataloading_process", instead)

    def _validating(self, session: Session, validate: Callable[..., Any]) -> Callable[..., Any]:
        def validate_or_leave(*args: Any, **options: Any) -> Any:
            try:
                with session.section("evaluation"):
                    result = validate(*args, **options)
                    self._leave_if_all_do(session, ended=True)
            except _ValidationLeft:
                self._save_at_stop(session)
                raise SystemExit(session.exit_code) from None
            return result

        return validate_or_leave

    def _preparing(self, session: Session, prepare: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_batch(*args: Any, **options: Any) -> Any:
            heartbeat()
            self._leave_if_all_do(session, ended=False)
            return prepare(*args, **options)

        return prepare_batch

    def _leave_if_all_do(self, session: Session, *, ended: bool) -> None:
        # After the last step there may be a model only, which no start can go on from.
        manager = self.checkpointer
        whole = manager.enable and not manager.last_save_model_only
        if (self.should_continue_training() or whole) and session.leaves_evaluation(ended=ended):
            raise _ValidationLeft

    def _saving(self, session: Session) -> Callable[..., Any]:
        save = self.checkpointer.save
        is_due = getattr(self.checkpointer, "_should_save", lambda *_: False)

        def save_in_section(curr_step: int, last_step: bool = False) -> Any:
            if not is_due(curr_step, last_step):  # it is called after each step
                return save(curr_step, last_step)
            with session.checkpointing(curr_step - 1):
                result = save(curr_step, last_step)
            self._saved_step = curr_step
            return result

        return save_in_section

    def _save_at_stop(self, session: Session) -> None:
        """Save all that a restart needs, though no checkpoint is due, and wait for it.

        Not as the last step, of which torchtitan may save the model alone.
        """
        manager = self.checkpointer
        if manager.enable:
            if self._saved_step != self.step:
                with replaced(manager, "interval", 1):
                    manager.save(self.step)
            with session.checkpointing():
                manager.maybe_wait_for_saving()
        self.close()


class _ValidationLeft(BaseException):
    """All ranks have left the validation after as many batches."""


def _loading(manager: Any) -> Callable[..., Any]:
    """Have the newest checkpoint be one that is trusted; a step that is named stays so."""
    load = manager.load

    def load_trusted(step: int = -1, *args: Any, **options: Any) -> Any:
        return load(_trusted_step(manager) if step == -1 else step, *args, **options)

    return load_trusted


def _trusted_step(manager: Any) -> int:
    """Return the step to go on from, -1 = that is torchtitan's to find."""
    folder = str(getattr(manager, "folder", ""))
    if not folder or "://" in folder:
        return -1
    found = [path.parent for path in Path(folder).glob("step-*/.metadata")]
    steps = {path: int(match[1]) for path in found if (match := _STEP.fullmatch(path.name))}
    older = older_step(steps)
    return -1 if older is None else older  # there are other rules, such as of weights only


def _check_global_batch(trainer: Any) -> None:
    data = trainer.dataloader
    theirs = trainer.gradient_accumulation_steps * trainer.num_pipeline_parallel_microbatches
    if isinstance(data, LoaderMixin) and data.in_step != theirs:
        raise ValueError(
            f"a step has {data.in_step} micro-batches on a rank by global_batch of the data "
            f"loader, and {theirs} by training.global_batch_size: give the same number to both"
        )


def _say_what_is_not_kept(manager: Any) -> None:
    if torch_ranks.place()[0] != 0:
        return
    if not manager.enable or manager.load_only:
        _LOG.warning(
            "torchtitan saves no checkpoints, so that a restart begins anew: set "
            "checkpoint.enable, and not checkpoint.load_only"
        )
    elif manager.last_save_model_only:
        _LOG.warning(
            "torchtitan saves the model alone after the last step, and cannot go on from that: a "
            "rank that is lost then fails the job; set checkpoint.last_save_model_only to False"
        )
