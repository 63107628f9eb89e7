"""The verdict about each fault of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.chaos.trials.checker.values import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.chaos.trials.history import History
    from undaunted.chaos.trials.plan import Planned


def judge(
    reference: History,  # noqa: ARG001
    history: History,
    planned: Sequence[Planned],
) -> list[Verdict]:
    """Say what became of each fault of one run.

    Args:
        reference: of the undisturbed run.
        history: of the run.
        planned: the faults of this run, by ascending iteration.

    Returns:
        One verdict per fault, in the order of ``planned``.
    """
    skipped = history.outcome.skipped
    return [
        Verdict(fault=fault, colour="skipped", skipped=skipped.get(fault.id, "not judged"))
        for fault in planned
    ]
