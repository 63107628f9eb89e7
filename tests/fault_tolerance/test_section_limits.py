"""Which limits of sections can be calculated, and why others cannot."""

from __future__ import annotations

import pytest

from undaunted.fault_tolerance.section_limits import FaultToleranceState as State
from undaunted.fault_tolerance.section_limits import possible_update

LOADED = "can't update the setup section timeout until persistent checkpoint is loaded"
MORE = "need to see more training iterations to update the step section timeout"
ASYNC = "can't update the checkpointing section timeout with async checkpointing"
SAVED = "checkpointing section is not updated until a checkpoint was saved"
ALL = "the out-of-section timeout won't be updated until all FT sections were seen"
CLOSING = "the out-of-section timeout won't be updated as the FT is not closing yet"


@pytest.mark.parametrize(
    ("state", "closing", "sections", "outside", "why_not"),
    [
        (State(), False, [], False, [LOADED, MORE, SAVED, CLOSING]),
        (State(), True, [], False, [LOADED, MORE, SAVED, ALL]),
        (State(seen_tr_iters_cnt=15), False, [], False, [LOADED, MORE, SAVED, CLOSING]),
        (State(seen_tr_iters_cnt=16), False, ["step"], False, [LOADED, SAVED, CLOSING]),
        (State(is_persistent_chkpt_loaded=True), True, ["setup"], False, [MORE, SAVED, ALL]),
        (State(seen_checkpoints_cnt=1), True, ["checkpointing"], False, [LOADED, MORE, ALL]),
        (
            State(seen_checkpoints_cnt=1, is_async_chkpt_enabled=True),
            True,
            [],
            False,
            [LOADED, MORE, ASYNC, ALL],
        ),
        (
            State(
                is_persistent_chkpt_loaded=True,
                seen_tr_iters_cnt=16,
                seen_checkpoints_cnt=1,
                is_async_chkpt_enabled=True,
            ),
            True,
            ["setup", "step"],
            True,
            [ASYNC],
        ),
        (
            State(is_persistent_chkpt_loaded=True, seen_tr_iters_cnt=16, seen_checkpoints_cnt=1),
            False,
            ["setup", "step", "checkpointing"],
            False,
            [CLOSING],
        ),
    ],
)
def test_what_can_be_calculated(
    state: State,
    closing: bool,
    sections: list[str],
    outside: bool,
    why_not: list[str],
) -> None:
    update = possible_update(state, is_closing_ft=closing, min_iters=16)
    assert update == (sections, outside, why_not)
