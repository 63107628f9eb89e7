"""The `Trainer` of Hugging Face Transformers in a session: one callback.

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint

trainer = Trainer(..., callbacks=[UndauntedCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from undaunted.base import torch_ranks
from undaunted.base.text import count, name_ranks
from undaunted.integrations.replaced import replaced
from undaunted.integrations.requirements import Requirement, check
from undaunted.integrations.resuming import begin_alike, newest
from undaunted.integrations.transformers_data import LoaderMixin
from undaunted.progress.api import heartbeat
from undaunted.training.session import Session

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError:  # said when a callback is made
    TrainerCallback = object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import FrameType

    from undaunted.checkpointing.per_rank import RandomState

__all__ = ["LoaderMixin", "UndauntedCallback", "last_checkpoint"]

_STATE = "trainer_state.json"
_NAME = "undaunted"  # of what is noted in it
_EVALUATE = "evaluate"  # noted where an evaluation was left
_LOG_SAVE_EVALUATE = "_maybe_log_save_evaluate"
_EVALUATES = "_evaluate"
_BY_PROGRAM = ("evaluate", "predict")
_OPTIONS = ("trial", "ignore_keys_for_eval")  # of the one that is due
_TRAINERS = ("callback_handler", "control", "state", "args")
_NEEDED = (
    Requirement(_LOG_SAVE_EVALUATE),
    Requirement(_EVALUATES, 0, _OPTIONS),
    *map(Requirement, _BY_PROGRAM),
    Requirement("_determine_best_metric", 0, ("metrics", "trial")),
    Requirement("_save_checkpoint", 2),
    Requirement("model_wrapped"),
    Requirement("callback_handler.on_save", 3),
)
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_URL = re.compile(r"\w+:/")  # of a `Path`, too
_LOG = logging.getLogger("undaunted")


class UndauntedCallback(TrainerCallback):
    """Says what the trainer does, and has all ranks stop after the same step, having saved.

    The session lasts from the begin of training to its end. A stop saves a checkpoint, ends the
    training, and then the script, with `SystemExit`: what follows ``trainer.train()`` is for a
    model that is trained. Give it as the last callback: others see the end of training first.

    Args:
        stop_signals: names of signals that mean to stop, see `Session`.
        end_time: when the job has to be over, see `Session`.
        stacks_after_s: without the launcher of undaunted: after so many seconds without progress
            the stacks of all threads are printed.

    Raises:
        ImportError: transformers is not there.
        ValueError: a value cannot be meant, or training begins with ``enable_jit_checkpoint`` or
            with a second callback of this kind.
        RuntimeError: training begins, and ranks go on from different checkpoints, or the trainer is
            of a version, or a subclass, that is not supported.
    """

    _training: ClassVar[UndauntedCallback | None] = None  # the one whose session is entered

    def __init__(
        self,
        *,
        stop_signals: Sequence[str] = ("SIGTERM",),
        end_time: float | None = None,
        stacks_after_s: float = 1800.0,
    ) -> None:
        if TrainerCallback is object:
            raise ImportError("there is no transformers: pip install 'undaunted[transformers]'")
        self._options: dict[str, Any] = {
            "stop_signals": stop_signals,
            "end_time": end_time,
            "stacks_after_s": stacks_after_s,
        }
        Session(**self._options)  # bad values are refused here
        self._session: Session | None = None
        self._state: Any = None  # of the training that the session is for
        self._trial: Any = None
        self._epoch_over = False
        self._stopping = False  # what is saved next is for the next start
        self._open: AbstractContextManager[None] | None = None
        self._evaluating = False
        self._generators: dict[str, Any] | None = None  # as they were before an evaluation
        self._may_leave = False  # the evaluation that is made
        self._saves_when_left = False  # it is one that is due in training
        self._patches: contextlib.ExitStack | None = None  # of the trainer

    @property
    def session(self) -> Session | None:
        """The session of a training that is under way.

        For loops of other callbacks: ``for prompt in undaunted.session.evaluating(prompts)``.
        """
        return self._session

    # --- what the trainer calls -------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        other = UndauntedCallback._training
        if other is not None:  # left open by an exception, or in this training
            twice = other._state is state  # noqa: SLF001 - its own class
            other._leave(RuntimeError)  # noqa: SLF001 - its own class
            if twice:
                raise ValueError("there are two UndauntedCallback: give Trainer(callbacks=...) one")
        if args.enable_jit_checkpoint:
            raise ValueError(
                "enable_jit_checkpoint saves on the rank that gets the signal, alone; "
                "UndauntedCallback saves on all ranks: leave enable_jit_checkpoint out"
            )
        trainer, options = _trainer_that_calls()
        if trainer is not None:
            check("transformers", trainer, _NEEDED)
        begin_alike(state.global_step, f"step {state.global_step} of {args.output_dir}")
        control.should_save = control.should_evaluate = False  # may be those of a checkpoint
        noted = state.stateful_callbacks.get(_NAME) or {}
        state.stateful_callbacks[_NAME] = {"world_size": args.world_size}
        self._state = state
        self._epoch_over = self._stopping = False
        self._session = Session(**self._options)
        self._session.__enter__()
        UndauntedCallback._training = self
        if trainer is not None:
            self._patches, self._trial = contextlib.ExitStack(), options["trial"]
            for name, method in (
                (_EVALUATES, self._evaluating_or_leaving(trainer)),
                (_LOG_SAVE_EVALUATE, self._saving_when_left(trainer)),
                *((name, self._evaluating_by_program(trainer, name)) for name in _BY_PROGRAM),
            ):
                self._patches.enter_context(replaced(trainer, name, method))
            if noted.get(_EVALUATE):
                checkpoint = str(Path(args.output_dir, f"checkpoint-{state.global_step}"))
                self._make_up(trainer, options, checkpoint)
                if control.should_training_stop or state.global_step >= state.max_steps:
                    check("transformers", trainer, [Requirement("_run_epoch")])  # not in 5.0
                    control.should_training_stop = True  # the trainer looks after a step
                    self._patches.enter_context(replaced(trainer, "_run_epoch", _no_epoch))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._open is not None:
            self._enter(None)
        if self._session is not None:
            self._generators, self._epoch_over = None, False
            self._session.begin_step(state.global_step)
            self._open = self._session.step_section

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        session = self._session
        if session is None:
            return
        ends = control.should_training_stop
        if ends or self._open is not session.step_section:
            self._enter(None)
        self._open = None
        # After the last step the job is done sooner than another one starts.
        if not ends and session.end_step(state.global_step - 1):
            self._save_and_end(args, state, control, due=self._is_due(args, state, control))
        elif control.should_save or control.should_evaluate:
            self._between_steps(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._epoch_over = True
        if self._stopping:
            control.should_save = control.should_evaluate = False  # it is saved
        if not self._stopping and self._session is not None and self._session.stop is not None:
            self._save_and_end(args, state, control, due=self._is_due(args, state, control))
        else:
            self._between_steps(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._session is None:
            return
        heartbeat()
        if not self._evaluating:  # at the start, or with the second one of several sets of data
            self._evaluate(self._session)
        if self._may_leave and self._session.leaves_evaluation():
            raise _EvaluationLeft

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ended()
        if self._generators is not None:  # it comes once for each set of data
            _random_state().load_state_dict(self._generators)
        self._between_steps(args, state, control)

    def on_predict(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ended()
        self._enter(None)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)
        if self._stopping:  # the trainer loads the best one at the end, and may delete the last one
            state.best_model_checkpoint = None

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        session = self._session
        self._leave()
        if session is not None and session.stop is not None and self._is_saved(args, state):
            raise SystemExit(session.exit_code)

    # --- evaluations ------------------------------------------------------------------------------

    def _ended(self) -> None:
        """There are no more batches. Other ranks may have left theirs."""
        session = self._session
        if self._may_leave and session is not None and session.leaves_evaluation(ended=True):
            raise _EvaluationLeft

    @contextlib.contextmanager
    def _leavable(self, trainer: Any) -> Iterator[None]:
        """An evaluation inside of this may be left: then others have not seen any of it."""
        lines, among = len(trainer.state.log_history), trainer.callback_handler.callbacks
        callbacks = [each for each in among if isinstance(each, ExportableState)]
        states = [copy.deepcopy(each.state()["attributes"]) for each in callbacks]
        self._may_leave = True
        try:
            yield
        except _EvaluationLeft:
            del trainer.state.log_history[lines:]
            for callback, state in zip(callbacks, states, strict=True):
                vars(callback).update(state)
            raise
        finally:
            self._may_leave = False

    def _evaluating_or_leaving(self, trainer: Any) -> Callable[..., Any]:
        """Return what evaluates; if the ranks leave that, others have not seen any of it."""
        evaluate = getattr(trainer, _EVALUATES)

        def evaluate_or_leave(*args: Any, **options: Any) -> Any:
            if self._generators is None:  # at the start
                self._generators = _random_state().state_dict()
            try:
                with self._leavable(trainer):
                    return evaluate(*args, **options)
            except _EvaluationLeft:
                if self._saves_when_left:
                    raise
                self._exit()

        return evaluate_or_leave

    def _evaluating_by_program(self, trainer: Any, name: str) -> Callable[..., Any]:
        """Return a method that the program calls in a callback, where the ranks may leave it, too.

        Training comes to the same whether it is made or left.
        """
        method = getattr(trainer, name)

        def evaluate_or_leave(*args: Any, **options: Any) -> Any:
            if self._may_leave or not self._is_between_steps(trainer):
                return method(*args, **options)
            generators = _random_state().state_dict()
            try:
                with self._leavable(trainer):
                    return method(*args, **options)
            except _EvaluationLeft:
                _random_state().load_state_dict(generators)
                self._save_now(trainer, name)
                self._exit()
            finally:
                _random_state().load_state_dict(generators)

        return evaluate_or_leave

    def _is_between_steps(self, trainer: Any) -> bool:
        """Return whether the state is that after a step, or saved: then the program may end."""
        session, state = self._session, trainer.state
        if session is None:
            return False
        if self._epoch_over and trainer.control.should_training_stop:
            return self._is_saved(trainer.args, state)
        over = bool(state.global_step > session.iteration)
        return over or self._open is not session.step_section

    def _is_saved(self, args: Any, state: Any) -> bool:
        return self._stopping or Path(args.output_dir, f"checkpoint-{state.global_step}").is_dir()

    def _save_now(self, trainer: Any, left: str) -> None:
        """Save in a callback, if there is anything new."""
        session, control, state = self._session, trainer.control, trainer.state
        over = self._epoch_over and control.should_training_stop
        if session is None or over or session.iteration < 0:
            return
        # The trainer does not evaluate where a callback has called `evaluate` when that was due.
        instead = left == "evaluate" and control.should_evaluate
        due = not instead and self._is_due(trainer.args, state, control)
        self._save_and_end(trainer.args, state, control, due=due)
        trainer._save_checkpoint(trainer.model_wrapped, self._trial)  # noqa: SLF001
        trainer.callback_handler.on_save(trainer.args, state, control)

    def _exit(self) -> NoReturn:
        session = self._session
        self._leave()
        raise SystemExit(75 if session is None else session.exit_code) from None

    def _saving_when_left(self, trainer: Any) -> Callable[..., None]:
        """Return what logs, saves, evaluates, and saves when the ranks have left the evaluation."""
        log_save_evaluate = getattr(trainer, _LOG_SAVE_EVALUATE)

        def log_save_evaluate_or_leave(*args: Any, **options: Any) -> None:
            self._saves_when_left = True
            try:
                log_save_evaluate(*args, **options)
            except _EvaluationLeft:
                trainer.control.should_evaluate = True  # it is due again
                if self._generators is not None:
                    _random_state().load_state_dict(self._generators)
                due = self._is_due(trainer.args, trainer.state, trainer.control)
                self._save_and_end(trainer.args, trainer.state, trainer.control, due=due)
                log_save_evaluate(*args, **options)
            finally:
                self._saves_when_left = False

        return log_save_evaluate_or_leave

    def _is_due(self, args: Any, state: Any, control: Any) -> bool:
        """Return whether an evaluation has to be made up by the next start."""
        due = control.should_evaluate or (not self._epoch_over and _evaluates_epoch(args, state))
        # Without a length of the data, the trainer ends the epoch once more when it goes on.
        return due and (args.eval_strategy != "epoch" or float(state.epoch).is_integer())

    def _save_and_end(self, args: Any, state: Any, control: Any, *, due: bool) -> None:
        """Have the trainer save, and end. The time that is left is for the save."""
        if due:
            state.stateful_callbacks[_NAME][_EVALUATE] = True
        control.should_save = control.should_training_stop = self._stopping = True
        control.should_evaluate = False
        self._between_steps(args, state, control)

    def _make_up(self, trainer: Any, options: dict[str, Any], checkpoint: str) -> None:
        """Make the evaluation that the start before this one has left."""
        trainer.state.stateful_callbacks[_NAME][_EVALUATE] = True  # until it is made
        metrics = trainer._evaluate(**options)  # noqa: SLF001
        if trainer._determine_best_metric(metrics=metrics, trial=None):  # noqa: SLF001
            # A trainer notes that as it saves, which the start before this one has done.
            trainer.state.best_model_checkpoint = checkpoint
        del trainer.state.stateful_callbacks[_NAME][_EVALUATE]

    # --- sections ---------------------------------------------------------------------------------

    def _between_steps(self, args: Any, state: Any, control: Any) -> None:
        """An evaluation, a save, or first one and then the other come next."""
        self._enter(None)
        if self._session is None:
            return
        if control.should_save or (control.should_evaluate and args.save_strategy == "best"):
            _no_longer_whole(args, state.global_step)
        if control.should_evaluate:
            # Training comes to the same whether it is made, or left out at a stop.
            self._generators = _random_state().state_dict()
            self._evaluate(self._session)
        elif control.should_save:
            self._enter(self._session.checkpointing())

    def _evaluate(self, session: Session) -> None:
        self._enter(session.section("evaluation"))
        self._evaluating = True

    def _enter(self, section: AbstractContextManager[None] | None) -> None:
        """Leave the section that is open; enter this one."""
        before, self._open, self._evaluating = self._open, section, False
        if before is not None:
            before.__exit__(None, None, None)
        if section is not None:
            section.__enter__()

    def _leave(self, failed: type[Exception] | None = None) -> None:
        self._enter(None)
        session, self._session, self._state = self._session, None, None
        patches, self._patches = self._patches, None
        if patches is not None:
            patches.close()
        UndauntedCallback._training = None
        if session is not None:
            session.__exit__(failed, None, None)


class _EvaluationLeft(BaseException):
    """All ranks have left the evaluation after as many batches."""


def _trainer_that_calls() -> tuple[Any, dict[str, Any]]:
    """Return the trainer that has called a callback, which gets everything but that.

    Also what it gives to its evaluations. None = it is no trainer of Transformers.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        owner = frame.f_locals.get("self")
        if all(hasattr(owner, name) for name in _TRAINERS):
            return owner, {name: frame.f_locals.get(name) for name in _OPTIONS}
        frame = frame.f_back
    return None, {}


