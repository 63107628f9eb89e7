"""The `Trainer` of Hugging Face Transformers in a session: one callback.

from undaunted.integrations.transformers import UndauntedCallback, last_checkpoint

trainer = Trainer(..., callbacks=[UndauntedCallback()])
trainer.train(resume_from_checkpoint=last_checkpoint(args.output_dir))
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from undaunted.progress.api import heartbeat
from undaunted.training.session import Session

try:
    from transformers import TrainerCallback
except ImportError:  # said when a callback is made
    TrainerCallback = object

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from undaunted.checkpointing.random_state import RandomState

_STATE = "trainer_state.json"
_NAME = "undaunted"  # of what is noted in it
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


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
        ValueError: a value cannot be meant, or training begins with ``enable_jit_checkpoint``.
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
        self._open: AbstractContextManager[None] | None = None
        self._evaluating = False
        self._generators: dict[str, Any] | None = None  # as they were before an evaluation

    # --- what the trainer calls -------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if UndauntedCallback._training is not None:  # left open by an exception
            UndauntedCallback._training._leave(RuntimeError)  # noqa: SLF001 - its own class
        if args.enable_jit_checkpoint:
            raise ValueError(
                "enable_jit_checkpoint saves on the rank that gets the signal, alone; "
                "UndauntedCallback saves on all ranks: leave enable_jit_checkpoint out"
            )
        state.stateful_callbacks[_NAME] = {"world_size": args.world_size}
        self._session = Session(**self._options)
        self._session.__enter__()
        UndauntedCallback._training = self

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._session is not None:
            self._generators = None
            self._enter(self._session.step(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)
        # After the last step the job is done sooner than another one starts.
        if self._session is None or control.should_training_stop:
            pass
        elif self._session.should_stop(state.global_step - 1):
            control.should_save = control.should_training_stop = True
            control.should_evaluate = False  # the time that is left is for the save
        self._between_steps(args, state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._session is not None and self._session.stop is not None:
            control.should_save = control.should_evaluate = False  # it is saved
            # The trainer loads the best one now, and may delete the last one.
            state.best_model_checkpoint = None
        self._between_steps(args, state, control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._session is None:
            return
        heartbeat()
        if not self._evaluating:  # at the start, or with the second one of several sets of data
            self._evaluate(self._session)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._generators is not None:  # it comes once for each set of data
            _random_state().load_state_dict(self._generators)
        self._between_steps(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        session = self._session
        self._leave()
        if session is not None and session.stop is not None:
            raise SystemExit(session.exit_code)

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
        session, self._session = self._session, None
        UndauntedCallback._training = None
        if session is not None:
            session.__exit__(failed, None, None)


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """Return the newest checkpoint of a trainer that is whole; None = there is none.

    One that was being written when a rank was killed is passed over; the trainer writes it again.
    All nodes share the folder. ``trainer.train(resume_from_checkpoint=None)`` starts from nothing.

    Args:
        output_dir: that of the trainer.
    """
    found = Path(output_dir).glob("checkpoint-*")
    named = [(match, folder) for folder in found if (match := _CHECKPOINT.fullmatch(folder.name))]
    steps = {int(match[1]): folder for match, folder in named}
    return next(
        (str(steps[at]) for at in sorted(steps, reverse=True) if _whole(steps[at], at)), None
    )


def _whole(folder: Path, step: int) -> bool:
    """Each rank writes the state of its random generators last, and rank 0 then the trainer's."""
    try:
        state = json.loads((folder / _STATE).read_text())
        if state["global_step"] != step:
            return False
        noted = state["stateful_callbacks"].get(_NAME, {})
        ranks = int(noted.get("world_size") or os.environ.get("WORLD_SIZE") or 1)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    there = {path.name for path in folder.glob("rng_state*")}
    if there and not {_generators(rank, ranks) for rank in range(ranks)} <= there:
        return False  # none at all: with save_only_model
    return all(
        zipfile.is_zipfile(path) for kind in ("*.pt", "*.pth") for path in folder.rglob(kind)
    )


def _no_longer_whole(args: Any, step: int) -> None:
    """A checkpoint that was passed over is written again: it must not look whole meanwhile."""
    folder = Path(args.output_dir) / f"checkpoint-{step}"
    (folder / _generators(args.process_index, args.world_size)).unlink(missing_ok=True)
    if args.should_save:
        (folder / _STATE).unlink(missing_ok=True)


def _random_state() -> RandomState:
    from undaunted.checkpointing.random_state import RandomState  # imports torch

    return RandomState()


def _generators(rank: int, ranks: int) -> str:
    return f"rng_state_{rank}.pth" if ranks > 1 else "rng_state.pth"
