"""Folds the journal of one launch on one node, event by event. No clock, no files.

`LaunchState` is the only reader of single events that finds out what a launch and its rounds were:
`goodput` says of a state where the time went, `summary` how each restart went, and the report, the
page, the metrics and ``undaunted top`` show that. So there is one definition of each figure, for
journals that are complete and for those that are still being written.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from undaunted.journal import events as e
from undaunted.journal.checkpoints import EVENT as CHECKPOINT
from undaunted.journal.checkpoints import numbers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MOST_KEPT = 50_000
"""A thousand restarts of eight ranks: how much a state keeps that lives as long as its job."""

_MOST_REMARKS = 100  # in such a state
_EMPTY = 8  # entries that a round counts for of which nothing is known
_E = TypeVar("_E", bound=e.Event)

# Of these the first one of a round counts: it says when something began or ended.
_ONCE: frozenset[type[e.Event]] = frozenset((
    e.RoundStarted, e.TemplateReady, e.WorkersSpawned, e.FailureDetected, e.EvidenceCollected,
    e.Verdict, e.Decision, e.StopRequested, e.RoundStopped, e.ControlRequested, e.SignalReceived,
))  # fmt: skip
# These tell of their round only, and are most of a journal.
_OF_ROUNDS = frozenset((e.RankMilestone, e.RankExited, e.WorkersSpawned, e.StopRequested))
# Readers should know of them.
_REMARKS = frozenset((
    e.TemplateLost, e.ImportsLearned, e.AgentPaused, e.EventsLost, e.RoundStopped,
    e.MemoryReclaimed, e.AttributionResult, e.NodeChecked, e.SlowRank, e.Remark,
))  # fmt: skip


class RoundState:
    """One round as one node recorded it. All moments are CLOCK_MONOTONIC of the node, nanoseconds.

    Attributes:
        number: of the round.
        last_ns: its latest event.
        since_ns: when the first failure happened; None = there was none, or that is unknown.
        milestones: by name and rank, the first time that a rank passed it.
        passed: by rank, the milestone passed last.
        iterations: with which iterations ranks began to step.
        progress: how far the ranks came, oldest first; in a bounded state what `account` needs.
        iteration: the newest progress, None = there is none.
        last_iteration: the highest iteration begun, None = none is known.
        exits: how processes of ranks ended, in order.
        replaced: by rank, the process that was started in the place of a lost one.
        inprocess: parts of restarts inside the processes, by call, number of the restart and name.
        restarts_inside: such a restart is under way.
        pauses: in which the agent stood still, in order.
        pause: the line about a wait before the next round, "" = there was none.
        done: iterations below this one were completed in the rounds before.
        kept: how many entries this state has.
    """

    def __init__(self, number: int, done: int = 0) -> None:
        self.number = number
        self.last_ns = 0
        self.since_ns: int | None = None
        self.milestones: dict[str, dict[int, int]] = {}
        self.passed: dict[int, e.RankMilestone] = {}
        self.iterations: set[int] = set()
        self.progress: list[e.RoundProgress] = []
        self.iteration: e.RoundProgress | None = None
        self.last_iteration: int | None = None
        self.exits: list[e.RankExited] = []
        self.replaced: dict[int, int] = {}
        self.inprocess: dict[tuple[int, int, str], e.InProcessPhase] = {}
        self.restarts_inside = False
        self.pauses: list[e.AgentPaused] = []
        self.pause = ""
        self.done = done
        self.kept = _EMPTY
        self._earliest_ns = sys.maxsize
        self._latest: dict[str, int] = {}
        self._once: dict[type[e.Event], e.Event] = {}

    def copy(self) -> RoundState:
        """Return one that stays as it is when this one takes more events."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, list, set)):
                setattr(other, name, value.copy())
        other.milestones = {name: ranks.copy() for name, ranks in self.milestones.items()}
        return other

    def first(self, kind: type[_E]) -> _E | None:
        """Return the first event of a kind, None if there is none."""
        return self._once.get(kind)  # type: ignore[return-value]

    def time_of(self, kind: type[e.Event]) -> int | None:
        """Return when the first event of a kind was, None if there is none."""
        event = self._once.get(kind)
        return None if event is None else event.t

    @property
    def began_ns(self) -> int:
        """Return when the round began; its earliest event where the journal lacks its start."""
        started = self._once.get(e.RoundStarted)
        return self._earliest_ns if started is None else started.t

    @property
    def ranks(self) -> list[int]:
        """Global ranks of this node, by local rank; without a start, the ranks that events name."""
        started = self.first(e.RoundStarted)
        if started is not None:
            return started.ranks
        return sorted({*self.passed, *(exited.rank for exited in self.exits)})

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks, by local rank; empty until there are any."""
        spawned = self.first(e.WorkersSpawned)
        pids = list(spawned.pids) if spawned is not None else []
        if self.replaced and len(pids) == len(ranks := self.ranks):
            pids = [self.replaced.get(rank, pid) for rank, pid in zip(ranks, pids, strict=True)]
        return pids

    @property
    def stage(self) -> str:
        """The state of the round: starting, running, failed, stopping or stopped."""
        for kind, stage in (
            (e.RoundStopped, "stopped"),
            (e.StopRequested, "stopping"),
            (e.FailureDetected, "failed"),
            (e.WorkersSpawned, "running"),
        ):
            if kind in self._once:
                return stage
        return "starting"

    def exit_of(self, rank: int) -> e.RankExited | None:
        """Return how the present process of a rank ended, None = it did not."""
        found = next((one for one in reversed(self.exits) if one.rank == rank), None)
        pid = self.replaced.get(rank)
        return None if found is not None and pid is not None and found.pid != pid else found

    def latest(self, milestone: str) -> int | None:
        """Return when the last of those ranks passed a milestone that did; None = none did."""
        return self._latest.get(milestone)

    def all_passed(self, milestone: str) -> int | None:
        """Return when the last rank of the node passed a milestone; None unless all did."""
        started = self.first(e.RoundStarted)
        moments = self.milestones.get(milestone, {})
        if started is None or not started.ranks or not moments.keys() >= set(started.ranks):
            return None
        return max(moments[rank] for rank in started.ranks)

    def take(self, event: e.Event, *, thin: bool) -> None:
        """Take in the next event of the round.

        Args:
            event: any of the round.
            thin: keep of the progress only what `goodput.account` needs.
        """
        t = event.t
        if t > self.last_ns:  # noqa: PLR1730 - a journal has a million events
            self.last_ns = t
        if t < self._earliest_ns:  # noqa: PLR1730
            self._earliest_ns = t
        if (add := _ADD.get(type(event))) is not None:
            add(self, event, thin)

    def _add_milestone(self, event: e.RankMilestone, _thin: bool) -> None:
        name, rank, at_ns = event.name, event.rank, event.at_ns
        moments = self.milestones.get(name)
        if moments is None:
            moments = self.milestones[name] = {}
            self._latest[name] = -1
        if rank not in moments:
            moments[rank] = at_ns
            self.kept += 1
        if at_ns > self._latest[name]:  # noqa: PLR1730
            self._latest[name] = at_ns
        if event.iteration is not None and name == "first_step":
            self.iterations.add(event.iteration)
        self.passed[rank] = event

    def _add_exit(self, event: e.RankExited, _thin: bool) -> None:
        self.exits.append(event)
        self.kept += 1

    def _add_pause(self, event: e.AgentPaused, _thin: bool) -> None:
        self.pauses.append(event)
        self.kept += 1

    def _add_remark(self, event: e.Remark, _thin: bool) -> None:
        if event.pause_s:
            self.pause = event.text

    def _add_first(self, event: e.Event, _thin: bool) -> None:
        if (kind := type(event)) not in self._once:
            self._once[kind] = event
            self.kept += 1

    def _add_failure(self, event: e.FailureDetected, thin: bool) -> None:
        self._add_first(event, thin)
        known = (self.since_ns, event.since_ns)
        self.since_ns = min((moment for moment in known if moment is not None), default=None)

    def _add_judged(self, event: e.RoundBlamed | e.RoundAdvised, _thin: bool) -> None:
        if event.number == self.number:
            self._once[type(event)] = event  # of a hang before it, a round may have gone on

    def _add_progress(self, event: e.RoundProgress, thin: bool) -> None:
        self.iteration = event
        last = event.last_iteration
        self.last_iteration = max(last, self.last_iteration or last)
        self.iterations.add(event.first_iteration)
        if thin:
            self._add_thin(event)
        else:
            self.progress.append(event)
            self.kept += 1

    def _add_thin(self, event: e.RoundProgress) -> None:
        """Keep of a round the first, the last, and the two around what was done before it."""
        seen = self.progress
        below = event.last_iteration < self.done
        above = len(seen) > 1 and min(one.last_iteration for one in seen[-2:]) >= self.done
        if len(seen) > 1 and (below or above):
            seen[-1] = event
        else:
            seen.append(event)
            self.kept += 1

    def _add_replaced(self, event: e.RankReplaced, _thin: bool) -> None:
        self.kept += event.rank not in self.replaced
        self.replaced[event.rank] = event.pid

    def _add_inprocess(self, event: e.InProcessPhase, _thin: bool) -> None:
        key = (event.call, event.epoch, event.phase)
        self.kept += key not in self.inprocess
        self.inprocess[key] = event
        if event.phase in ("detect", "re-enter"):
            self.restarts_inside = event.phase == "detect"


# What a round does with an event of a kind; of all others it takes the time only.
_ADD: dict[type[e.Event], Callable[[RoundState, Any, bool], None]] = {
    **dict.fromkeys(_ONCE, RoundState._add_first),  # noqa: SLF001 - the table of that class
    e.RankMilestone: RoundState._add_milestone,  # noqa: SLF001
    e.RankExited: RoundState._add_exit,  # noqa: SLF001
    e.AgentPaused: RoundState._add_pause,  # noqa: SLF001
    e.Remark: RoundState._add_remark,  # noqa: SLF001
    e.FailureDetected: RoundState._add_failure,  # noqa: SLF001
    e.RoundBlamed: RoundState._add_judged,  # noqa: SLF001
    e.RoundAdvised: RoundState._add_judged,  # noqa: SLF001
    e.RoundProgress: RoundState._add_progress,  # noqa: SLF001
    e.RankReplaced: RoundState._add_replaced,  # noqa: SLF001
    e.InProcessPhase: RoundState._add_inprocess,  # noqa: SLF001
}


class LaunchState:
    """One launch as one node recorded it.

    Attributes:
        opened: who writes the journal.
        job: what was started.
        ended: how it ended.
        node: its name, "" = not known.
        rounds: by number; the oldest are missing unless ``complete``.
        number: of the round that began last, -1 = none has.
        first_ns, last_ns: earliest and latest event, CLOCK_MONOTONIC.
        first_wall: Unix time of the first event, seconds.
        last_wall: of the last one that has a time.
        wall_ahead_ns: by how much wall time is ahead of the clock, None = unknown.
        decision: the last one of the coordinator.
        reached: the highest iteration begun.
        limits: to which the ranks are held, seconds; None = to none.
        blamed_ranks: how often each rank was blamed, by rank and kind; ``lost``: others went on
            without it.
        blamed_nodes: node that ended a round first, by number; in a job of several nodes.
        inprocess_restarts: restarts inside of the processes.
        slow: by which share ranks of this node are slower than their peers, by rank.
        paused_s: for how long the agent stood still while ranks ran.
        healthy: whether the last check of the node found nothing wrong; None = there was none.
        lost: events that are missing in the journal, as far as it says so itself.
        rank_events_lost: events of ranks that came too fast, by rank.
        checkpoints: saves, failed saves and loads of single ranks, by ``saved``, ``failed`` and
            ``loaded``.
        checkpoint_s: seconds they took, by ``stall_s``, ``total_s`` (of saves) and ``seconds`` (of
            loads).
        remarks: events for the notes of a reader; in a bounded state the newest.
        complete: False if rounds were forgotten: what is summed over rounds is not known then.

    Args:
        most: how many entries are kept at most, None = all. See ``docs/design/journal.md``.
    """

    def __init__(self, most: int | None = None) -> None:
        self.opened: e.JournalOpened | None = None
        self.job: e.JobStarted | None = None
        self.ended: e.JobEnded | None = None
        self.node = ""
        self.rounds: dict[int, RoundState] = {}
        self.number = -1
        self.first_ns = sys.maxsize
        self.last_ns = 0
        self.first_wall = 0.0
        self.last_wall = 0.0
        self.wall_ahead_ns: int | None = None
        self.decision: e.Decision | None = None
        self._ordered_after: set[int] = set()
        self.reached = 0
        self.limits: dict[str, float | None] = {}
        self.blamed_ranks: Counter[tuple[int, str]] = Counter()
        self.blamed_nodes: dict[int, str] = {}
        self.inprocess_restarts = 0
        self.slow: dict[int, float] = {}
        self.paused_s = 0.0
        self.healthy: bool | None = None
        self.lost = 0
        self.rank_events_lost: Counter[int] = Counter()
        self.checkpoints: Counter[str] = Counter()
        self.checkpoint_s = {"stall_s": 0.0, "total_s": 0.0, "seconds": 0.0}
        self.remarks: deque[e.Event] = deque(maxlen=None if most is None else _MOST_REMARKS)
        self.complete = True
        self._most = most
        self._kept = 0
        self._shared: set[int] = set()  # rounds that a copy has as well
        self._kinds: dict[type[e.Event], int] = {}

    @classmethod
    def of(cls, events: Iterable[e.Event], most: int | None = None) -> LaunchState:
        """Return the state after all of these events."""
        state = cls(most)
        for event in events:
            state.take(event)
        return state

    def copy(self) -> LaunchState:
        """Return one that stays as it is when this one takes more events; rounds are shared."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, deque, set)):
                setattr(other, name, value.copy())
        self._shared = set(self.rounds)
        other._shared = set(self.rounds)  # noqa: SLF001 - of this class
        return other

    def at(self, now_ns: int, reached: tuple[int, int, int] | None = None) -> LaunchState:
        """Return a copy, as if the journal had been written at this moment.

        Args:
            now_ns: CLOCK_MONOTONIC.
            reached: what pages say of the round: the lowest iteration that a rank began with, the
                highest begun, and when.
        """
        other = self.copy()
        other.last_ns = max(self.last_ns, now_ns)
        if reached is not None and self.current.stage != "stopped" and self.number >= 0:
            low, high, high_ns = reached
            other.take(
                e.RoundProgress(
                    t=other.last_ns,
                    round=self.number,
                    first_iteration=low,
                    last_iteration=high,
                    last_ns=high_ns,
                )
            )
        return other

    @property
    def stepped(self) -> bool:
        """Return whether any rank called ``undaunted.step``, in the rounds that are kept."""
        return any(one.latest("first_step") is not None for one in self.rounds.values())

    @property
    def current(self) -> RoundState:
        """The round that began last; one of which nothing is known where none has."""
        return self.rounds.get(self.number) or RoundState(-1)

    def ordered(self) -> list[RoundState]:
        """Return the rounds by number."""
        return [self.rounds[number] for number in sorted(self.rounds)]

    def failures_of(self, rank: int) -> int:
        """Return how often a rank was blamed or lost."""
        return sum(times for (who, _), times in self.blamed_ranks.items() if who == rank)

    @property
    def began_ns(self) -> int:
        """Return when the launcher began; the earliest event where the journal lacks its start."""
        if self.job is not None:
            return self.job.t
        return self.first_ns if self._kinds else 0

    @property
    def until_ns(self) -> int:
        """Return when the launcher ended; the latest event where it did not."""
        return max(self.began_ns, self.ended.t if self.ended is not None else self.last_ns)

    @property
    def kinds(self) -> dict[str, int]:
        """Return how many events of each kind there were."""
        return {str(kind.__struct_config__.tag): count for kind, count in self._kinds.items()}

    def take(self, event: e.Event) -> None:
        """Take in the next event of the journal."""
        kind, t, wall, number = type(event), event.t, event.wall, event.round
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if t > self.last_ns:  # noqa: PLR1730 - a journal has a million events
            self.last_ns = t
        if t < self.first_ns:  # noqa: PLR1730
            self.first_ns = t
        if wall > 0:
            self.last_wall = wall
            if self.wall_ahead_ns is None:
                self.first_wall = wall
                self.wall_ahead_ns = round(wall * 1e9) - t
        if not self.node and kind is not e.RoundBlamed:  # its node is the one blamed
            self.node = event.node
        if number >= 0:
            one = self.rounds.get(number)
            if one is None or self._shared:
                one = self._own(number)
            if self._most is None:
                one.take(event, thin=False)
            elif self._kept < self._most or self._make_room(number, kind):
                before = one.kept
                one.take(event, thin=True)
                self._kept += one.kept - before
        if kind not in _OF_ROUNDS:
            self._take(event)
            if kind in _REMARKS:
                self.remarks.append(event)

    def _own(self, number: int) -> RoundState:
        """Return a round that no copy of this state has as well."""
        one = self.rounds.get(number)
        if one is None:
            one = self.rounds[number] = RoundState(number, self.reached)
            self._kept += one.kept
        elif number in self._shared:
            one = self.rounds[number] = one.copy()
        self._shared.discard(number)
        return one

    def _make_room(self, number: int, kind: type[e.Event]) -> bool:
        """Forget the oldest rounds, but for the one of this number and the one that is on.

        Returns:
            Whether there is room for an event of this kind in the round of this number.
        """
        assert self._most is not None
        self.complete = False
        for oldest in [each for each in self.rounds if each not in (number, self.number)]:
            self._kept -= self.rounds.pop(oldest).kept
            if self._kept < self._most:
                return True
        return kind in _ONCE

    def _take(self, event: e.Event) -> None:  # noqa: C901, PLR0912 - one case for each kind
        match event:  # the most frequent ones first
            case e.RankEvent():
                if event.name == CHECKPOINT:
                    self._take_checkpoint(event.text)
            case e.RoundProgress():
                self.reached = max(self.reached, event.last_iteration)
            case e.InProcessPhase():
                self.inprocess_restarts += event.phase == "re-enter"
            case e.RoundStarted():
                self.number = event.round
                self.slow = {}
            case e.SlowRank(over=True):
                self.slow.pop(event.rank, None)
            case e.SlowRank() if event.on == event.node and self._has_room(self.slow, event.rank):
                self.slow[event.rank] = event.slower
            case e.Decision():
                self._decided(event)
            case e.LimitsChanged():
                self._take_limits(event.limits)
            case e.Verdict() if self._has_room(self.blamed_ranks, (event.rank, event.kind)):
                self.blamed_ranks[event.rank, event.kind] += 1
            case e.RankLost() if self._has_room(self.blamed_ranks, (event.rank, "lost")):
                self.blamed_ranks[event.rank, "lost"] += 1
            case e.RoundBlamed() if self._has_room(self.blamed_nodes, event.number):
                self.blamed_nodes[event.number] = event.node
            case e.AgentPaused():
                self.paused_s += event.seconds
            case e.NodeChecked():
                self.healthy = not event.problem
            case e.EventsLost():
                self.lost += event.count
            case e.RankEventsLost() if self._has_room(self.rank_events_lost, event.rank):
                self.rank_events_lost[event.rank] += event.count
            case e.JournalOpened():
                self.opened = self.opened or event
            case e.JobStarted():
                self.job = self.job or event
                self._take_limits(event.limits)
            case e.JobEnded():
                self.ended = self.ended or event

    def _has_room(self, table: Mapping[Any, Any], key: object) -> bool:
        return self._most is None or key in table or len(table) < self._most

    def _decided(self, event: e.Decision) -> None:
        before = self.decision
        if before is not None and before.round == event.round:  # it is taken back
            self._ordered_after.discard(event.round)
        self.decision = event
        restart = event.by and event.action == "restart"
        if restart and (self._most is None or len(self._ordered_after) < self._most):
            self._ordered_after.add(event.round)

    @property
    def restarts_ordered(self) -> int:
        """Return how many restarts somebody has ordered: of rounds that others followed here."""
        return sum(number < self.number for number in self._ordered_after)

    def _take_limits(self, limits: Mapping[str, float | None]) -> None:
        for name, limit_s in limits.items():
            if self._has_room(self.limits, name):
                self.limits[name] = limit_s

    def _take_checkpoint(self, text: str) -> None:
        what = text.split(" ", 1)[0]
        if what not in ("saved", "failed", "loaded"):
            return
        self.checkpoints[what] += 1
        if what == "failed":
            return  # what follows are a user's words
        for name, value in numbers_of(text).items():
            if name in self.checkpoint_s:
                self.checkpoint_s[name] += value
