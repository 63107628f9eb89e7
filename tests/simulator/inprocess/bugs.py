"""Bugs to plant: each takes out one rule of in-process restart, as a careless change might."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from simulator.inprocess.setup import Setup
from undaunted.inprocess.core import guard, links
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.call import Call
from undaunted.inprocess.core.controller import Takeover
from undaunted.inprocess.core.guard import RankCall, RankGuard
from undaunted.inprocess.core.links import Links
from undaunted.inprocess.guard import host

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

MOVES = Setup(4, per_node=2, moves=True)
CUT_OFF = Setup(4, limits=m.Limits(heartbeat_timeout=6.0))


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


def late_ranks_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The record is made when they are dismissed, not when they have left."""
    original = Call._barrier_timeout

    def hasty(call: Call) -> Any:
        commands = original(call)
        reasons = [m.Reason("UNRESPONSIVE", job_rank) for job_rank in sorted(call._late)]
        return commands + call.lose(reasons, call.began_ns)

    patch.setattr(Call, "_barrier_timeout", hasty)


def a_new_controller_takes_any_record(patch: pytest.MonkeyPatch) -> None:
    """It goes on from the lowest record instead of the highest."""

    def lowest(takeover: Takeover) -> Any:
        records = [each.record for each in takeover.resumes.values() if each.record is not None]
        return min(records, key=lambda record: record.epoch, default=None)

    patch.setattr(Takeover, "record", property(lowest))


def what_was_said_without_a_link_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = RankGuard._link_up

    def forgetful(guard: RankGuard, now: int) -> Any:
        if guard.call is not None:
            guard.call.said.clear()
        return original(guard, now)

    patch.setattr(RankGuard, "_link_up", forgetful)


def swallowed_stops_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    original = RankGuard._pass

    def trusting(guard: RankGuard, message: Any, now: int) -> Any:
        commands = original(guard, message, now)
        guard._owed = None
        return commands

    patch.setattr(RankGuard, "_pass", trusting)


def a_reset_counts_as_the_end_of_a_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host, "reconnect_grace_s", lambda *_, **__: links.GRACE_S)


def a_guard_that_is_cut_off_lets_its_rank_go_on(patch: pytest.MonkeyPatch) -> None:
    """It tells the rank to leave, and waits for the hard timeout."""
    original = guard.judge

    def patient(*page: Any, dismissed: bool, **given: Any) -> Any:
        del dismissed
        return original(*page, **given)

    patch.setattr(guard, "judge", patient)


def guards_that_are_cut_off_are_given_up_soon(patch: pytest.MonkeyPatch) -> None:
    """They have told their ranks to leave by then, and have not ended those that stay."""

    def hasty(limits: m.Limits, _notices_s: float | None = None) -> float:
        return limits.silence_s + limits.heartbeat_timeout + 1.0

    patch.setattr(m.Limits, "unreachable_s", hasty)


def limits_begin_again_with_a_new_controller(patch: pytest.MonkeyPatch) -> None:
    original = RankCall.resume
    patch.setattr(RankCall, "resume", lambda call, _waited_s: original(call))


def late_words_count(patch: pytest.MonkeyPatch) -> None:
    """What comes over a connection that a guard has given up."""
    patch.setattr(Links, "hears", lambda *_: True)


BUGS = [
    Bug(
        "nobody is waited for",
        nobody_is_waited_for,
        "no rank in two epochs",
        Setup(4),
        ("raise", "kill", "slow"),
    ),
    Bug(
        "late ranks are forgotten",
        late_ranks_are_forgotten,
        "no rank in two epochs",
        Setup(4, longest_ms=30_000, limits=m.Limits(barrier_timeout=3.0)),
        ("swallow", "raise"),
    ),
    Bug(
        "a new controller takes any record",
        a_new_controller_takes_any_record,
        "the same record everywhere",
        replace(MOVES, ranks=8),
        ("raise", "move", "cut"),
    ),
    Bug(
        "what was said without a link is forgotten",
        what_was_said_without_a_link_is_forgotten,
        "every wait ends",
        MOVES,
        ("move", "reset"),
    ),
    Bug(
        "swallowed stops are not noticed",
        swallowed_stops_are_not_noticed,
        "no healthy rank is lost",
        Setup(4),
        ("swallow", "raise", "stop"),
    ),
    Bug(
        "limits begin again with a new controller",
        limits_begin_again_with_a_new_controller,
        "every wait ends",
        Setup(
            2,
            moves=True,
            longest_ms=60_000,
            limits=m.Limits(
                heartbeat_timeout=2.0, completion_timeout=20.0, termination_grace_time=0.0
            ),
        ),
        ("move",),
    ),
    Bug(
        "a guard that is cut off lets its rank go on",
        a_guard_that_is_cut_off_lets_its_rank_go_on,
        "no rank in two epochs",
        CUT_OFF,
        ("stick", "cut", "raise"),
    ),
    Bug(
        "guards that are cut off are given up soon",
        guards_that_are_cut_off_are_given_up_soon,
        "no rank in two epochs",
        CUT_OFF,
        ("stick", "cut", "raise"),
    ),
    Bug(
        "late words count",
        late_words_count,
        "every wait ends",
        MOVES,
        ("cut", "stop-guard", "raise"),
    ),
    Bug(
        "a reset counts as the end of a guard",
        a_reset_counts_as_the_end_of_a_guard,
        "no rank in two epochs",
        Setup(4),
        ("reset", "cut"),
    ),
]
