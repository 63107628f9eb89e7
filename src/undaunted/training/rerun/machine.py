"""`RerunStateMachine`: runs a step again when a result is odd, and says what it was.

while machine.should_run_forward_backward(batches):
    loss = forward_and_backward(batches)
    machine.validate_result(loss, torch.isnan, "loss is not a number")
save, leave, code = machine.should_checkpoint_and_exit()

The tables are in `rerun.table`; this does what they say.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from undaunted.base import random_generators, torch_ranks
from undaunted.training.rerun import table
from undaunted.training.rerun.batches import RerunDataIterator
from undaunted.training.rerun.difference import difference
from undaunted.training.rerun.odd import (
    EXPLAINED,
    NAMED,
    Call,
    Caller,
    Odd,
    Verdict,
    loaded_odd,
    saved_odd,
)
from undaunted.training.rerun.slot import this_slot
from undaunted.training.rerun.table import (
    Do,
    Question,
    RerunDiagnostic,
    RerunMode,
    RerunState,
    RerunValidationStatus,
    Wish,
)
from undaunted.training.rerun.tracker import Tracker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Sequence

    from undaunted.base.random_generators import States

_LOG = logging.getLogger("undaunted")


class RerunStateMachine:
    """Runs a step again when a check finds a result odd, and says what the result was.

    All ranks make one, with the same arguments, and ask the same things in the same order; a check
    may be made by some of them only.

    Args:
        state_save_func: returns what else is changed by a step before the optimizer, such as
            other generators; None = nothing.
        state_restore_func: puts that back.
        mode: what checks lead to; its name will do.
        result_rejected_tracker_filename: each odd result becomes a line of this file.
        fatal_checks: whether any rank makes fatal checks. If not, no reduction is made in a step
            without an odd result, and only a process that is alone runs again.
        any_rank: returns which of some wishes any rank has; all ranks call it. None = a reduction
            over torch's default process group, if there is one.
        on_verdict: called with each `Verdict` of this rank.
        forgives: after such verdicts a fatal check does not end the job, as long as what was
            computed again is not odd.

    Attributes:
        state: where this rank is.
        current_iteration: how many steps have begun; a resumed job goes on counting.
        odd: what was found odd in this step, and is not decided.
        verdict: what it was, once that is decided.
        first: this is the first iteration of the process, which is not checked: a program may not
            be able to save the state before it.

    Raises:
        RuntimeError: the file cannot be appended to.
        ValueError: there is no such mode.
    """

    def __init__(
        self,
        state_save_func: Callable[[], Any] | None = None,
        state_restore_func: Callable[[Any], object] | None = None,
        mode: RerunMode | str = RerunMode.DISABLED,
        result_rejected_tracker_filename: str | os.PathLike[str] | None = None,
        *,
        fatal_checks: bool = True,
        any_rank: Callable[[Sequence[bool]], Sequence[bool]] | None = None,
        on_verdict: Callable[[Verdict], object] | None = None,
        forgives: Collection[RerunDiagnostic] = (),
    ) -> None:
        self._mode = RerunMode(mode)
        self.state = RerunState.NOT_RUNNING_YET
        self.current_iteration = 0
        self.odd: Odd | None = None
        self.verdict: Verdict | None = None
        self.large_value_counts: dict[str, int] = {}
        self.max_values: dict[str, float] = {}
        self._save_state, self._restore_state = state_save_func, state_restore_func
        self._tracker = Tracker(result_rejected_tracker_filename)
        self._fatal_checks = fatal_checks
        self._any_rank = any_rank or torch_ranks.any_rank
        self._on_verdict = on_verdict
        self._forgives = frozenset(forgives)
        self._generators: States | None = None  # as they were before the step
        self._user_state: Any = None
        self._resumed_generators: dict[str, Any] | None = None
        self._resumed_batches: list[dict[str, Any] | None] | None = None
        self._wrapped: dict[int, tuple[Any, RerunDataIterator]] = {}
        self._wishes: set[Wish] = set()
        self._reduced: bool | None = None
        self._counts: dict[str, int] = {}
        self.first = True
        self._said_enabled = False
        self._answered = False  # what was odd was computed again

    def get_mode(self) -> RerunMode:
        """Return what checks lead to."""
        return self._mode

    def set_mode(self, mode: RerunMode | str) -> None:
        """Change what checks lead to, between steps: evaluation is not run again."""
        self._mode = RerunMode(mode)

    # --- around a step ----------------------------------------------------------------------------

    def should_run_forward_backward(self, data_iterator: Any = None) -> bool:
        """Return whether to run forward and backward pass (again). Ask it in a ``while``.

        Args:
            data_iterator: the source of batches, a list of some, or None. Those that are not of
                `RerunDataIterator` are wrapped: take what `batches` returns for them.
        """
        mode, state = self._mode, self.state
        turn = table.next_turn(mode, state, self._wishes_of_all(mode, state))
        batches = () if data_iterator is None else self._iterators(data_iterator)
        if state is RerunState.WILL_RERUN_FROM_CHECKPOINT:
            self._resume(batches)
        for what in turn.do:
            self._do(what, batches)
        self._wishes.clear()
        self._counts.clear()
        self.state = turn.state
        if turn.say:
            self._say_once(turn.say)
        return turn.run

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return whether to save, whether to end, and with which exit code; after the loop.

        The state before this step is saved, as the optimizer has not seen its gradients.
        """
        self.first = False
        found = table.leave(self._mode, self.state)
        if found.say:
            self._say_once(found.say)
        return found.checkpoint, found.exit, found.code

    def abandon(self) -> None:
        """A step was left in the middle, by an exception perhaps: the next one begins as any."""
        self.state, self.odd, self._reduced = RerunState.NOT_RUNNING_YET, None, None
        self._wishes.clear()

    def batches(self, source: Iterable[Any]) -> RerunDataIterator:
        """Return the iterator that gives the batches of a plain one, more than once if need be."""
        if isinstance(source, RerunDataIterator):
            return source
        known = self._wrapped.get(id(source))
        if known is None or known[0] is not source:
            known = self._wrapped[id(source)] = (source, RerunDataIterator(source))
        return known[1]

    @property
    def flag(self) -> float:
        """1.0 if this rank has found a result odd in this step, else 0.0. See `flag_reduced`."""
        return 1.0 if Wish.RERUN in self._wishes else 0.0

    def flag_reduced(self, total: float) -> None:
        """Give the sum or the maximum of `flag` on all ranks, in the place of a reduction.

        For programs that reduce a tensor in each step anyway, before they ask whether to run again.
        All ranks do so.
        """
        self._reduced = total != 0  # NaN is no 0 either

    def _any_wishes_rerun(self) -> bool:
        """Return whether any rank wishes to run the step again, after its first run."""
        mine = Wish.RERUN in self._wishes
        reduced, self._reduced = self._reduced, None
        if reduced is not None:
            return reduced
        if not self._fatal_checks:
            return mine and not torch_ranks.is_distributed()
        (reduced,) = self._any_rank((mine,))
        return reduced

    def _wishes_of_all(self, mode: RerunMode, state: RerunState) -> Collection[Wish]:
        wanted = table.wishes_of_all(mode, state)
        if not wanted:
            return ()
        if wanted == (Wish.RERUN,):
            return wanted if self._any_wishes_rerun() else ()
        self._nothing_found()
        found = self._any_rank([wish in self._wishes for wish in wanted])
        return [wish for wish, any_has in zip(wanted, found, strict=True) if any_has]

    def _do(self, what: Do, batches: Collection[RerunDataIterator]) -> None:
        if what is Do.BEGIN:
            self._begin(batches)
        elif what is Do.RESTORE:
            self._restore(batches)
        else:
            self.odd = None

    def _begin(self, batches: Collection[RerunDataIterator]) -> None:
        self.current_iteration += 1
        self.odd = self.verdict = None
        again = self._mode is not RerunMode.DISABLED
        if len(self._wrapped) > len(batches):  # iterators of former epochs have processes, perhaps
            self._wrapped = {k: one for k, one in self._wrapped.items() if one[1] in batches}
        for one in batches:
            one.keeps = again
            one.advance()
        if again:
            self._generators = random_generators.states()
            if self._save_state is not None:
                self._user_state = self._save_state()

    def _restore(self, batches: Collection[RerunDataIterator]) -> None:
        if self._generators is not None:
            random_generators.set_states(self._generators)
        if self._restore_state is not None:
            self._restore_state(self._user_state)
        for one in batches:
            one.rewind()
        for source, one in self._wrapped.values():
            if one in batches and not one.has_some:
                self._say_once(
                    f"batches of {type(source).__name__} were not read through "
                    "RerunDataIterator or RerunStateMachine.batches(): what comes now is the next "
                    "ones, and results will differ"
                )

    def _resume(self, batches: Iterable[RerunDataIterator]) -> None:
        """This process runs the step again that an earlier one has found odd."""
        saved, self._resumed_batches = self._resumed_batches, None
        for one, state in zip(batches, saved or (), strict=False):
            if state is not None:
                one.load_state_dict(state)
                one.rewind()
        kept, self._resumed_generators = self._resumed_generators, None
        if kept:
            try:
                random_generators.set_states(random_generators.from_plain(kept))
            except Exception as error:  # noqa: BLE001 - the program may have set them, too
                _LOG.warning("random generators cannot be set as they were: %s", error)
        self._generators = random_generators.states()
        if self._save_state is not None:
            self._user_state = self._save_state()

    def _iterators(self, data: Any) -> list[RerunDataIterator]:
        some = data if isinstance(data, list) else [data]
        return [self.batches(one) for one in some if one is not None]

    # --- a check ----------------------------------------------------------------------------------

    def validate_result(
        self,
        result: Any,
        rejection_func: Callable[[Any], Any],
        message: str = "",
        comparison_func: Callable[[Any, Any], float] | None = None,
        tolerance: float = 0.0,
        fatal: bool = True,
    ) -> None:
        """Check a result, and compare it where it was computed again.

        The k-th check of a message in a step is the same check in each run of the step.

        Args:
            result: a number, or a tensor with one element; something else with a comparison.
            rejection_func: whether the result is odd.
            message: what is checked.
            comparison_func: returns how far two results are from each other; None =
                `rerun.difference.difference`.
            tolerance: results that are further from each other are different ones.
            fatal: nobody may go on with an odd result, unless it turns out to be no fault.

        Raises:
            RuntimeError: nothing is run again (mode ``DISABLED``), and a fatal check finds a
                result odd.
        """
        mode, state = self._mode, self.state
        if mode is RerunMode.DISABLED:
            self._checked(result, rejection_func, message, fatal=fatal)
            return
        number, odd = self._number(message), self.odd
        same = odd is not None and odd.call[1] == number and odd.call[0][0] == message
        asked = table.question(
            mode, state, first=self.first, pending=odd is not None, same_call=same
        )
        compare = comparison_func or difference
        if asked is Question.ODD:
            if self.is_odd(result, rejection_func):
                self._reject(result, message, number, fatal=fatal)
        elif asked is Question.USABLE:
            if fatal and rejection_func(result):
                self._fail(result, message)
        elif asked is Question.DIFFERENT and odd is not None:
            apart = self.apart(compare, odd.result, result)
            self._judge(odd, result, rejection_func, different=not apart <= tolerance, fatal=fatal)

    def is_odd(self, result: Any, rejection_func: Callable[[Any], Any]) -> bool:
        """Return whether a result is odd; for subclasses."""
        return bool(rejection_func(result))

    def apart(self, compare: Callable[[Any, Any], float], first: Any, second: Any) -> float:
        """Return how far the result of a step that ran again is from the odd one."""
        return compare(first, second)

    def is_unexpectedly_large(
        self,
        result: Any,
        threshold: float,
        context: str,
        num_samples: int = 100,
        resample: bool = False,
    ) -> bool:
        """Return whether a number is much larger than all of the first ones. For `validate_result`.

        Args:
            result: a number or a tensor with one element; what is not finite is not large.
            threshold: so many times the largest one.
            context: of which numbers it is one.
            num_samples: so many are the first ones, of which none is too large.
            resample: begin again with the first ones.
        """
        value = abs(float(result))
        if not math.isfinite(value):
            return False
        if resample:
            self.large_value_counts.pop(context, None)
            self.max_values.pop(context, None)
        count = self.large_value_counts.get(context, 0)
        if count >= num_samples:
            return value > threshold * self.max_values[context]
        self.large_value_counts[context] = count = count + 1
        self.max_values[context] = most = max(value, self.max_values.get(context, 0.0))
        if count == num_samples:
            self._say_once(f"Max value for {context}: {most}", logging.INFO)
        return False

    def _number(self, message: str) -> int:
        """Return which check of this message this is in the step, from 1."""
        if not self._said_enabled:
            self._said_enabled = True
            self._say_once("Result validation enabled", logging.INFO)
        self._counts[message] = number = self._counts.get(message, 0) + 1
        return number

    def _checked(
        self, result: Any, rejection_func: Callable[[Any], Any], message: str, *, fatal: bool
    ) -> None:
        """Check a result where nothing is run again."""
        if not rejection_func(result):
            return
        self._note(RerunValidationStatus.RERUN_DISABLED, result, message)
        slot = this_slot()
        text = (
            f"Rank {_rank()}, node {slot.node}, device {slot.device}, iteration "
            f"{self.current_iteration}: Unexpected result {result} (message='{message}')"
        )
        if fatal:
            raise RuntimeError(text)
        _LOG.warning("%s", text)

    def _reject(self, result: Any, message: str, number: int, *, fatal: bool) -> None:
        call = Call(Caller(message, _rank()), number)
        self.odd = Odd(call, copied(result), fatal, this_slot())
        self._answered = False
        self._wishes.add(Wish.RERUN)
        _LOG.error(
            "Unexpected result %s on rank %d at iteration #%d invocation #%d (message='%s')",
            result,
            call.caller.rank,
            self.current_iteration,
            number,
            message,
        )
        self._note(RerunValidationStatus.INITIAL_RUN, result, message)

    def _fail(self, result: Any, message: str) -> None:
        """A step that is run again gives a result that is odd, and was not, or on another rank."""
        self._wishes.add(Wish.FAIL)
        _LOG.error(
            "Unexpected result %s on rank %d at iteration #%d when it was run again (message='%s')",
            result,
            _rank(),
            self.current_iteration,
            message,
        )

    def _judge(
        self,
        odd: Odd,
        result: Any,
        rejection_func: Callable[[Any], Any],
        *,
        different: bool,
        fatal: bool,
    ) -> None:
        """An odd result was computed again: here, or on the slot where this process is."""
        in_place = self.state is RerunState.RERUNNING_IN_PLACE
        slot = this_slot()
        same = not in_place and slot.identity == odd.slot.identity
        found = table.opinion(self.state, different=different, fatal=fatal, same_slot=same)
        if fatal and found.diagnostic in self._forgives and not rejection_func(result):
            found = table.opinion(self.state, different=different, fatal=False, same_slot=same)
        self._answered = True
        self._wishes.add(found.wish)
        message = odd.call.caller.message
        if found.status is None:  # nothing was learned
            _LOG.warning(
                "Got rescheduled on the same GPU. Need to resume again from the same checkpoint "
                "(node: %s, gpu: %s)",
                slot.node,
                slot.device,
            )
            return
        _LOG.warning(EXPLAINED[found.status], result, "!=" if different else "=", odd.result)
        self._note(found.status, result, message)
        if found.diagnostic is not None:
            self.odd = None
            self._conclude(found.diagnostic, odd, fatal=fatal)

    def _conclude(self, diagnostic: RerunDiagnostic, odd: Odd, *, fatal: bool) -> None:
        slot, message = odd.slot, odd.call.caller.message
        verdict = Verdict(diagnostic, message, _rank(), self.current_iteration, slot, fatal)
        self.verdict = verdict
        text = NAMED[diagnostic] + (
            f" ({message})!" if diagnostic is RerunDiagnostic.CORRECT_RESULT else "!"
        )
        _LOG.log(
            logging.ERROR if fatal else logging.WARNING,
            "Rank %d, node %s, device %s, iteration #%d: %s",
            verdict.rank,
            slot.node,
            slot.device,
            self.current_iteration,
            text,
        )
        if self._on_verdict is not None:
            self._on_verdict(verdict)

    def _nothing_found(self) -> None:
        """A step was run again. Say so if the check that had found something odd was not made."""
        if self.odd is None or self._answered:
            return
        self._answered = True
        self._wishes.add(Wish.FAIL if self.odd.fatal else Wish.CONTINUE)
        _LOG.error(
            "rank %d: check '%s' #%d was not made when iteration #%d was run again: nothing is "
            "known about its odd result; make the same checks in each run",
            _rank(),
            self.odd.call.caller.message,
            self.odd.call.sequence,
            self.current_iteration,
        )

    def _note(self, status: RerunValidationStatus, result: Any, message: str) -> None:
        self._tracker.add(this_slot(), _rank(), self.current_iteration, status, result, message)

    def _say_once(self, text: str, level: int = logging.WARNING) -> None:
        if _rank() == 0:
            _LOG.log(level, "%s", text)

    # --- over a restart ---------------------------------------------------------------------------

    def state_dict(self, data_iterator: Any = None) -> dict[str, Any]:
        """Return what a later process needs: numbers, texts, lists, dicts and tensors.

        It is always one from which a later process can go on. What is under ``sharded`` is this
        rank's own, and has the same names at all times.

        Args:
            data_iterator: as given to `should_run_forward_backward`.
        """
        state = table.saved_state(self.state)
        again = state is RerunState.WILL_RERUN_FROM_CHECKPOINT
        unfinished = not again and self.state is not RerunState.NOT_RUNNING_YET
        return {
            "mode": self._mode.value,
            "state": int(state),
            "current_iteration": self.current_iteration - unfinished,
            "sharded": {
                **saved_odd(self.odd if again else None),
                "data_iterator_state": self._saved_batches(data_iterator) if again else None,
                "generators": self._saved_generators() if again else None,
                "large_value_counts": dict(self.large_value_counts),
                "max_values": dict(self.max_values),
            },
        }

    def load_state_dict(self, state_dict: Any) -> None:
        """Go on where an earlier process was. A state of no use is logged, and left.

        Args:
            state_dict: what `state_dict` has returned; None = nothing was saved.
        """
        if state_dict is None:
            return
        if self._mode is RerunMode.DISABLED:
            self._say_once(
                "RerunStateMachine disabled via CLI, ignoring machine state saved in checkpoint"
            )
            return
        try:
            self._load(state_dict)
        except Exception as error:  # noqa: BLE001 - it comes from a disk, and of any version
            self.state, self.odd = RerunState.NOT_RUNNING_YET, None
            self._resumed_batches = self._resumed_generators = None
            _LOG.warning(
                "rank %d: the state of the rerun machine in the checkpoint cannot be used (%s: %s)"
                ": no step is run again",
                _rank(),
                type(error).__name__,
                error,
            )

    def _load(self, state_dict: Any) -> None:
        saved = RerunState(int(state_dict["state"]))
        iteration, mine = int(state_dict["current_iteration"]), state_dict["sharded"]
        odd = loaded_odd(mine)
        counts = {str(name): int(n) for name, n in mine["large_value_counts"].items()}
        most = {str(name): float(value) for name, value in mine["max_values"].items()}
        again = table.saved_state(saved) is RerunState.WILL_RERUN_FROM_CHECKPOINT
        batches = mine["data_iterator_state"] if again else None
        self._resumed_batches = None if batches is None else list(batches)
        self._resumed_generators = mine.get("generators") if again else None
        self.large_value_counts, self.max_values = counts, most
        self.current_iteration = iteration
        if again:
            self._say_once("Getting RerunStateMachine state from checkpoint. Will rerun step.")
            self.state, self.odd, self._answered = RerunState.WILL_RERUN_FROM_CHECKPOINT, odd, False

    def _saved_batches(self, data_iterator: Any) -> list[dict[str, Any] | None] | None:
        if self._resumed_batches is not None:  # the step was not run again yet
            return self._resumed_batches
        if data_iterator is None:
            return None
        some = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        return [None if one is None else self.batches(one).state_dict() for one in some]

    def _saved_generators(self) -> dict[str, Any]:
        if self._resumed_generators or self._generators is None:
            return self._resumed_generators or {}
        return random_generators.to_plain(self._generators)


def copied(result: Any) -> Any:
    """Return what does not change when the program goes on: another tensor, on the CPU."""
    return result.detach().cpu().clone() if hasattr(result, "detach") else result


def _rank() -> int:
    return torch_ranks.place()[0]
