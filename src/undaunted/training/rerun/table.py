"""The consequences of an odd result: states of a rank, wishes of all, and tables. No I/O, no clock.

docs/design/training.md says how it goes. `next_turn` is asked at the head of the loop around a
forward and backward pass, `question` and `opinion` in each check, `leave` after the loop.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

EXIT_CODE_RESUME_TO_DISAMBIGUATE = 16
EXIT_CODE_FAILED_ON_RESULT_VALIDATION = 17


class RerunMode(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is another
    """The use that the machine makes of the results of checks."""

    DISABLED = "disabled"
    """Nothing is run again: a fatal check raises, another one warns."""
    VALIDATE_RESULTS = "validate_results"
    """Odd results are computed again."""
    REPORT_DETERMINISM_STATS = "report_determinism_stats"
    """Every step runs twice, and the log says how much the results differ; see `rerun.stats`."""

    @classmethod
    def _missing_(cls, value: object) -> RerunMode | None:
        return cls.REPORT_DETERMINISM_STATS if value == "report_stats" else None


class RerunState(enum.IntEnum):
    """The state of a rank in a re-run."""

    NOT_RUNNING_YET = 0
    INITIAL_RUN = 1
    RERUNNING_IN_PLACE = 2
    WILL_RERUN_FROM_CHECKPOINT = 3
    RERUNNING_FROM_CHECKPOINT = 4
    RERUNNING_AGAIN_FROM_CHECKPOINT = 5


class RerunDiagnostic(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is another
    """The kind of an odd result."""

    CORRECT_RESULT = "correct_result"
    TRANSIENT_ERROR = "transient_error"
    PERSISTENT_ERROR = "persistent_error"


OPINIONS = {
    RerunDiagnostic.TRANSIENT_ERROR: "a transient error",
    RerunDiagnostic.PERSISTENT_ERROR: "a persistent error of that place",
    RerunDiagnostic.CORRECT_RESULT: "a correct result, however odd",
}
"""The words for each, before the reason."""


class RerunValidationStatus(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is another
    """The finding of a check, for the tracker file."""

    RERUN_DISABLED = "rerun_disabled"
    INITIAL_RUN = "initial_run"
    FIRST_RERUN_NOT_REPRODUCIBLE = "first_rerun_not_reproducible"
    FIRST_RERUN_REPRODUCIBLE = "first_rerun_reproducible"
    SECOND_RERUN_NOT_REPRODUCIBLE = "second_rerun_not_reproducible"
    SECOND_RERUN_REPRODUCIBLE = "second_rerun_reproducible"


class Wish(enum.IntEnum):
    """A wish of a rank after a run."""

    RERUN = 0
    CONTINUE = 1
    CHECKPOINT = 2
    RESTART_AGAIN = 3
    FAIL = 4


class Do(enum.Enum):
    """An action of the machine before a turn."""

    BEGIN = "begin"  # a step: count it, keep what is needed to run it again
    RESTORE = "restore"  # put back what was kept, rewind the batches
    FORGET = "forget"  # an odd result that nothing comes of


@dataclass(frozen=True)
class Turn:
    """The consequence at the head of the loop.

    Attributes:
        state: from now on.
        run: run forward and backward pass (again).
        do: before, in this order.
        say: for people, once per job.
    """

    state: RerunState
    run: bool
    do: tuple[Do, ...] = ()
    say: str = ""


@dataclass(frozen=True)
class Leave:
    """The fate of the job after the loop.

    Attributes:
        checkpoint: save the state before the step.
        exit: end the process.
        code: with this exit code.
        say: for people, once per job.
    """

    checkpoint: bool = False
    exit: bool = False
    code: int = 0
    say: str = ""


_GO_ON = "Continuing normal execution because failed validation was not fatal"
_S, _W = RerunState, Wish

BEGIN = Turn(_S.INITIAL_RUN, True, (Do.BEGIN,))
# By state: the wishes of which all ranks have to know, and what follows from the first of them that
# any rank has, in this order; the last row is for none of them.
_TURNS: dict[RerunState, list[tuple[Wish | None, Turn]]] = {
    _S.NOT_RUNNING_YET: [(None, BEGIN)],
    _S.INITIAL_RUN: [
        (
            _W.RERUN,
            Turn(
                _S.RERUNNING_IN_PLACE,
                True,
                (Do.RESTORE,),
                "Need to rerun step to check reproducibility of initial result",
            ),
        ),
        (None, Turn(_S.NOT_RUNNING_YET, False)),
    ],
    _S.RERUNNING_IN_PLACE: [
        (_W.CHECKPOINT, Turn(_S.WILL_RERUN_FROM_CHECKPOINT, False, (Do.RESTORE,))),
        (_W.FAIL, Turn(_S.RERUNNING_IN_PLACE, False, (Do.RESTORE,))),
        (_W.CONTINUE, Turn(_S.NOT_RUNNING_YET, False, (Do.FORGET,), _GO_ON)),
        (None, Turn(_S.RERUNNING_IN_PLACE, False, (Do.RESTORE,))),
    ],
    _S.WILL_RERUN_FROM_CHECKPOINT: [(None, Turn(_S.RERUNNING_FROM_CHECKPOINT, True))],
    _S.RERUNNING_FROM_CHECKPOINT: [
        (
            _W.RESTART_AGAIN,
            Turn(
                _S.RERUNNING_AGAIN_FROM_CHECKPOINT,
                False,
                (Do.RESTORE,),
                "Need to restart job from the same checkpoint because it was scheduled on the same "
                "node/GPU",
            ),
        ),
        (_W.FAIL, Turn(_S.RERUNNING_FROM_CHECKPOINT, False, (Do.RESTORE,))),
        (_W.CONTINUE, Turn(_S.NOT_RUNNING_YET, False, (Do.FORGET,), _GO_ON)),
        (None, Turn(_S.RERUNNING_FROM_CHECKPOINT, False, (Do.RESTORE,))),
    ],
    _S.RERUNNING_AGAIN_FROM_CHECKPOINT: [(None, Turn(_S.RERUNNING_AGAIN_FROM_CHECKPOINT, False))],
}
_ONCE_DONE = Turn(_S.NOT_RUNNING_YET, False)


def wishes_of_all(mode: RerunMode, state: RerunState) -> tuple[Wish, ...]:
    """Return of which wishes all ranks have to know before `next_turn`."""
    if mode is RerunMode.DISABLED:
        return ()
    return tuple(wish for wish, _ in _TURNS[state] if wish is not None)


def next_turn(mode: RerunMode, state: RerunState, wishes: Collection[Wish]) -> Turn:
    """Return what follows at the head of the loop.

    Args:
        mode: of the machine.
        state: of this rank, the same on all.
        wishes: those of `wishes_of_all` that any rank has.
    """
    if state is RerunState.NOT_RUNNING_YET:
        return BEGIN
    if mode is RerunMode.DISABLED:
        return _ONCE_DONE if state is RerunState.INITIAL_RUN else BEGIN
    return next(turn for wish, turn in _TURNS[state] if wish is None or wish in wishes)


_LEAVE = {
    _S.RERUNNING_IN_PLACE: Leave(
        False,
        True,
        EXIT_CODE_FAILED_ON_RESULT_VALIDATION,
        "Exiting now. The job can be resumed from a previous checkpoint",
    ),
    _S.WILL_RERUN_FROM_CHECKPOINT: Leave(
        True,
        True,
        EXIT_CODE_RESUME_TO_DISAMBIGUATE,
        "Saving a checkpoint and exiting now. Please resume the job from the checkpoint to rerun "
        "the last iteration and establish a diagnostic",
    ),
    _S.RERUNNING_FROM_CHECKPOINT: Leave(
        False,
        True,
        EXIT_CODE_FAILED_ON_RESULT_VALIDATION,
        "Exiting now. A checkpoint at the last iteration already exists if further examination is "
        "needed",
    ),
    _S.RERUNNING_AGAIN_FROM_CHECKPOINT: Leave(
        False,
        True,
        EXIT_CODE_RESUME_TO_DISAMBIGUATE,
        "Exiting now. Please resume the job from the same checkpoint to rerun the last iteration "
        "and establish a diagnostic",
    ),
}
STAY = Leave()


def leave(mode: RerunMode, state: RerunState) -> Leave:
    """Return whether the job goes on after the loop."""
    return _LEAVE.get(state, STAY) if mode is RerunMode.VALIDATE_RESULTS else STAY


class Question(enum.Enum):
    """A question of a check about its result."""

    NOTHING = "nothing"
    ODD = "odd"  # is it one that cannot be meant?
    DIFFERENT = "different"  # from the odd one?
    USABLE = "usable"  # can it be gone on with? what other checks ask in a repeated run


def question(
    mode: RerunMode, state: RerunState, *, first: bool, pending: bool, same_call: bool
) -> Question:
    """Return what a check asks about its result.

    Args:
        mode: of the machine.
        state: of this rank.
        first: this is the first iteration of the process: there is nothing to go back to.
        pending: this rank has found a result odd, in this run or an earlier one.
        same_call: it was found by this very check.
    """
    if mode is RerunMode.DISABLED:
        return Question.ODD
    again = state in (RerunState.RERUNNING_IN_PLACE, RerunState.RERUNNING_FROM_CHECKPOINT)
    if again:
        return Question.DIFFERENT if same_call else Question.USABLE
    initial = state is RerunState.INITIAL_RUN
    return Question.ODD if initial and not first and not pending else Question.NOTHING


@dataclass(frozen=True)
class Opinion:
    """The consequence of a check's finding.

    Attributes:
        wish: of this rank.
        status: for the tracker file; None = nothing was learned, as the rank is where it was.
        diagnostic: what the result was; None = not known yet.
    """

    wish: Wish
    status: RerunValidationStatus | None
    diagnostic: RerunDiagnostic | None = None


def opinion(state: RerunState, *, different: bool, fatal: bool, same_slot: bool) -> Opinion:
    """Return what follows from an odd result that was computed again.

    Args:
        state: of this rank: it has run again in place, or from a checkpoint.
        different: it is further from the odd one than the tolerance.
        fatal: nobody may go on with such a result.
        same_slot: from a checkpoint: this is where the odd result comes from.
    """
    status, diagnostic = RerunValidationStatus, RerunDiagnostic
    end = Wish.FAIL if fatal else Wish.CONTINUE
    if state is RerunState.RERUNNING_IN_PLACE:
        if different:
            return Opinion(end, status.FIRST_RERUN_NOT_REPRODUCIBLE, diagnostic.TRANSIENT_ERROR)
        wish = Wish.CHECKPOINT if fatal else Wish.CONTINUE
        return Opinion(wish, status.FIRST_RERUN_REPRODUCIBLE)
    if same_slot:
        return Opinion(Wish.RESTART_AGAIN, None)
    if different:
        return Opinion(end, status.SECOND_RERUN_NOT_REPRODUCIBLE, diagnostic.PERSISTENT_ERROR)
    return Opinion(end, status.SECOND_RERUN_REPRODUCIBLE, diagnostic.CORRECT_RESULT)


def saved_state(state: RerunState) -> RerunState:
    """Return what is saved in a state: only what a later process can go on from."""
    before = (RerunState.NOT_RUNNING_YET, RerunState.INITIAL_RUN, RerunState.RERUNNING_IN_PLACE)
    if state in before:
        return RerunState.NOT_RUNNING_YET
    return RerunState.WILL_RERUN_FROM_CHECKPOINT
