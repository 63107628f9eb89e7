"""`Session`: what a training loop calls, whatever framework it is of.

with Session(save=save) as session:
    for iteration in range(session.start, steps):
        with session.step(iteration):
            train(iteration)
        if iteration % 100 == 0:
            session.save(iteration)
        if session.should_stop(iteration):
            break
sys.exit(session.exit_code)
"""

from __future__ import annotations

import contextlib
import logging
import math
import operator
import os
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from undaunted.base import torch_ranks
from undaunted.progress import api
from undaunted.progress.layout import EVALUATION, LATEST, STEP_SECTION
from undaunted.progress.writer import current_writer
from undaunted.training.attempts import Attempts, End, Rerun, ResultError, checks_at
from undaunted.training.over_store import OverStore, name_of_group
from undaunted.training.signals import Signals
from undaunted.training.stopping import (
    Alone,
    Answers,
    ByLauncher,
    Stop,
    StopReason,
    end_together,
    text_of,
)
from undaunted.training.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from undaunted.progress.section import Section

T = TypeVar("T")
SETUP, CHECKPOINTING = "setup", "checkpointing"
_WAIT_S = 600.0  # for an answer: this rank ends with the launcher
_SAVED_S = 600.0  # for other ranks to have saved
_MARGIN_S = 60.0  # to be left of the scheduler's time when all is saved
_SAVES = 2.0  # times the longest save so far
_LONG_AGO = 1e9  # in 2001: less is no time since 1970, but a duration
_LOOK_AT = 20  # steps after which the session says what is active
_END = "SLURM_JOB_END_TIME"
_LOG = logging.getLogger("undaunted")
_starts = ("", 0)  # the process group, and how many sessions in it have agreed over a store
_inside = 0  # process that has entered a session; a forked child has not


