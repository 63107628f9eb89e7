"""The reasons for the interruption of an iteration."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from undaunted.inprocess.utils import format_rank_set

if TYPE_CHECKING:
    from collections.abc import Iterable


class Interruption(enum.Enum):
    """The kind of a rank's failure. The names are the kinds of `core.messages.Reason`."""

    EXCEPTION = enum.auto()  # the function, `initialize` or the health check has raised
    BASE_EXCEPTION = enum.auto()  # the rank leaves: abort, exit, health check after a fault
    SOFT_TIMEOUT = enum.auto()  # no progress; the rank is restarted
    HARD_TIMEOUT = enum.auto()  # no progress; its process was ended
    TERMINATED = enum.auto()  # its process is gone
    UNRESPONSIVE = enum.auto()  # it does not answer, or its node is silent
    MONITOR_PROCESS_EXCEPTION = enum.auto()  # its guard has failed


@dataclasses.dataclass(frozen=True)
class InterruptionRecord:
    """A rank and the kind of its failure."""

    rank: int
    interruption: Interruption


def format_interruption_records(records: Iterable[InterruptionRecord]) -> str:
    """Return the affected ranks of each kind, with kinds in the order of their first rank.

    For example ``Interruption.TERMINATED affecting ranks {1, 3}``; "no interruption" for none.
    """
    ranks: dict[Interruption, set[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, set()).add(record.rank)
    parts = (f"{kind} affecting ranks {format_rank_set(which)}" for kind, which in ranks.items())
    return ", ".join(parts) or "no interruption"
