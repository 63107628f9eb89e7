"""How a session runs a step again: its checks, and the question that waits for another slot.

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

from undaunted.checkpointing.files.durable import read_file, replace_file
from undaunted.training.rerun import reduction
from undaunted.training.rerun.machine import RerunStateMachine, Verdict
from undaunted.training.rerun.table import (
    EXIT_CODE_RESUME_TO_DISAMBIGUATE,
    RerunDiagnostic,
    RerunMode,
)
from undaunted.training.stopping import StopReason

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator

_LOG = logging.getLogger("undaunted")
_TEXTS = {
    RerunDiagnostic.TRANSIENT_ERROR: "a transient error: another result when computed again",
    RerunDiagnostic.PERSISTENT_ERROR: "a persistent error of that place: another result elsewhere",
    RerunDiagnostic.CORRECT_RESULT: "a correct result, however odd: the same elsewhere",
}
_BYTES = "bytes"
_MOST_BYTES = 1 << 24
_NO_SECOND = "the same result when computed again; Rerun(folder=...) would compute it elsewhere"


@dataclass(frozen=True)
class Rerun:
    """How a session computes odd results again.

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
    """

    folder: str | os.PathLike[str] | None = None
    mode: str = RerunMode.VALIDATE_RESULTS.value
    save_state: Callable[[], Any] | None = None
    restore_state: Callable[[Any], object] | None = None
    go_on_after: Collection[str] = ()
    tracker: str | os.PathLike[str] | None = None


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
        rerun: None = nothing is run again: an odd result that is fatal raises, another one is said.
        said: called with the text of each verdict of this rank.
    """

    def __init__(self, rerun: Rerun | None, said: Callable[[str], object]) -> None:
        self._said = said
        self._folder = (
            None if rerun is None or rerun.folder is None else Path(rerun.folder).absolute()
        )
        settings = rerun or Rerun(mode=RerunMode.DISABLED.value)
        self._machine = RerunStateMachine(
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

    def of(self, iteration: int) -> Iterator[int]:
        """Run a step: yields 0, and 1 if it has to be run again.

        Raises:
            ResultError: the ranks stop, and what was computed is not to be used.
        """
        global _current  # noqa: PLW0603 - `check` has to find it
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
        number = float(value.detach() if hasattr(value, "detach") else value)
        validate = self._machine.validate_result
        if not_finite:
            validate(number, _not_finite, f"{name} is not finite", None, tolerance)
        if spike is not None:
            large = partial(self._machine.is_unexpectedly_large, threshold=spike, context=name)
            validate(number, large, f"{name} is unusually large", None, tolerance, fatal=False)

    # --- the end of a loop, and the next round ----------------------------------------------------

    def _decided(self, verdict: Verdict) -> None:
        slot = verdict.slot
        self._verdict = (
            f"{verdict.message} in iteration {self._iteration}, computed on {slot.device} of node "
            f"{slot.node}: {_TEXTS[verdict.diagnostic]}"
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
        if checkpoint and (self._folder is None or last < 0 or not self._ask(iteration)):
            text = f"{text}: {_NO_SECOND}" if guilty else ""
            return End(StopReason.INVALID, last, False, guilty, text)
        return End(StopReason.SUSPECT, last, checkpoint, guilty, text)

    def _resume(self, iteration: int) -> None:
        """Take up a question of the round before, if all ranks have one about this iteration."""
        self._begun = True
        if reduction.place()[1] > 1 and not reduction.is_distributed():
            _LOG.warning(
                "there is no process group of torch: ranks cannot agree to run a step again, and "
                "each does so alone; call torch.distributed.init_process_group before"
            )
        if self._folder is None:
            return
        question = self._question(iteration)
        (missing,) = reduction.any_rank([question is None])
        if missing:
            self._forget()
        else:
            self._machine.load_state_dict(question)

    def _question(self, iteration: int) -> dict[str, Any] | None:
        path, (_, ranks) = self._path(), reduction.place()
        try:
            saved = json.loads(read_file(str(path), _MOST_BYTES), object_hook=_decoded)
            if (saved["ranks"], saved["iteration"]) == (ranks, iteration):
                found: dict[str, Any] = saved["machine"]
                return found
            _LOG.warning(
                "rank %d: %s is about iteration %s on %s ranks, but iteration %d on %d comes: it "
                "is left unanswered; resume where the job has stopped",
                reduction.place()[0],
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

    def _ask(self, iteration: int) -> bool:
        """Have the question wait for the next round; return whether it does."""
        path = self._path()
        question = {
            "iteration": iteration,
            "ranks": reduction.place()[1],
            "machine": self._machine.state_dict(),
        }
        try:
            content = json.dumps(question, default=_encoded).encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(str(path), content, f"{path}.new")
        except (OSError, TypeError) as error:
            _LOG.warning("no second opinion: the question cannot be kept in %s: %s", path, error)
            return False
        return True

    def _forget(self) -> None:
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        return (self._folder or Path()) / f"odd-result-{reduction.place()[0]}.json"


_current: Attempts | None = None  # whose step is under way
_alone: Attempts | None = None  # for programs without a session


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
    not finite raises, and names rank and device; one that is too large is said.

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
    """
    global _alone  # noqa: PLW0603 - remembers what is large
    if _current is None and _alone is None:
        _alone = Attempts(None, str)
    attempts = _current or _alone
    if attempts is not None:
        attempts.check(value, name, not_finite=not_finite, spike=spike, tolerance=tolerance)


def _not_finite(number: float) -> bool:
    return not math.isfinite(number)


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
