"""What the report says of checkpoints: what they have cost, and how often they should be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.journal.tables import percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.journal.checkpoints import Checkpoints
    from undaunted.journal.tables import Line


def checkpoint_lines(of: Checkpoints) -> Iterator[Line]:
    """Yield one line of facts and, where there were failures, one of advice."""
    facts = [f"{of.saved} saved"]
    if of.stall_s is not None:
        facts.append(f"stopped training for {format_duration(of.stall_s)}")
    if of.total_s is not None:
        facts.append(f"committed after {format_duration(of.total_s)}")
    if of.interval_s is not None:
        facts.append(f"one every {format_duration(of.interval_s)}")
    if of.failed:
        facts.append(f"{of.failed} failed")
    if of.loaded:
        took = "" if of.load_s is None else f" in {format_duration(of.load_s)}"
        facts.append(f"{of.loaded} loaded{took}")
    yield [("checkpoints: ", "dim"), (", ".join(facts), "")]
    if of.advice_s is None or of.between_failures_s is None or of.advised_cost is None:
        return
    now = "" if of.present_cost is None else f" (now {percent(of.present_cost)})"
    text = (
        f"with a failure every {format_duration(of.between_failures_s)}, a checkpoint every "
        f"{format_duration(of.advice_s)} costs the least: {percent(of.advised_cost)} of the "
        f"time{now} for stops, steps done again and loads (Young/Daly)"
    )
    yield [("advice:   ", "dim"), (text, "")]
