"""Bugs to plant: each takes out one rule of in-process restart, as a careless change might."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.inprocess import cluster
from simulator.inprocess.setup import Setup
from undaunted.inprocess.core.call import Call
from undaunted.inprocess.core.controller import Takeover
from undaunted.inprocess.core.guard import RankGuard
from undaunted.inprocess.guard import links

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

MOVES = Setup(4, per_node=2, moves=True)


@dataclass(frozen=True)
class Bug:
    """A bug, the job and faults that bring it out, and the invariant that finds it."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    finds: str
    setup: Setup
    kinds: tuple[str, ...]


def nobody_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The record is made when the first half of the members has joined."""
    original = Call._record_if_all_joined

    def early(call: Call, now: int) -> Any:
        if call.epoch > 0 and len(call.joins) * 2 >= len(call.members):
            call.members &= set(call.joins)
        return original(call, now)

    patch.setattr(Call, "_record_if_all_joined", early)


def a_new_controller_takes_any_record(patch: pytest.MonkeyPatch) -> None:
    """It goes on from the lowest record instead of the highest."""

    def lowest(takeover: Takeover) -> Any:
        records = [each.record for each in takeover.resumes.values() if each.record is not None]
        return min(records, key=lambda record: record.epoch, default=None)

    patch.setattr(Takeover, "record", property(lowest))


def what_was_said_without_a_link_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = RankGuard._link_up

    def forgetful(guard: RankGuard) -> Any:
        if guard.call is not None:
            guard.call.said.clear()
        return original(guard)

    patch.setattr(RankGuard, "_link_up", forgetful)


def swallowed_stops_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    original = RankGuard._pass

    def trusting(guard: RankGuard, message: Any, now: int) -> Any:
        commands = original(guard, message, now)
        guard._owed = None
        return commands

    patch.setattr(RankGuard, "_pass", trusting)


def a_reset_counts_as_the_end_of_a_guard(patch: pytest.MonkeyPatch) -> None:
    def short(unreachable_s: float, *, in_order: bool, back: bool = False) -> float:
        del unreachable_s, in_order, back
        return links.GRACE_S

    patch.setattr(cluster, "patience_s", short)


BUGS = [
    Bug(
        "nobody is waited for",
        nobody_is_waited_for,
        "no rank in two epochs",
        Setup(4),
        ("raise", "kill", "slow"),
    ),
    Bug(
        "a new controller takes any record",
        a_new_controller_takes_any_record,
        "no healthy rank is lost",
        MOVES,
        ("raise", "move"),
    ),
    Bug(
        "what was said without a link is forgotten",
        what_was_said_without_a_link_is_forgotten,
        "progress after the last fault",
        MOVES,
        ("move", "reset"),
    ),
    Bug(
        "swallowed stops are not noticed",
        swallowed_stops_are_not_noticed,
        "no healthy rank is lost",
        Setup(4),
        ("swallow", "raise"),
    ),
    Bug(
        "a reset counts as the end of a guard",
        a_reset_counts_as_the_end_of_a_guard,
        "no rank in two epochs",
        Setup(4),
        ("reset", "cut"),
    ),
]
