"""Limits of a loop's sections ``setup``, ``step`` and ``checkpointing``: when to calculate them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from undaunted.fault_tolerance.rank_monitor_client import RankMonitorClient

SETUP, STEP, CHECKPOINTING = "setup", "step", "checkpointing"


@dataclass
class FaultToleranceState:
    """The events so far.

    Attributes:
        ft_state_path: where calculated limits are kept; None = not known yet.
        is_persistent_chkpt_loaded: the last checkpoint that was loaded came from a disk.
        is_async_chkpt_enabled: checkpoints are written behind the back of the loop.
        is_calculating_timeouts: limits are calculated.
        is_setup_section_open: section ``setup`` is open.
        seen_checkpoints_cnt: how many checkpoints were saved.
        seen_tr_iters_cnt: how many iterations were trained.
        curr_eval_iter_idx: how many iterations this evaluation has had.
    """

    ft_state_path: str | None = None
    is_persistent_chkpt_loaded: bool = False
    is_async_chkpt_enabled: bool = False
    is_calculating_timeouts: bool = False
    is_setup_section_open: bool = False
    seen_checkpoints_cnt: int = 0
    seen_tr_iters_cnt: int = 0
    curr_eval_iter_idx: int = 0


class Update(NamedTuple):
    """The limits that can be calculated, and why others cannot."""

    sections: list[str]
    out_of_section: bool
    why_not: list[str]

    def calculate(self, client: RankMonitorClient) -> bool:
        """Calculate them, on all ranks; return whether a limit has changed."""
        return bool(self.sections) and client.calculate_and_set_section_timeouts(
            selected_sections=self.sections,
            calc_out_of_section=self.out_of_section,
            skip_if_not_ready=True,
        )


def possible_update(state: FaultToleranceState, *, is_closing_ft: bool, min_iters: int) -> Update:
    """Return which limits the events so far are enough for.

    Args:
        state: the events so far.
        is_closing_ft: the loop has ended.
        min_iters: iterations that a limit of ``step`` needs.
    """
    saved = state.seen_checkpoints_cnt > 0
    rules = (
        (
            SETUP,
            state.is_persistent_chkpt_loaded,
            "can't update the setup section timeout until persistent checkpoint is loaded",
        ),
        (
            STEP,
            state.seen_tr_iters_cnt >= min_iters,
            "need to see more training iterations to update the step section timeout",
        ),
        (
            CHECKPOINTING,
            saved and not state.is_async_chkpt_enabled,
            "can't update the checkpointing section timeout with async checkpointing"
            if saved
            else "checkpointing section is not updated until a checkpoint was saved",
        ),
    )
    sections = [name for name, holds, _ in rules if holds]
    why_not = [text for _, holds, text in rules if not holds]
    all_seen = {SETUP, STEP} <= set(sections) and saved
    if not is_closing_ft:
        why_not.append("the out-of-section timeout won't be updated as the FT is not closing yet")
    elif not all_seen:
        why_not.append(
            "the out-of-section timeout won't be updated until all FT sections were seen"
        )
    return Update(sections, is_closing_ft and all_seen, why_not)
