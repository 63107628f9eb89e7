"""What a file about one round says: who takes part, and since when. Pure.

The fields are those of NVRx, where a round is a cycle; see docs/cycle-info.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.text import format_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from undaunted.coordinator.protocol import Ledger, Seat

_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)


class CycleInfo(msgspec.Struct, kw_only=True):
    """The content of the file; see docs/cycle-info.md."""

    job_id: str
    attempt_index: int
    cycle_number: int
    cycle_start_time: str | None = None
    cycle_end_time: str | None = None
    cycle_log_file: str = ""
    active_nodes: str = ""
    standby_nodes: str = ""
    generation: int = 0
    active_ranks: str = ""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A round as its leader sees it.

    Attributes:
        number: of the round.
        epoch: of the leader.
        table: who takes part.
        spares: nodes that were there and did not, when it began.
        started_s, ended_s: seconds since 1970; None = before this leader, and not yet.
    """

    number: int
    epoch: int
    table: tuple[Seat, ...]
    spares: tuple[str, ...] = ()
    started_s: float | None = None
    ended_s: float | None = None


class CycleTracker:
    """Tells from the ledgers of one leader when a round begins and ends.

    Args:
        ledger: the leader's first; a round that runs in it has begun at a time nobody here knows.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._cycle = _cycle(ledger) if ledger.running else None

    @property
    def running(self) -> Cycle | None:
        """The round that runs, or has ended last; None = there has been none."""
        return self._cycle

    def take(
        self, ledger: Ledger, spares: Callable[[], Iterable[str]], wall_s: float
    ) -> list[Cycle]:
        """Return what has changed, the older round first.

        Args:
            ledger: as it is now.
            spares: names of nodes that are there and take no part; called when a round begins.
            wall_s: seconds since 1970.
        """
        changed: list[Cycle] = []
        last = self._cycle
        if (
            last is not None
            and last.ended_s is None
            and not (ledger.running and ledger.round == last.number)
        ):
            last = replace(last, ended_s=wall_s)
            changed.append(last)
        if ledger.running and (last is None or last.ended_s is not None):
            last = replace(_cycle(ledger), spares=tuple(spares()), started_s=wall_s)
            changed.append(last)
        self._cycle = last
        return changed


def content(
    cycle: Cycle, *, job_id: str, attempt: int, log_file: str, before: CycleInfo | None = None
) -> CycleInfo:
    """Return what the file says about ``cycle``.

    Args:
        cycle: the round.
        job_id: of the job.
        attempt: how often the scheduler has started the job again.
        log_file: path of the log of the round, "" = there is none.
        before: what an earlier leader has written about it; it knows how the round began.
    """
    seats = cycle.table
    ranks = (rank for s in seats for rank in range(s.first_rank, s.first_rank + s.slots))
    info = CycleInfo(
        job_id=job_id,
        attempt_index=attempt,
        cycle_number=cycle.number,
        cycle_start_time=None if cycle.started_s is None else iso_time(cycle.started_s),
        cycle_end_time=None if cycle.ended_s is None else iso_time(cycle.ended_s),
        cycle_log_file=log_file,
        active_nodes=node_ranges(seat.node for seat in seats),
        standby_nodes=node_ranges(cycle.spares),
        generation=cycle.epoch,
        active_ranks=format_ranks(ranks),
    )
    if before is not None and cycle.started_s is None and before.cycle_number == cycle.number:
        info.cycle_start_time = before.cycle_start_time
        info.standby_nodes = before.standby_nodes
    return info


def iso_time(wall_s: float) -> str:
    """Return seconds since 1970 as ``2026-11-21T07:02:09.166Z``."""
    when = datetime.fromtimestamp(wall_s, timezone.utc)
    return when.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def node_ranges(names: Iterable[str]) -> str:
    """Return node names as Slurm writes them: ``login,node[1-3,07]``; "" for none."""
    numbers: dict[str, list[str]] = {}
    single: list[str] = []
    for name in sorted(set(names)):
        if found := _NUMBERED.fullmatch(name):
            numbers.setdefault(found[1], []).append(found[2])
        else:
            single.append(name)
    texts = [(name, name) for name in single]
    texts += [(prefix, _bracketed(prefix, digits)) for prefix, digits in numbers.items()]
    return ",".join(text for _, text in sorted(texts))


def _bracketed(prefix: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0]
    ranges: list[tuple[str, str]] = []
    for digits in sorted(numbers, key=lambda each: (int(each), len(each))):
        if ranges and _follows(ranges[-1][1], digits):
            ranges[-1] = (ranges[-1][0], digits)
        else:
            ranges.append((digits, digits))
    return f"{prefix}[{','.join(low if low == high else f'{low}-{high}' for low, high in ranges)}]"


def _follows(last: str, digits: str) -> bool:
    """Whether counting on from ``last``, with its zeros in front, gives ``digits``."""
    return digits == str(int(last) + 1).zfill(len(last))


def _cycle(ledger: Ledger) -> Cycle:
    return Cycle(ledger.round, ledger.epoch, ledger.table)