class Session:
    """Goes around a training loop: says what it does, and has all ranks stop together.

    The same loop works under ``undaunted run``, under torchrun and alone. The launcher of
    undaunted watches it; otherwise stacks are printed when nothing moves. Without a process group
    each process stops by itself.

    Every rank makes one, before it loads what it needs, and asks `should_stop` after the same
    iterations. Only one can be entered at a time.

    Args:
        save: saves a checkpoint, given an iteration. Called by `save`, and at the end of a stop
            whose iteration was not saved. Its exceptions end the loop, as they would without.
        stop_signals: names of signals that mean to stop; ``()`` = none. After the first one all
            ranks stop after the same iteration. A second one, more than a second later, stops this
            rank at once. The third does what it would have done without a session.
        end_time: when the job has to be over, seconds since 1970 (``time.time() + left``); None =
            as ``SLURM_JOB_END_TIME`` says, if it does. The ranks stop when twice the longest save
            so far and a minute are left of it.
        stacks_after_s: without the launcher of undaunted: after so many seconds without progress
            the stacks of all threads are printed.
        rerun: has odd results computed again, see `attempts`; None = one that is fatal raises.

    Attributes:
        stop: why and after which iteration the ranks stop; None = they do not.
        iteration: the one that is under way, or was the last one; -1 = none has begun.
        step_section: section ``step``.

    Raises:
        ValueError: a value cannot be meant; the text says which, and what to give.
        RuntimeError: a session is used that is not entered, or is entered beside another one.
    """

    def __init__(
        self,
        *,
        save: Callable[[int], object] | None = None,
        stop_signals: Sequence[str] = ("SIGTERM",),
        end_time: float | None = None,
        stacks_after_s: float = 1800.0,
        rerun: Rerun | None = None,
    ) -> None:
        self.stop: Stop | None = None
        self._page = current_writer()
        if save is not None and not callable(save):
            raise ValueError(f"save is {save!r}: give a function that is called with an iteration")
        self._save = save
        if rerun is not None and not isinstance(rerun, Rerun):
            raise ValueError(f"rerun is {rerun!r}: give Rerun(...), or None")
        if rerun is not None and rerun.folder is not None and save is None:
            _LOG.warning(
                "Rerun(folder=...) without Session(save=...): an odd result can be computed "
                "elsewhere only if the loop itself saves what it had before the step"
            )
        self._signals = Signals(_names(stop_signals), self._preempted)
        self._end_time = _end_time(os.environ) if end_time is None else _moment(end_time)
        self._stacks_after_s = _positive(stacks_after_s)
        self._answers: Answers = Alone()
        self._connected = False
        self._watchdog: Watchdog | None = None
        self._setup: Section | None = None
        self.iteration = -1
        self.step_section = self._page.section(STEP_SECTION)
        self._step = Step(self)
        self._inside: bool | None = None  # None = not entered yet, False = left
        self._begun = 0  # iterations, up to those after which the session says what is active
        self._offset = 0
        self._asked = -1
        self._batches = 0  # of an evaluation that is under way
        self._before = -1  # what was asked before it
        self._leave_at = math.inf
        self._longest_save_s = 0.0
        self._saved: int | None = None
        self._attempts = Attempts(rerun, lambda text: self._page.event("odd_result", text))
        self._late = False  # an answer did not come in time, which was said
        self._goes_on = False  # after the stop

    def __enter__(self) -> Self:
        self._enter_once()
        self._page = current_writer()
        if self._page.attached:
            self._answers = ByLauncher(self._page)
        else:
            self._watchdog = Watchdog(self._stacks_after_s, lambda: self._page.progress)
        if not self._signals.install():
            _LOG.warning("a session in a side thread does not hear signals")
        self._plan_leave()
        self.step_section = self._page.section(STEP_SECTION)
        self._setup = self._page.section(SETUP)
        self._setup.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        by_result, stopped = isinstance(value, ResultError), False
        try:
            if isinstance(value, ResultError):
                self._end_by_result(value.end)
            # Programs end with the session's exit code, some of them inside of it.
            if kind is None or by_result or (kind is SystemExit and self.stop is not None):
                self._end()
                stopped = self.stop is not None
        finally:
            self._leave()
            if stopped:
                self._signals.stopped()
            else:
                self._signals.restore()
            self._page.shut_down()
            if self._watchdog is not None:
                self._watchdog.close()
            if self.stop is None or not self._page.attached:
                self._answers.close()
        return by_result

    # --- what a loop calls ------------------------------------------------------------------------

    def step(self, iteration: int) -> Step:
        """Return a context manager for an iteration: section ``step``, and a heartbeat.

        Args:
            iteration: its number, from 0; after a restart the number of the iteration resumed at.

        Raises:
            ValueError: it is none.
        """
        if iteration.__class__ is not int or not 0 <= iteration < LATEST:
            iteration = _iteration(iteration, "step")
        self._step.iteration = iteration
        return self._step

    def begin_step(self, iteration: int) -> None:
        """Begin an iteration, as `step` does.

        For adapters of frameworks that call one function as a step begins and another one as it
        ends. Their iterations are numbers that never fall.
        """
        if self._begun < _LOOK_AT or self._batches or self.stop is not None or not self._inside:
            self._begin_closely(iteration)
        self.iteration = iteration
        api.step(iteration)
        self.step_section.__enter__()

    def end_step(self, iteration: int) -> bool:
        """End an iteration that `begin_step` has begun; return what `should_stop` returns."""
        self.step_section.__exit__(None, None, None)
        return self.should_stop(iteration)

    def section(self, name: str) -> Section:
        """Return a context manager for another stretch of the loop, such as ``evaluation``."""
        return self._page.section(name)

    @contextlib.contextmanager
    def checkpointing(self, iteration: int | None = None) -> Iterator[None]:
        """Save a checkpoint inside of this, or finish one: section ``checkpointing``.

        Args:
            iteration: what is saved is the state after this iteration; None = something else is
                done, such as finishing a save in the background.
        """
        began = time.monotonic()
        with self._page.section(CHECKPOINTING):
            yield
        self._longest_save_s = max(self._longest_save_s, time.monotonic() - began)
        self._plan_leave()
        if iteration is not None:
            self._saved = iteration

    def save(self, iteration: int) -> None:
        """Save the state after this iteration with the function that was given.

        Raises:
            ValueError: none was given.
        """
        if self._save is None:
            raise ValueError("there is no function to save with; give Session(save=...) one")
        with self.checkpointing(iteration):
            self._save(iteration)

    def ready(self) -> None:
        """Setup is over, though no step has begun: what follows only evaluates."""
        if self._setup is not None:
            setup, self._setup = self._setup, None
            setup.__exit__(None, None, None)

    def evaluating(self, batches: Iterable[T], name: str = "evaluation") -> Iterator[T]:
        """Go over the batches of an evaluation: a section, and a heartbeat for each of them.

        A stop does not wait for its end: all ranks leave it after as many batches, or at the end of
        theirs. `stop` is set then: do not use what was computed, and leave the loop. `should_stop`
        says so, too. The state after the last iteration is saved.

        Every rank evaluates after the same iterations; one may have fewer batches than another.

        Args:
            batches: a loader, for example.
            name: of the section.
        """
        with self._page.section(name):
            try:
                for batch in batches:
                    yield batch
                    api.heartbeat()
                    if self.leaves_evaluation():
                        return
                self.leaves_evaluation(ended=True)
            finally:
                self._end_evaluation()

    def leaves_evaluation(self, *, ended: bool = False) -> bool:
        """Return whether all ranks leave an evaluation, of which a batch is over; see `evaluating`.

        For adapters of frameworks, whose loops do not go over ``session.evaluating(loader)``.

        Args:
            ended: instead: there are no more batches.
        """
        if not self._batches:
            self._before = self._asked
            self._asked = self._before + EVALUATION  # the next step, or question, ends it
        self._batches += 1
        key = self._before + (EVALUATION if ended else min(self._batches, EVALUATION - 1))
        stops = self._stops(max(self.iteration, self._before - self._offset), key)
        if ended:
            self._end_evaluation()
        return stops

    def _end_evaluation(self) -> None:
        """It counts the same on all ranks, however many batches each has."""
        if self._batches:
            self._batches = 0
            self._offset += EVALUATION

    def attempts(self) -> Iterator[int]:
        """Go around forward and backward pass, which are run again if a `check` finds a result odd.

        A second run has the random generators of the first one. The program has to begin it with
        the same batch, and without gradients; what else a pass changes is put back by functions of
        `Rerun`. If a result is not to be used, the loop ends, the ranks stop together, and the
        block of the session is left: the optimizer does not see it. Call it inside of `step`.

        Yields:
            0, and 1 in the second run.
        """
        return self._attempts.of(self.iteration)

    def check(
        self,
        value: object,
        name: str = "value",
        *,
        not_finite: bool = True,
        spike: float | None = None,
        tolerance: float = 0.0,
    ) -> None:
        """Check a result; the same as `undaunted.training.check`, which see.

        All ranks make the same checks in each run of a step; some may make none.
        """
        checks = checks_at(self.iteration)
        checks.check(value, name, not_finite=not_finite, spike=spike, tolerance=tolerance)

    def should_stop(self, iteration: int) -> bool:
        """Return whether all ranks stop after this iteration, which is over. A few memory stores.

        When they are about to stop it waits until it is known after which iteration: for
        milliseconds, unless the launcher is in trouble.

        Args:
            iteration: its number.

        Raises:
            ValueError: it is none.
        """
        if iteration.__class__ is not int or not self._asked - self._offset < iteration < LATEST:
            iteration = self._new_count(iteration)
        self._asked = key = iteration + self._offset
        return self._stops(iteration, key)

    def request_stop(
        self, reason: StopReason = StopReason.REQUESTED, *, rank: int | None = None
    ) -> None:
        """Have all ranks stop, soon, and after the same iteration.

        Args:
            reason: why; decides what the launcher does then.
            rank: of `StopReason.SUSPECT` and `STRAGGLER`: which one, None = this one. The job goes
                on without its node, if it can.

        Raises:
            ValueError: the reason is none that a rank can have.
        """
        self._answers.want(_reason(reason), rank)

    def stop_here(
        self,
        reason: StopReason,
        iteration: int,
        *,
        rank: int | None = None,
        text: str = "",
    ) -> None:
        """Stop after this iteration: all ranks know by themselves that they do.

        For what ranks have found together, such as a result that is not to be used. From now on
        `should_stop` is true. Every rank has to call this; nobody is waited for, but for 10 s at
        most until the launcher knows it.

        Args:
            reason: why; decides what the launcher does then.
            iteration: the last one that counts. It is saved at the end, unless it has been.
            rank: given by one rank at least: which one is the reason, see `request_stop`.
            text: what happened, for people; goes into the journal.

        Raises:
            ValueError: the reason is none that a rank can have.
        """
        end_together(self._answers, self._page, _reason(reason), rank, text)
        self._stop(reason, iteration, text or text_of(reason))

    @property
    def exit_code(self) -> int:
        """With which this process should end: 0, or 75 if the job is to be started again."""
        return 0 if self.stop is None else self.stop.exit_code

    # --- stopping ---------------------------------------------------------------------------------

    def _stops(self, iteration: int, key: int) -> bool:
        """Return whether all ranks stop after an iteration, which is ``key`` in all questions."""
        if self.stop is not None:
            return True  # what this rank has said of its stop stays
        if not self._connected:
            self._connect()
        word = self._answers.ask(key)
        late = self._leave_at < math.inf and time.time() >= self._leave_at
        if not word and not late and not self._signals.hurry:
            return False
        if late:
            self._leave_at = math.inf
            self._answers.want(StopReason.DEADLINE)
            word = word or self._answers.ask(key)
        answer = self._answers.after(_WAIT_S, lambda: self._signals.hurry) if word else None
        if answer is None and self._signals.hurry:
            self._answers.leave()
            return self._stop(StopReason.PREEMPTED, iteration, "a second signal has come")
        if answer is None:
            return self._say_late() if word else False
        if key < answer.after:
            return False
        return self._stop(answer.reason, iteration, answer.text)

    def _stop(self, reason: StopReason, iteration: int, text: str) -> bool:
        self.stop = Stop(reason, iteration, text)
        if 0 <= self.iteration < iteration:
            _LOG.warning(
                "rank %d: should_stop(%d) was asked, but iteration %d was begun last: what is "
                "saved as iteration %d need not be that; ask after the step",
                *(_rank(), iteration, self.iteration, iteration),
            )
        if _rank() == 0 and iteration < 0:
            _LOG.warning("stopping before the first iteration: %s", text)
        elif _rank() == 0:
            _LOG.warning("stopping after iteration %d: %s", iteration, text)
        return True

    def _say_late(self) -> bool:
        if not self._late:
            self._late = True
            _LOG.warning(
                "rank %d: the ranks could not agree within %g s when to stop: training goes on",
                *(_rank(), _WAIT_S),
            )
        return False

    def _new_count(self, iteration: int) -> int:
        """Iterations are counted anew, with each epoch perhaps; or it is asked twice about one."""
        number = _iteration(iteration, "should_stop")
        self._end_evaluation()
        if number + self._offset < self._asked:
            self._offset = self._asked + 1 - number
        return number

    def _preempted(self) -> None:
        self._answers.want(StopReason.PREEMPTED)

    def _connect(self) -> None:
        """Without the launcher: find the other ranks, which are there by now if there are any."""
        self._check_inside()
        self._connected = True
        if self._page.attached or "torch" not in sys.modules:
            return
        global _starts  # noqa: PLW0603 - keys of each start are its own
        group = name_of_group()
        number = _starts[1] if _starts[0] == group else 0
        store = OverStore.by_environment(os.environ, f"{group}/{number}")
        if store is not None:
            _starts = group, number + 1
            wanted = self._answers.ask(-1)
            self._answers = store
            if wanted:
                store.want(StopReason.PREEMPTED)

    # --- what is active ---------------------------------------------------------------------------

    def _begin_closely(self, iteration: int) -> None:
        """An iteration begins: one of the first, or after an evaluation, or after the stop."""
        self._check_inside()
        self.ready()
        if not self._connected:
            self._connect()
        self._end_evaluation()  # nobody may have said that there are no more batches
        self._begun += 1
        if self._begun == _LOOK_AT:
            self._say_active()
        if self.stop is not None and not self._goes_on:
            self._goes_on = True
            _LOG.warning(
                "rank %d: iteration %s begins, though all ranks were to stop after %d: leave the "
                "loop when should_stop says so, also an outer one",
                *(_rank(), iteration, self.stop.iteration),
            )

    def _say_active(self) -> None:
        """Say once what the session does, and warn of what the loop seems to have forgotten."""
        never = self._asked < self._offset
        if never:  # nothing would come of a signal that it takes
            self._signals.restore()
            self._page.asks_no_more()
        if _rank() != 0:
            return
        watched = (
            "watched by the launcher"
            if self._page.attached
            else (
                f"no launcher watches (start with `undaunted run`): stacks are printed after "
                f"{self._stacks_after_s:g} s without progress"
            )
        )
        stops = (
            "all ranks after the same step"
            if not isinstance(self._answers, Alone)
            else "this process"
        )
        end = "" if self._end_time is None else f", at the latest at {_clock(self._end_time)}"
        _LOG.info("session: %s; a stop request stops %s%s", watched, stops, end)
        if never:
            _LOG.warning(
                "session: %d iterations, and should_stop was never asked: a signal will not stop "
                "the ranks together; call it after each iteration",
                self._begun,
            )

    def _end_by_result(self, end: End) -> None:
        if not end.save:
            self._saved = end.iteration
        rank = _rank() if end.guilty else None
        self.stop_here(end.reason, end.iteration, rank=rank, text=end.text)

    def _end(self) -> None:
        self.ready()
        stop = self.stop
        if stop is not None:
            last = self.iteration if self._goes_on else stop.iteration
            if self._save is not None and self._saved != last and last >= 0:
                self.save(last)
            heard = self._signals.heard
            self._answers.saved(_SAVED_S, lambda: self._signals.heard > heard)
        if not self._begun and not self._offset and stop is None:
            _LOG.warning(
                "rank %d: the session has seen no step: either nothing was left to do, or the loop "
                "does not use session.step",
                _rank(),
            )
        elif self._begun and self._save is not None and self._saved is None and _rank() == 0:
            _LOG.warning("session: no checkpoint was saved until iteration %d", self.iteration)

    def _enter_once(self) -> None:
        global _inside
        if self._inside is not None:
            raise RuntimeError("a session is entered once; make another one")
        if _inside == os.getpid():
            raise RuntimeError("another session of this process has not ended yet")
        _inside, self._inside = os.getpid(), True

    def _leave(self) -> None:
        global _inside
        _inside, self._inside = 0, False

    def _check_inside(self) -> None:
        if not self._inside:
            raise RuntimeError("the session is not entered: write `with Session(...) as session:`")

    def _plan_leave(self) -> None:
        if self._end_time is not None and self.stop is None:
            self._leave_at = self._end_time - _SAVES * self._longest_save_s - _MARGIN_S