def _evaluates_epoch(args: Any, state: Any) -> bool:
    """Return whether an epoch has ended after which an evaluation is due."""
    ended = float(state.epoch).is_integer()
    return ended and args.eval_strategy == "epoch" and args.eval_delay <= state.epoch


def _no_epoch(*_: Any, **__: Any) -> None:
    """In the place of one: nothing is left to do."""


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest checkpoint of a trainer that training can go on from.

    One that was being written when a rank was killed is passed over, as is one that has the model
    only; a line of the log says so. The trainer writes what was cut short again. All nodes share
    the folder. ``trainer.train(resume_from_checkpoint=None)`` starts from nothing.

    Args:
        output_dir: that of the trainer.

    Returns:
        None if there is none.

    Raises:
        ValueError: it is a URL, or has checkpoints of which none can be gone on from.
    """
    if _URL.match(str(output_dir)):
        raise ValueError(f"{output_dir} is a URL: a trainer loads from folders, give one of these")
    try:
        names = os.listdir(output_dir)
    except FileNotFoundError:
        return None
    steps = sorted(int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match)
    return newest([str(Path(output_dir) / f"checkpoint-{step}") for step in steps[::-1]], _check)


def _check(checkpoint: str) -> None:
    """Each rank writes the state of its random generators last, and rank 0 then the trainer's.

    Of those without the callback it is not known how many ranks there were.
    """
    folder = Path(checkpoint)
    try:
        state = json.loads((folder / _STATE).read_text("utf-8"))
        noted = (state.get("stateful_callbacks") or {}).get(_NAME) or {"world_size": 0}
        step, ranks = int(state["global_step"]), int(noted["world_size"])
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        raise EOFError(f"without a whole {_STATE}: cut short") from None
    if folder.name != f"checkpoint-{step}":
        raise ValueError(f"its {_STATE} is of step {step}")
    there = {path.name for path in folder.glob("rng_state*")}
    if not there:
        raise ValueError("has the model only, see save_only_model of TrainingArguments")
    missing = [rank for rank in range(ranks) if _generators(rank, ranks) not in there]
    if missing:
        raise EOFError(
            f"without the random generators of {name_ranks(missing, 8)}: cut short, or nodes do "
            "not share the folder"
        )
    for path in (path for kind in ("*.pt", "*.pth") for path in folder.rglob(kind)):
        if not zipfile.is_zipfile(path):
            raise EOFError(f"cut short: {path.name}")
    _say_if_of_other_ranks(checkpoint, ranks or len(there), noted=ranks > 0)


def _say_if_of_other_ranks(checkpoint: str, ranks: int, *, noted: bool) -> None:
    rank, now = torch_ranks.place()
    if ranks != now and rank == 0:
        _LOG.warning(
            "%s has the random generators of %s, and there are %d now%s: training goes on, with "
            "other batches and random numbers than with as many ranks",
            *(checkpoint, count(ranks, "rank"), now),
            "" if noted else " (or it was cut short: it was saved without UndauntedCallback)",
        )


def _no_longer_whole(args: Any, step: int) -> None:
    """A checkpoint that was passed over is written again: it must not look whole meanwhile."""
    folder = Path(args.output_dir) / f"checkpoint-{step}"
    (folder / _generators(args.process_index, args.world_size)).unlink(missing_ok=True)
    if args.should_save:
        (folder / _STATE).unlink(missing_ok=True)


def _random_state() -> RandomState:
    from undaunted.checkpointing.per_rank import RandomState  # imports torch

    return RandomState()


def _generators(rank: int, ranks: int) -> str:
    return f"rng_state_{rank}.pth" if ranks > 1 else "rng_state.pth"
