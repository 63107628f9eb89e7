"""Answers about a running launcher, in the words of `control_socket`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from undaunted.attribution.evidence import place_of, state_in_words
from undaunted.attribution.stacks import users_first
from undaunted.base.text import format_duration
from undaunted.coordinator.lead import register
from undaunted.coordinator.policy.policy import PolicyState
from undaunted.coordinator.protocol import has_committee
from undaunted.fault_tolerance import control_socket as s
from undaunted.fault_tolerance.agent.node import describe_exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.attribution.evidence import RankEvidence
    from undaunted.attribution.hang import RankObservation
    from undaunted.coordinator.lead.follower import Follower
    from undaunted.coordinator.lead.leader import Leader
    from undaunted.coordinator.policy.policy import JobPolicy
    from undaunted.coordinator.protocol import Ledger
    from undaunted.fault_tolerance.agent.processes import Worker
    from undaunted.progress.limits import Limits
    from undaunted.progress.snapshot import PageSnapshot

_NS = 1_000_000_000


class RankNow(NamedTuple):
    """A rank at one moment."""

    rank: int
    worker: Worker
    page: PageSnapshot
    limits: Limits


# --- the job --------------------------------------------------------------------------------------


def of_policy(policy: JobPolicy, node: str, pause_left_s: float | None) -> s.JobStatus:
    """Return the state of a job of this node only, whose timer of pauses runs for so long."""
    ranks = [list(range(each.first_rank, each.first_rank + each.slots)) for each in policy.places]
    return s.JobStatus(
        role="alone",
        state=policy.state.name.lower(),
        then=_then(policy),
        pause_left_s=_pause_left_s(policy, pause_left_s),
        leader=node,
        round=policy.round,
        restarts_used=policy.restarts_used,
        restarts_left=policy.restarts_left,
        members=[s.MemberStatus(node, each) for each in ranks],
        spares=[],
    )


def of_leader(leader: Leader, now_ns: int, pause_left_s: float | None) -> s.JobStatus:
    """Return what the leader of a job knows; see `of_policy`."""
    ledger, policy, lease_s = leader.ledger, leader.policy, leader.config.lease_s
    left = {
        node: round(lease_s - (now_ns - at_ns) / _NS, 3) for node, at_ns in leader.heard().items()
    }
    members = {seat.node for seat in ledger.table}
    return s.JobStatus(
        role="leader",
        state=f"{leader.state.name.lower()}, {policy.state.name.lower()}",
        then=_then(policy),
        pause_left_s=_pause_left_s(policy, pause_left_s),
        leader=leader.config.node or s.COORDINATOR,
        leader_address=leader.config.address,
        epoch=leader.epoch,
        round=policy.round,
        restarts_used=policy.restarts_used,
        restarts_left=policy.restarts_left,
        lease_s=lease_s,
        members=_members(ledger, left),
        spares=[node for node in policy.roster.here if node not in members],
        excluded=dict(policy.roster.excluded),
    )


def of_follower(follower: Follower, now_ns: int) -> s.JobStatus:
    """Return what the node of a job knows that another one leads."""
    ledger, left_s = follower.knows.told, follower.lease_left_s(now_ns)
    return s.JobStatus(
        role="follower",
        state=follower.state.name.lower(),
        leader="" if ledger is None else ledger.leader or s.COORDINATOR,
        leader_address=follower.leader,
        epoch=follower.knows.epoch,
        round=-1 if ledger is None else ledger.round,
        restarts_used=None if ledger is None else ledger.restarts_used,
        lease_s=follower.lease_s,
        lease_left_s=None if left_s is None else round(left_s, 3),
        members=[] if ledger is None else _members(ledger, {}),
        excluded={} if ledger is None else dict(ledger.excluded),
    )


def _then(policy: JobPolicy) -> str:
    if policy.state is not PolicyState.STOPPING:
        return ""
    end = policy.last.closing.ending
    return "another round is to follow" if end is None else f"then the job ends: {end.reason}"


def _pause_left_s(policy: JobPolicy, timer_s: float | None) -> float | None:
    """The timer runs on where somebody has ended the pause."""
    return None if timer_s is None or not policy.pausing else round(timer_s, 3)


def _members(ledger: Ledger, left: Mapping[str, float]) -> list[s.MemberStatus]:
    voters = register.members(ledger) if has_committee(ledger) else {}
    return [
        s.MemberStatus(
            seat.node,
            list(range(seat.first_rank, seat.first_rank + seat.slots)),
            register.voter(seat) in voters,
            left.get(seat.node),
        )
        for seat in sorted(ledger.table, key=lambda seat: seat.group_rank)
    ]


# --- ranks ----------------------------------------------------------------------------------------


def rank_status(now: RankNow, now_ns: int) -> s.RankStatus:
    """Return what the page of a rank and its process say."""
    page, worker = now.page, now.worker
    age_s = None if page.heartbeat_ns is None else (now_ns - page.heartbeat_ns) / _NS
    opened = {
        name: round((now_ns - section.open_since_ns) / _NS, 3)
        for name, section in page.sections.items()
        if section.open_since_ns is not None
    }
    return s.RankStatus(
        rank=now.rank,
        local_rank=worker.local_rank,
        pid=worker.pid,
        phase=page.problem or page.phase.name.lower(),
        iteration=page.iteration,
        heartbeat_age_s=None if age_s is None else round(age_s, 3),
        sections=opened,
        ended="" if worker.code is None else describe_exit(worker.code),
    )


def limits_in_force(ranks: Sequence[RankNow]) -> list[s.LimitStatus]:
    """Each limit that ranks are held to; those of ranks that warm up may be others."""
    found: dict[tuple[str, float | None, str], list[int]] = {}
    for now in ranks:
        for name, seconds in _by_name(now.limits):
            source = now.limits.sources.get(name, "default")
            found.setdefault((name, seconds, source), []).append(now.rank)
    return [
        s.LimitStatus(name, seconds, source, held)
        for (name, seconds, source), held in found.items()
    ]


def _by_name(limits: Limits) -> Iterator[tuple[str, float | None]]:
    yield "initial_heartbeat", limits.initial_heartbeat_s
    yield "heartbeat", limits.heartbeat_s
    yield "out_of_section", limits.out_of_section_s
    for name, seconds in limits.sections.items():
        yield f"section:{name}", seconds


def limits_in_words(limits: Mapping[str, float | None]) -> str:
    """Limits for people: ``heartbeat 10 min``."""
    return ", ".join(
        f"{name} {'off' if seconds is None else format_duration(seconds)}"
        for name, seconds in limits.items()
    )


def stacks_of(seen: Sequence[RankEvidence]) -> list[s.RankStacks]:
    """Return what was seen of each rank."""
    most = s.MOST_ANSWERED // 4 // max(1, len(seen))
    return [_stacks(each, most) for each in seen]


def _stacks(each: RankEvidence, most: int) -> s.RankStacks:
    place = place_of(each)
    return s.RankStacks(
        rank=each.rank,
        local_rank=each.local_rank,
        pid=each.pid,
        state=state_in_words(each.state),
        iteration=each.page.iteration,
        frame="" if place is None or place.frame is None else str(place.frame),
        waits_in="" if place is None else place.waits_in,
        stacks=users_first(each.stacks or "")[:most],
        reason=each.reason if each.stacks is None else "",
    )


def recordings_of(seen: Sequence[RankObservation]) -> list[s.RankRecording]:
    """Return what ranks have answered when they were asked for their recordings."""
    return [s.RankRecording(each.rank, each.pid, each.recording, each.deaf) for each in seen]
