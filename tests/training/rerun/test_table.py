"""Rows of the tables of the re-run machine."""

from __future__ import annotations

import itertools

import pytest

from undaunted.training.rerun import table
from undaunted.training.rerun.table import (
    Do,
    Question,
    RerunDiagnostic,
    RerunMode,
    RerunState,
    RerunValidationStatus,
    Wish,
)

OFF, CHECK, STATS = RerunMode
BEFORE, INITIAL, IN_PLACE, WILL, FROM_CHECKPOINT, AGAIN = RerunState


@pytest.mark.parametrize(
    ("mode", "state", "wishes", "after", "run", "do"),
    [
        (OFF, BEFORE, [], INITIAL, True, [Do.BEGIN]),
        (CHECK, BEFORE, [], INITIAL, True, [Do.BEGIN]),
        (STATS, BEFORE, [], INITIAL, True, [Do.BEGIN]),
        (OFF, INITIAL, [], BEFORE, False, []),
        (CHECK, INITIAL, [], BEFORE, False, []),
        (CHECK, INITIAL, [Wish.RERUN], IN_PLACE, True, [Do.RESTORE]),
        (STATS, INITIAL, [Wish.RERUN], IN_PLACE, True, [Do.RESTORE]),
        (CHECK, IN_PLACE, [Wish.CONTINUE], BEFORE, False, [Do.FORGET]),
        (CHECK, IN_PLACE, [Wish.CHECKPOINT], WILL, False, [Do.RESTORE]),
        (CHECK, IN_PLACE, [], IN_PLACE, False, [Do.RESTORE]),
        (CHECK, IN_PLACE, [Wish.FAIL], IN_PLACE, False, [Do.RESTORE]),
        (CHECK, WILL, [], FROM_CHECKPOINT, True, []),
        (STATS, WILL, [], FROM_CHECKPOINT, True, []),
        (CHECK, FROM_CHECKPOINT, [Wish.RESTART_AGAIN], AGAIN, False, [Do.RESTORE]),
        (CHECK, FROM_CHECKPOINT, [Wish.CONTINUE], BEFORE, False, [Do.FORGET]),
        (CHECK, FROM_CHECKPOINT, [], FROM_CHECKPOINT, False, [Do.RESTORE]),
        (CHECK, FROM_CHECKPOINT, [Wish.FAIL], FROM_CHECKPOINT, False, [Do.RESTORE]),
        (CHECK, AGAIN, [], AGAIN, False, []),
        # ranks that wish for different things
        (CHECK, IN_PLACE, [Wish.CONTINUE, Wish.CHECKPOINT], WILL, False, [Do.RESTORE]),
        (CHECK, IN_PLACE, [Wish.CONTINUE, Wish.FAIL], IN_PLACE, False, [Do.RESTORE]),
        (CHECK, IN_PLACE, [Wish.FAIL, Wish.CHECKPOINT], WILL, False, [Do.RESTORE]),
        (CHECK, FROM_CHECKPOINT, [Wish.CONTINUE, Wish.RESTART_AGAIN], AGAIN, False, [Do.RESTORE]),
        (
            CHECK,
            FROM_CHECKPOINT,
            [Wish.CONTINUE, Wish.FAIL],
            FROM_CHECKPOINT,
            False,
            [Do.RESTORE],
        ),
        # evaluation is not run again, in whatever state it begins
        (OFF, WILL, [], INITIAL, True, [Do.BEGIN]),
    ],
)
def test_a_turn(mode, state, wishes, after, run, do):
    turn = table.next_turn(mode, state, wishes)
    assert (turn.state, turn.run, list(turn.do)) == (after, run, do)


@pytest.mark.parametrize(
    ("state", "wish", "says"),
    [
        (INITIAL, Wish.RERUN, "Need to rerun step to check reproducibility of initial result"),
        (
            IN_PLACE,
            Wish.CONTINUE,
            "Continuing normal execution because failed validation was not fatal",
        ),
        (
            FROM_CHECKPOINT,
            Wish.RESTART_AGAIN,
            (
                "Need to restart job from the same checkpoint because it was scheduled on the same "
                "node/GPU"
            ),
        ),
    ],
)
def test_what_a_turn_says(state, wish, says):
    assert table.next_turn(CHECK, state, [wish]).say == says


def test_of_which_wishes_all_ranks_know():
    assert table.wishes_of_all(CHECK, INITIAL) == (Wish.RERUN,)
    assert set(table.wishes_of_all(CHECK, IN_PLACE)) == {Wish.CHECKPOINT, Wish.FAIL, Wish.CONTINUE}
    assert Wish.RESTART_AGAIN in table.wishes_of_all(CHECK, FROM_CHECKPOINT)
    for state in (BEFORE, WILL, AGAIN):
        assert table.wishes_of_all(CHECK, state) == ()
    for state in RerunState:
        assert table.wishes_of_all(OFF, state) == ()


