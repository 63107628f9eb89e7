"""What the job policy remembers of rounds that are over, and of what people have ordered."""

from __future__ import annotations

import msgspec

from undaunted.coordinator.core.messages import NewLimits, StopOrdered  # noqa: TC001 - decoded


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """All that whoever leads next has to know; fields of the ledger have the same names.

    Attributes:
        restarts_used: of the job's budget.
        excluded: node to reason.
        reached: highest iteration reached, None = unknown.
        stalled: one text per round in a row without progress.
        history: of the rounds that are over, see `core.advice`.
        failure: of the last round, see `core.advice`.
        slow: ranks whose node was left out since they were slow.
        turned: by how many places ranks are on other slots than in the first round.
        limits: that somebody has ordered for all ranks, None = nobody has.
        stop: somebody has ordered the end of the job, None = nobody has.
    """

    restarts_used: int = 0
    excluded: dict[str, str] = {}
    reached: int | None = None
    stalled: tuple[str, ...] = ()
    history: bytes = b""
    failure: str = ""
    slow: tuple[int, ...] = ()
    turned: int = 0
    limits: NewLimits | None = None
    stop: StopOrdered | None = None


NOTHING = Memory()
