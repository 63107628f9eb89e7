"""A session runs a step again: its checks, and the question that waits for another slot.

The question is a file of each rank: the odd result, where it was computed, and random generators as
they were before the step. It is written when the ranks stop, read by the next round, and deleted
once it is answered.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base import torch_ranks
from undaunted.base.deadline import in_time, within
from undaunted.checkpointing.files.durable import read_file, replace_file
from undaunted.progress.writer import last_iteration
from undaunted.training.rerun.difference import COMPARISON_MATCH, COMPARISON_MISMATCH
from undaunted.training.rerun.stats import StatisticsMachine
from undaunted.training.rerun.table import (
    EXIT_CODE_RESUME_TO_DISAMBIGUATE,
    OPINIONS,
    RerunDiagnostic,
    RerunMode,
)
from undaunted.training.stopping import StopReason

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator
    from enum import Enum

    from undaunted.training.rerun.odd import Verdict

_LOG = logging.getLogger("undaunted")
_TRANSIENT = OPINIONS[RerunDiagnostic.TRANSIENT_ERROR]
_PERSISTENT = OPINIONS[RerunDiagnostic.PERSISTENT_ERROR]
_CORRECT = OPINIONS[RerunDiagnostic.CORRECT_RESULT]
_TEXTS = {
    RerunDiagnostic.TRANSIENT_ERROR: f"{_TRANSIENT}: another result when computed again",
    RerunDiagnostic.PERSISTENT_ERROR: f"{_PERSISTENT}: another result elsewhere",
    RerunDiagnostic.CORRECT_RESULT: f"{_CORRECT}: the same elsewhere",
}
# What `Replay` finds is about two passes: that they differ, not what is in them.
_PASSES = "two passes of the step differ"
_ALIKE = "nothing"
_TEXTS_OF_PASSES = {
    RerunDiagnostic.TRANSIENT_ERROR: f"{_TRANSIENT}: they agree when computed again",
    RerunDiagnostic.PERSISTENT_ERROR: f"{_PERSISTENT}: they agree elsewhere",
    RerunDiagnostic.CORRECT_RESULT: "they differ elsewhere, too: the step is not deterministic",
}
_BYTES = "bytes"
_MOST_BYTES = 1 << 24
_DISK_S = 10.0
_NO_SECOND = "the same result when computed again; Rerun(folder=...) would compute it elsewhere"
_NOT_ASKED = "the same result when computed again, and no question can wait for another place"


@dataclass(frozen=True)
class Rerun:
    """The settings by which a session computes odd results again.

    Attributes:
        folder: where a question waits for the next round; all nodes see it. None = a result that
            comes again in place ends the job.
        mode: ``validate_results``; ``report_determinism_stats`` runs all steps twice and says how
            much results vary; ``disabled``.
        save_state: returns what a step changes before the optimizer, beside gradients and random
            generators, such as the buffers of a batch norm; None = nothing.
        restore_state: puts that back.
        go_on_after: verdicts after which the ranks go on with what was computed again, unless it is
            odd, too: ``transient_error``, and ``persistent_error``, where nodes can be left out.
        tracker: each odd result becomes a line of this file.

    Raises:
        ValueError: a value cannot be meant; the text says which, and what to give.
    """

    folder: str | os.PathLike[str] | None = None
    mode: str = RerunMode.VALIDATE_RESULTS.value
    save_state: Callable[[], Any] | None = None
    restore_state: Callable[[Any], object] | None = None
    go_on_after: Collection[str] = ()
    tracker: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        _known("mode", self.mode, RerunMode)
        if isinstance(self.go_on_after, str):  # one of them, or it is named as a whole
            object.__setattr__(self, "go_on_after", (self.go_on_after,))
        for verdict in self.go_on_after:
            _known("a verdict in go_on_after", verdict, RerunDiagnostic)
        if (self.save_state is None) is not (self.restore_state is None):
            raise ValueError("save_state and restore_state belong together: give both, or neither")


@dataclass(frozen=True)
class End:
    """That a result ends the loop, before the optimizer.

    Attributes:
        reason: see `StopReason`.
        iteration: the last one that counts.
        save: whether the state is to be saved.
        guilty: it is this rank whose result was odd.
        text: for people, "" where another rank knows.
    """

    reason: StopReason
    iteration: int
    save: bool
    guilty: bool
    text: str


class ResultError(BaseException):
    """Leaves the loop before the optimizer sees what was computed. The session ends as it says."""

    def __init__(self, end: End) -> None:
        super().__init__(end.text or "a rank has a result that is not to be used")
        self.end = end


class Attempts:
    """Runs steps, and checks results.

    Args:
        rerun: None = nothing is run again: an odd result that is fatal raises, others are logged.
        said: called with the text of each verdict of this rank.
    """

    def __init__(self, rerun: Rerun | None, said: Callable[[str], object]) -> None:
        self._said = said
        self._folder = (
            None if rerun is None or rerun.folder is None else Path(rerun.folder).absolute()
        )
        settings = rerun or Rerun(mode=RerunMode.DISABLED.value)
        self._machine = StatisticsMachine(
            settings.save_state,
            settings.restore_state,
            RerunMode(settings.mode),
            result_rejected_tracker_filename=settings.tracker,
            forgives=[RerunDiagnostic(name) for name in settings.go_on_after],
            on_verdict=self._decided,
        )
        self._machine.first = False  # the state before it can be saved, as it was loaded
        self._iteration = 0
        self._verdict = ""
        self._begun = self._machine.get_mode() is RerunMode.DISABLED  # nothing waits then

    @property
    def computes_again(self) -> bool:
        """Return whether odd results are computed again."""
        return self._machine.get_mode() is RerunMode.VALIDATE_RESULTS

    def of(self, iteration: int) -> Iterator[int]:
        """Run a step: yields 0, and 1 if it has to be run again.

        Raises:
            ResultError: the ranks stop, and what was computed is not to be used.
            RuntimeError: a loop over attempts has not ended yet.
        """
        global _current  # noqa: PLW0603 - `check` has to find it
        if _current is self:
            raise RuntimeError(
                "attempts() is called inside of a loop over attempts(): one loop goes around "
                "forward and backward pass, gradient accumulation included"
            )
        machine, before, number = self._machine, _current, 0
        self._iteration, machine.current_iteration = iteration, iteration - 1
        self._verdict = ""
        if not self._begun:
            self._resume(iteration)
        _current = self
        try:
            while machine.should_run_forward_backward():
                yield number
                number += 1
        except BaseException:  # the step is left in the middle
            machine.abandon()
            raise
        finally:
            _current = before
        checkpoint, leave, code = machine.should_checkpoint_and_exit()
        if leave:
            raise ResultError(self._end(iteration, code, checkpoint=checkpoint))

    def begin_outside(self, iteration: int) -> None:
        """Check results of this iteration next, outside of a loop."""
        self._machine.current_iteration = iteration

    def check(
        self,
        value: Any,
        name: str = "value",
        *,
        not_finite: bool = True,
        spike: float | None = None,
        tolerance: float = 0.0,
    ) -> None:
        """See `check`."""
        try:
            number = float(value.detach() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{name} is a {type(value).__name__}: check a number, or a tensor with one element "
                f"({error})"
            ) from error
        if (spike is not None or tolerance) and not _are_numbers(spike, tolerance):
            raise ValueError(
                f"check of {name}: spike is {spike!r}, tolerance {tolerance!r}; give a number "
                "above 0 as spike or None, and one from 0 as tolerance"
            )
        validate = self._machine.validate_result
        if not_finite:
            validate(number, _not_finite, f"{name} is not finite", None, tolerance)
        if spike is not None:
            large = partial(self._machine.is_unexpectedly_large, threshold=spike, context=name)
            validate(number, large, f"{name} is unusually large", None, tolerance, fatal=False)

    def check_passes(self, differing: str) -> None:
        """Check that two passes of the step have made the same, as `Replay` has found out.

        Args:
            differing: what differs, "" = nothing.
        """
        text = differing or _ALIKE
        self._machine.validate_result(text, _differ, _PASSES, _both_differ_or_none)

    # --- the end of a loop, and the next round ----------------------------------------------------

    def _decided(self, verdict: Verdict) -> None:
        slot, texts = verdict.slot, _TEXTS_OF_PASSES if verdict.message == _PASSES else _TEXTS
        self._verdict = (
            f"{verdict.message} in iteration {self._iteration}, computed on {slot.device} of node "
            f"{slot.node}: {texts[verdict.diagnostic]}"
        )
        self._said(self._verdict)

    def _end(self, iteration: int, code: int, *, checkpoint: bool) -> End:
        odd, last = self._machine.odd, iteration - 1
        text = self._verdict
        if odd is not None:
            what = f"{odd.call.caller.message} in iteration {iteration} ({odd.result})"
            text = f"{what}, computed on {odd.slot.device} of node {odd.slot.node}"
        guilty = odd is not None or bool(self._verdict)
        if code != EXIT_CODE_RESUME_TO_DISAMBIGUATE:
            self._forget()
            return End(StopReason.INVALID, last, False, guilty, text)
        if checkpoint and not self._ask_all(iteration):
            why = _NO_SECOND if self._folder is None else _NOT_ASKED
            text = f"{text}: {why}" if guilty else ""
            return End(StopReason.INVALID, last, False, guilty, text)
        return End(StopReason.SUSPECT, last, checkpoint, guilty, text)

    def _resume(self, iteration: int) -> None:
        """Take up a question of the round before, if all ranks have one about this iteration."""
        self._begun = True
        if torch_ranks.place()[1] > 1 and not torch_ranks.is_distributed():
            _LOG.warning(
                "there is no process group of torch: ranks cannot agree to run a step again, and "
                "each does so alone; call torch.distributed.init_process_group before"
            )
        if self._folder is None:
            return
        question = self._question(iteration)
        (missing,) = torch_ranks.any_rank([question is None])
        if missing:
            self._forget()
        else:
            self._machine.load_state_dict(question)

    def _question(self, iteration: int) -> dict[str, Any] | None:
        path, (_, ranks) = self._path(), torch_ranks.place()
        try:
            content = in_time(_DISK_S, lambda: read_file(str(path), _MOST_BYTES))
            saved = json.loads(content, object_hook=_decoded)
            if (saved["ranks"], saved["iteration"]) == (ranks, iteration):
                found: dict[str, Any] = saved["machine"]
                return found
            _LOG.warning(
                "rank %d: %s is about iteration %s on %s ranks, but iteration %d on %d comes: it "
                "is left unanswered; resume where the job has stopped",
                torch_ranks.place()[0],
                path,
                saved["iteration"],
                saved["ranks"],
                iteration,
                ranks,
            )
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001 - it comes from a disk
            _LOG.warning("the question in %s cannot be read: %s", path, error)
        return None

    def _ask_all(self, iteration: int) -> bool:
        """Have the questions of all ranks wait for the next round; return whether they do."""
        able = self._folder is not None and iteration > 0
        (failed,) = torch_ranks.any_rank([not (able and self._ask(iteration))])
        if failed:
            self._forget()
        return not failed

    def _ask(self, iteration: int) -> bool:
        path = self._path()
        question = {
            "iteration": iteration,
            "ranks": torch_ranks.place()[1],
            "machine": self._machine.state_dict(),
        }
        try:
            content = json.dumps(question, default=_encoded).encode()
            in_time(_DISK_S, lambda: _keep(path, content))
        except (OSError, TypeError) as error:
            _LOG.warning("no second opinion: the question cannot be kept in %s: %s", path, error)
            return False
        return True

    def _forget(self) -> None:
        if self._folder is not None:
            path = self._path()
            within(_DISK_S, lambda: path.unlink(missing_ok=True), None)

    def _path(self) -> Path:
        return (self._folder or Path()) / f"odd-result-{torch_ranks.place()[0]}.json"


def again() -> Attempts | None:
    """Return what computes the step that is under way again if a result is odd; None = nothing."""
    return _current if _current is not None and _current.computes_again else None


_current: Attempts | None = None  # whose step is under way
_alone: Attempts | None = None  # for checks outside of loops over attempts


def check(
    value: Any,
    name: str = "value",
    *,
    not_finite: bool = True,
    spike: float | None = None,
    tolerance: float = 0.0,
) -> None:
    """Check a result of this step: a loss, or the norm of gradients.

    Inside of `Session.attempts` an odd result is computed again; see there. Elsewhere one that is
    not finite raises, and names rank and device; one that is too large is logged.

    Args:
        value: a number, or a tensor with one element.
        name: what it is.
        not_finite: NaN and infinities are odd, and fatal.
        spike: more than so many times the largest of the first 100 values is odd, not fatal; None =
            any size will do.
        tolerance: results that are further from each other, relative to their size, are different
            ones; 0 = each bit counts.

    Raises:
        RuntimeError: it is not finite, and nothing is computed again.
        TypeError: it is no number.
        ValueError: `spike` or `tolerance` cannot be meant.
    """
    checks = checks_at(last_iteration())
    checks.check(value, name, not_finite=not_finite, spike=spike, tolerance=tolerance)


def checks_at(iteration: int | None) -> Attempts:
    """Return what checks results now: of the loop over attempts, or outside of any.

    Args:
        iteration: that errors name outside of a loop; None = not known.
    """
    global _alone  # noqa: PLW0603 - remembers what is large
    if _current is not None:
        return _current
    if _alone is None:
        _alone = Attempts(None, str)
    _alone.begin_outside(iteration or 0)
    return _alone


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    try:
        replace_file(str(path), content, str(temporary))
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _known(what: str, value: object, kind: type[Enum]) -> None:
    try:
        kind(value)
    except ValueError:
        known = ", ".join(one.value for one in kind)
        raise ValueError(f"{what} is {value!r}: give one of {known}") from None


def _are_numbers(spike: object, tolerance: object) -> bool:
    """Return whether these can be meant; NaN is no number here."""
    if spike is not None and not (isinstance(spike, (int, float)) and spike > 0):
        return False
    return isinstance(tolerance, (int, float)) and tolerance >= 0


def _not_finite(number: float) -> bool:
    return not math.isfinite(number)


def _differ(text: str) -> bool:
    return text != _ALIKE


def _both_differ_or_none(first: str, second: str) -> float:
    """Have passes that differ again count as the same result, whatever it is that differs."""
    return COMPARISON_MATCH if _differ(first) is _differ(second) else COMPARISON_MISMATCH


def _encoded(value: Any) -> Any:
    """Have JSON of a state of random generators, which is bytes in a tensor."""
    if not hasattr(value, "numpy"):
        raise TypeError(f"{type(value).__name__} has no place in a question")
    return {_BYTES: base64.b64encode(bytes(value.tolist())).decode()}


def _decoded(value: dict[str, Any]) -> Any:
    if _BYTES not in value:
        return value
    import torch

    content = bytearray(base64.b64decode(value[_BYTES]))
    return torch.frombuffer(content, dtype=torch.uint8)