@pytest.mark.parametrize(
    ("state", "expected", "says"),
    [
        (BEFORE, (False, False, 0), ""),
        (INITIAL, (False, False, 0), ""),
        (
            IN_PLACE,
            (False, True, 17),
            "Exiting now. The job can be resumed from a previous checkpoint",
        ),
        (
            WILL,
            (True, True, 16),
            (
                "Saving a checkpoint and exiting now. Please resume the job from the checkpoint to "
                "rerun the last iteration and establish a diagnostic"
            ),
        ),
        (
            FROM_CHECKPOINT,
            (False, True, 17),
            (
                "Exiting now. A checkpoint at the last iteration already exists if further "
                "examination is needed"
            ),
        ),
        (
            AGAIN,
            (False, True, 16),
            (
                "Exiting now. Please resume the job from the same checkpoint to rerun the last "
                "iteration and establish a diagnostic"
            ),
        ),
    ],
)
def test_leaving(state, expected, says):
    found = table.leave(CHECK, state)
    assert (found.checkpoint, found.exit, found.code) == expected
    assert found.say == says
    for mode in (OFF, STATS):
        assert table.leave(mode, state) == table.STAY


def test_exit_codes():
    assert table.EXIT_CODE_RESUME_TO_DISAMBIGUATE == 16
    assert table.EXIT_CODE_FAILED_ON_RESULT_VALIDATION == 17


@pytest.mark.parametrize(
    ("mode", "state", "first", "pending", "same", "expected"),
    [
        (OFF, INITIAL, False, False, False, Question.ODD),
        (OFF, BEFORE, True, False, False, Question.ODD),
        (CHECK, INITIAL, False, False, False, Question.ODD),
        (CHECK, INITIAL, True, False, False, Question.NOTHING),
        (CHECK, INITIAL, False, True, False, Question.NOTHING),
        (CHECK, BEFORE, False, False, False, Question.NOTHING),
        (CHECK, IN_PLACE, False, True, True, Question.DIFFERENT),
        (CHECK, IN_PLACE, False, True, False, Question.USABLE),
        (CHECK, FROM_CHECKPOINT, True, True, True, Question.DIFFERENT),
        (CHECK, FROM_CHECKPOINT, True, False, False, Question.USABLE),
    ],
)
def test_what_a_check_asks(mode, state, first, pending, same, expected):
    found = table.question(mode, state, first=first, pending=pending, same_call=same)
    assert found is expected


STATUS, WAS = RerunValidationStatus, RerunDiagnostic


@pytest.mark.parametrize(
    ("state", "different", "same_slot", "fatal", "wish", "status", "diagnostic"),
    [
        (
            IN_PLACE,
            True,
            False,
            True,
            Wish.FAIL,
            STATUS.FIRST_RERUN_NOT_REPRODUCIBLE,
            WAS.TRANSIENT_ERROR,
        ),
        (
            IN_PLACE,
            True,
            False,
            False,
            Wish.CONTINUE,
            STATUS.FIRST_RERUN_NOT_REPRODUCIBLE,
            WAS.TRANSIENT_ERROR,
        ),
        (IN_PLACE, False, False, True, Wish.CHECKPOINT, STATUS.FIRST_RERUN_REPRODUCIBLE, None),
        (IN_PLACE, False, False, False, Wish.CONTINUE, STATUS.FIRST_RERUN_REPRODUCIBLE, None),
        (FROM_CHECKPOINT, True, True, True, Wish.RESTART_AGAIN, None, None),
        (FROM_CHECKPOINT, False, True, False, Wish.RESTART_AGAIN, None, None),
        (
            FROM_CHECKPOINT,
            True,
            False,
            True,
            Wish.FAIL,
            STATUS.SECOND_RERUN_NOT_REPRODUCIBLE,
            WAS.PERSISTENT_ERROR,
        ),
        (
            FROM_CHECKPOINT,
            True,
            False,
            False,
            Wish.CONTINUE,
            STATUS.SECOND_RERUN_NOT_REPRODUCIBLE,
            WAS.PERSISTENT_ERROR,
        ),
        (
            FROM_CHECKPOINT,
            False,
            False,
            True,
            Wish.FAIL,
            STATUS.SECOND_RERUN_REPRODUCIBLE,
            WAS.CORRECT_RESULT,
        ),
        (
            FROM_CHECKPOINT,
            False,
            False,
            False,
            Wish.CONTINUE,
            STATUS.SECOND_RERUN_REPRODUCIBLE,
            WAS.CORRECT_RESULT,
        ),
    ],
)
def test_an_opinion(state, different, same_slot, fatal, wish, status, diagnostic):
    found = table.opinion(state, different=different, fatal=fatal, same_slot=same_slot)
    assert (found.wish, found.status, found.diagnostic) == (wish, status, diagnostic)


def test_every_state_has_a_turn_for_any_wishes():
    for mode, state in itertools.product(RerunMode, RerunState):
        for some in itertools.chain.from_iterable(
            itertools.combinations(Wish, size) for size in range(len(Wish) + 1)
        ):
            table.next_turn(mode, state, some)


def test_only_states_from_which_a_process_can_go_on_are_saved():
    saved = {state: table.saved_state(state) for state in RerunState}
    assert saved == {
        BEFORE: BEFORE,
        INITIAL: BEFORE,
        IN_PLACE: BEFORE,
        WILL: WILL,
        FROM_CHECKPOINT: WILL,
        AGAIN: WILL,
    }


def test_names_of_modes():
    assert RerunMode("report_stats") is RerunMode.REPORT_DETERMINISM_STATS
    assert RerunMode("report_determinism_stats") is RerunMode.REPORT_DETERMINISM_STATS
    with pytest.raises(ValueError, match="sometimes"):
        RerunMode("sometimes")
