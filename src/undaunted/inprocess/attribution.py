"""Why an iteration was interrupted."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from undaunted.inprocess.utils import format_rank_set

if TYPE_CHECKING:
    from collections.abc import Iterable


class Interruption(enum.Enum):
    """What has happened to a rank. Their names are the kinds of `core.messages.Reason`."""

    EXCEPTION = enum.auto()  # the function has raised, or what runs before it
    BASE_EXCEPTION = enum.auto()  # the rank leaves: abort, exit, health check
    SOFT_TIMEOUT = enum.auto()  # no progress; it is restarted
    HARD_TIMEOUT = enum.auto()  # no progress; its process was ended
    TERMINATED = enum.auto()  # its process is gone
    UNRESPONSIVE = enum.auto()  # its node is silent
    MONITOR_PROCESS_EXCEPTION = enum.auto()  # what watches it has failed


@dataclasses.dataclass(frozen=True)
class InterruptionRecord:
    """What has happened to which rank."""

    rank: int
    interruption: Interruption


def format_interruption_records(records: Iterable[InterruptionRecord]) -> str:
    """Say for each kind which ranks it has affected, in the order in which kinds came first.

    For example ``Interruption.TERMINATED affecting ranks {1, 3}``; "no interruption" for none.
    """
    ranks: dict[Interruption, set[int]] = {}
    for record in records:
        ranks.setdefault(record.interruption, set()).add(record.rank)
    parts = (f"{kind} affecting ranks {format_rank_set(which)}" for kind, which in ranks.items())
    return ", ".join(parts) or "no interruption"
