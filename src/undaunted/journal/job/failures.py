"""The first failure of a round, its node and time, from the journals of all its nodes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec.structs import replace

from undaunted.journal import events as e
from undaunted.journal.goodput import RoundContext, failure_of
from undaunted.journal.job.values import Failure
from undaunted.journal.words import words_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from undaunted.journal.job.launches import Launch, World
    from undaunted.journal.launch import RoundState

_NS = 1_000_000_000
_E = TypeVar("_E", bound=e.Event)


class RoundFailure(NamedTuple):
    """The failure of a round; moments are on the axis of the job.

    Attributes:
        failure: what ended it first.
        happened_ns: when, or when it was noticed, if that is unknown; for a hang: when its limit
            was passed. None if no node tells.
        broke_ns: when work ended: for a hang, the last sign of life; None as above.
        noticed_ns: when it was noticed first.
        judged_ns: when what was gathered had been judged, None if nothing was.
    """

    failure: Failure
    happened_ns: int | None = None
    broke_ns: int | None = None
    noticed_ns: int | None = None
    judged_ns: int | None = None

    def context(self, launch: Launch, done: int) -> RoundContext:
        """Return what a launch cannot know of the round, by its own clock."""
        return RoundContext(
            done,
            *(
                None if moment is None else moment - launch.offset_ns
                for moment in (self.broke_ns, self.noticed_ns, self.judged_ns)
            ),
        )


def failure_of_round(
    world: World, *, following: World | None, nodes: Collection[str] = ()
) -> RoundFailure | None:
    """Return how a round failed, None if it did not.

    Args:
        world: the round on all its nodes.
        following: the round after it, None if there was none.
        nodes: further ones that have a journal.
    """
    followed = following is not None
    blamed = _blamed(world, following)
    detected = [one for one in world.launches if _in_time(one, world, e.FailureDetected, following)]
    if (paused := _paused_before_failure(world, detected, blamed)) is not None:
        detected.remove(paused)
        if blamed is None:
            return _lost_while_paused(paused, world)
    if not detected:
        return _lost(world, blamed, followed=followed, nodes=nodes)
    culprit = next((one for one in detected if blamed and one.node == blamed.node), None)
    breaks = [
        (one, found) for one in detected if (found := failure_of(_of(one, world))) is not None
    ]
    judged = [one.on_axis(each.judged_ns) for one, each in breaks if each.judged_ns is not None]
    if blamed is not None and culprit is None:
        failure = _without_detection(world, blamed, nodes)
    else:
        first = culprit or min(detected, key=lambda one: _happened(one, world))
        failure = _as_judged(_failure(first, world), blamed)
    return RoundFailure(
        failure=failure,
        happened_ns=min(_happened(one, world) for one in detected),
        broke_ns=min(one.on_axis(each.broke_ns) for one, each in breaks),
        noticed_ns=min(one.on_axis(each.noticed_ns) for one, each in breaks),
        judged_ns=max(judged, default=None),
    )


def _of(launch: Launch, world: World) -> RoundState:
    return launch.state.rounds[world.number]


def _blamed(world: World, following: World | None) -> e.RoundBlamed | None:
    told = (_in_time(launch, world, e.RoundBlamed, following) for launch in world.launches)
    return next((one for one in told if one is not None), None)


def _in_time(launch: Launch, world: World, kind: type[_E], following: World | None) -> _E | None:
    """Return what a launch tells of a round, None if the job had gone on without this node by then.

    A leader that stood still may judge a round that another leader has ended.
    """
    found = _of(launch, world).first(kind)
    if found is None or following is None or launch in following.launches:
        return found
    return found if launch.on_axis(found.t) <= following.began else None


def _paused_before_failure(
    world: World, detected: Iterable[Launch], blamed: e.RoundBlamed | None
) -> Launch | None:
    """Return the launch that has seen a failure only after the others had stopped without it.

    It stood still, and what its ranks met then has followed from that.
    """
    for one in detected:
        noticed_ns = one.on_axis(_of(one, world).time_of(e.FailureDetected) or 0)
        others = [other for other in world.launches if other is not one]
        if blamed is not None:
            told = [_time(other, world, e.RoundBlamed) for other in others]
            if blamed.node == one.node and any(t is not None and t < noticed_ns for t in told):
                return one
        elif (pause := _pause(one, world)) is not None:
            stopped = [_time(other, world, e.StopRequested) for other in others]
            if any(t is not None and pause[0] < t < noticed_ns for t in stopped):
                return one
    return None


def _pause(launch: Launch, world: World) -> tuple[int, e.AgentPaused] | None:
    """Return when a node began to stand still in the round, and the event after it."""
    for event in _of(launch, world).pauses:
        return launch.on_axis(event.t) - round(event.seconds * _NS), event
    return None


def _lost_while_paused(launch: Launch, world: World) -> RoundFailure:
    pause = _pause(launch, world)
    assert pause is not None
    began_ns, event = pause
    failure = Failure(
        kind="lost", node=launch.node, line=f"node {launch.node}: {_pause_in_words(event)}"
    )
    ends = (_time(one, world, e.StopRequested) for one in world.launches)
    noticed_ns = min((t for t in ends if t is not None and t > began_ns), default=began_ns)
    steps = _of(launch, world).progress  # its ranks may have worked on
    worked_ns = launch.on_axis(steps[-1].last_ns) if steps else began_ns
    return RoundFailure(failure, began_ns, min(max(began_ns, worked_ns), noticed_ns), noticed_ns)


def _pause_in_words(event: e.AgentPaused) -> str:
    return f"its agent, or its machine, stood still for {event.seconds:.1f} s"


def _stopped_while_paused(world: World) -> Launch | None:
    """Return a launch that stood still and was told to stop, though the job had not decided to."""
    for one in world.launches:
        pause, stopped = _pause(one, world), _time(one, world, e.StopRequested)
        decided = _time(one, world, e.Decision)
        undecided = decided is None or (stopped is not None and decided > stopped)
        if pause is not None and stopped is not None and stopped > pause[0] and undecided:
            return one
    return None


def _time(launch: Launch, world: World, kind: type[e.Event]) -> int | None:
    """Return when something first happened in the round on a node, on the axis of the job."""
    t = _of(launch, world).time_of(kind)
    return None if t is None else launch.on_axis(t)


def _happened(launch: Launch, world: World) -> int:
    one = _of(launch, world)
    noticed = one.time_of(e.FailureDetected)
    assert noticed is not None
    return launch.on_axis(noticed if one.since_ns is None else one.since_ns)


def _failure(launch: Launch, world: World) -> Failure:
    """Return what this node tells of its failure."""
    one = _of(launch, world)
    verdict = one.first(e.Verdict)
    if verdict is not None:
        limit_s = verdict.limit_s if verdict.kind == "hang" else None
        return Failure(
            kind=verdict.kind,
            node=launch.node,
            rank=verdict.rank,
            line=verdict.line,
            limit_ns=None if limit_s is None else round(limit_s * _NS),
        )
    detected = one.first(e.FailureDetected)
    assert detected is not None
    rank = -1 if detected.kind == "hang" else detected.rank
    return Failure(kind=detected.kind, node=launch.node, rank=rank, line=words_of(detected).full)


def _as_judged(failure: Failure, blamed: e.RoundBlamed | None) -> Failure:
    """Return what a node tells of its hang with what all nodes together say of it."""
    if blamed is None or failure.kind != "hang" or not blamed.line:
        return failure
    rank = blamed.ranks[0] if blamed.ranks else failure.rank
    return replace(failure, rank=rank, line=blamed.line)


def _without_detection(world: World, blamed: e.RoundBlamed, nodes: Collection[str]) -> Failure:
    """A node is to blame that tells of no failure: it was lost, or its journal is missing."""
    present = blamed.node in nodes or any(one.node == blamed.node for one in world.launches)
    kind = "lost" if present else "unknown"
    pauses = (_pause(one, world) for one in world.launches if one.node == blamed.node)
    stood = [f"; {_pause_in_words(pause[1])}" for pause in pauses if pause is not None]
    if blamed.paused:  # the leader of that node has noticed it itself
        stood = []
    return Failure(kind=kind, node=blamed.node, line=blamed.line + "".join(stood))


def _lost(
    world: World, blamed: e.RoundBlamed | None, *, followed: bool, nodes: Collection[str]
) -> RoundFailure | None:
    """A round that no node has seen fail: was one of them lost?"""
    decided = _decided(world.launches, world)
    if blamed is not None:
        return RoundFailure(_without_detection(world, blamed, nodes), decided, decided, decided)
    if (stood := _stopped_while_paused(world)) is not None:
        return _lost_while_paused(stood, world)
    workers = [one for one in world.launches if one.ranks(world.number)]  # without spares
    silent = [one for one in workers if world.stopped_on(one) is None and one.state.ended is None]
    if not followed or not silent or len(silent) == len(workers):
        return None
    line = f"node {silent[0].node}: its launcher ended without a word"
    failure = Failure(kind="lost", node=silent[0].node, line=line)
    return RoundFailure(failure, decided, decided, decided)


def _decided(launches: Iterable[Launch], world: World) -> int | None:
    """Return when the round was decided to end, which is when the loss was noticed."""
    told = ((one, _of(one, world).time_of(e.Decision)) for one in launches)
    return min((one.on_axis(t) for one, t in told if t is not None), default=None)