class Step:
    """The context manager around an iteration: `Session.step` always returns the same one."""

    __slots__ = ("_session", "iteration")

    def __init__(self, session: Session) -> None:
        self._session = session
        self.iteration = -1

    def __enter__(self) -> None:
        self._session.begin_step(self.iteration)

    def __exit__(self, *failed: object) -> None:
        self._session.step_section.__exit__(None, None, None)


def _rank() -> int:
    return torch_ranks.place()[0]


def _reason(value: object) -> StopReason:
    if not isinstance(value, StopReason) or value is StopReason.RESTART:
        reasons = [f"StopReason.{each.name}" for each in StopReason]
        reasons.remove("StopReason.RESTART")
        raise ValueError(f"{value!r} is no reason of a rank: give one of {', '.join(reasons)}")
    return value


def _iteration(value: object, call: str) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < LATEST:
        raise ValueError(f"{call}({value!r}): give the number of an iteration, from 0")
    return number


def _names(signals: object) -> list[str | int]:
    if isinstance(signals, str) or not hasattr(signals, "__iter__"):
        raise ValueError(f"stop_signals is {signals!r}: give a list of names, such as ['SIGTERM']")
    return list(signals)


def _positive(seconds: float) -> float:
    if _seconds(seconds) <= 0:
        raise ValueError(f"stacks_after_s is {seconds!r}: give seconds above 0")
    return seconds


def _seconds(value: float) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no time: give seconds as a number")
    return float(value)


def _moment(value: float) -> float:
    """Check a time that the program gives."""
    if isinstance(value, bool) or _seconds(value) < _LONG_AGO:
        raise ValueError(
            f"end_time is {value!r}: give seconds since 1970, such as time.time() + 3600"
        )
    if value < time.time():
        _LOG.warning("end_time is over since %s: the ranks stop at once", _clock(value))
    return float(value)


def _end_time(environ: Mapping[str, str]) -> float | None:
    value = environ.get(_END, "")
    if not value:
        return None
    try:
        end = _seconds(float(value))
    except ValueError:
        end = 0.0
    if end > time.time():
        return end
    _LOG.warning("%s is %r, no time to come: the end of the job is not known", _END, value)
    return None


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
