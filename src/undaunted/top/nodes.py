"""What the journal of one node has told so far, folded event by event. Pure.

Only what the screen shows is kept, and of times what `Tally` keeps, so that a journal of any length
takes little memory.
"""

from __future__ import annotations

from collections import Counter, deque

from msgspec import structs

from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.journal.goodput import Account, account
from undaunted.journal.metrics.tally import Tally
from undaunted.top.notes import OF_RANKS, Note, note_of, worth_a_note

_NOTES = 100


class Node:
    """The newest launch of one node.

    Attributes:
        name: of the node, "" = not known yet.
        opened: who writes the journal.
        job: what was started.
        ended: how it ended.
        round: number of the round, -1 before the first.
        began_ns: when the round began.
        stage: what the round is at: ``starting``, ``running``, ``failed``, ``stopping``,
            ``stopped``.
        ranks: global ranks by local rank, of this round.
        world_size: ranks of the job, 0 = not known.
        failure: one line about the failure that this round has, "" = none.
        milestones: of this round: by rank, the one passed last.
        iteration: the highest that the journal knows to be begun in this round, and when.
        exits: of this round: by rank, how its process ended.
        pids: by local rank, of this round.
        restarts_left: as decided last, None = no restart was decided.
        inprocess: how many restarts inside of processes there were.
        inprocess_now: such a restart is under way.
        limits: seconds by the keys of ``LimitsChanged``.
        failures: how often each rank was blamed or lost.
        last_ns: time of the newest event, CLOCK_MONOTONIC.
        last_wall: the same, Unix time.
    """

    def __init__(self) -> None:
        self.name = ""
        self.opened: e.JournalOpened | None = None
        self.last_ns = 0
        self.last_wall = 0.0
        self._begin_job(None)

    def _begin_job(self, job: e.JobStarted | None) -> None:
        self.job = job
        self.ended: e.JobEnded | None = None
        self.restarts_left: int | None = None
        self.inprocess = 0
        self.limits: dict[str, float | None] = dict(job.limits) if job else {}
        self.failures: Counter[int] = Counter()
        self._noteworthy: deque[e.Event] = deque(maxlen=_NOTES)
        self._of_ranks: deque[e.Event] = deque(maxlen=_NOTES)
        self._tally = Tally()
        self._begin_round(None)

    def _begin_round(self, started: e.RoundStarted | None) -> None:
        self.round = started.round if started else -1
        self.began_ns = started.t if started else 0
        self.stage = "starting"
        self.ranks: list[int] = started.ranks if started else []
        self.world_size = started.world_size if started else 0
        self.failure = ""
        self.milestones: dict[int, e.RankMilestone] = {}
        self.iteration: e.RoundProgress | None = None
        self.exits: dict[int, e.RankExited] = {}
        self.pids: list[int] = []
        self.inprocess_now = False

    def take(self, event: e.Event) -> None:
        """Take in the next event of the journal."""
        self.last_ns, self.last_wall = event.t, event.wall or self.last_wall
        if isinstance(event, e.RankEvent):  # most of a long journal
            if event.name in OF_RANKS:
                self._of_ranks.append(event)
            return
        if not isinstance(event, e.RoundBlamed):  # its node is the one that is blamed
            self.name = event.node or self.name
        self._take(event)
        self._tally.take(event)
        if worth_a_note(event):
            self._noteworthy.append(event)

    def notes(self) -> list[Note]:
        """Say what has happened lately, in no order."""
        notes = map(note_of, [*self._noteworthy, *self._of_ranks])
        return [note for note in notes if note is not None]

    def account(
        self, now_ns: int | None = None, reached: tuple[int, int, int] | None = None
    ) -> Account:
        """Say where the time of the launch went.

        Args:
            now_ns: the time, None = that of the newest event.
            reached: what the pages say of this round: the lowest iteration a rank began with, the
                highest begun, and when.
        """
        events = self._tally.events()
        now_ns = max(self.last_ns, now_ns or 0)
        if reached is not None and self.stage == "running":
            first, last, last_ns = reached
            events.append(
                e.RoundProgress(
                    t=now_ns,
                    round=self.round,
                    first_iteration=first,
                    last_iteration=last,
                    last_ns=last_ns,
                )
            )
        elif self.ended is None:
            events.append(e.AgentPaused(t=now_ns, seconds=0.0))  # only its time is looked at
        found = account(events)
        # With more events than are kept nobody knows what was productive.
        return structs.replace(found, steps_known=found.steps_known and self._tally.complete)

    def _take(self, event: e.Event) -> None:  # noqa: C901, PLR0912 - one case for each kind
        match event:
            case e.JournalOpened():
                self._opened(event)
            case e.JobStarted():
                self._begin_job(event)
            case e.RoundStarted():
                self._begin_round(event)
            case e.WorkersSpawned():
                self.stage, self.pids = "running", event.pids
            case e.RankMilestone():
                self.milestones[event.rank] = event
            case e.RoundProgress():
                self.iteration = event if event.round == self.round else self.iteration
            case e.FailureDetected():
                self.stage = "failed"
                who = f"rank {event.rank}" if event.rank >= 0 else "workers"
                self.failure = self.failure or f"{event.kind} of {who}: {event.detail}"
            case e.Verdict():
                self.failure = event.line if event.round == self.round else self.failure
                self.failures[event.rank] += 1
            case e.RankLost():
                self.failures[event.rank] += 1
            case e.RankReplaced():
                self._replaced(event)
            case e.Decision():
                self.restarts_left = event.restarts_left
            case e.StopRequested():
                self.stage = "stopping"
            case e.RankExited():
                self.exits[event.rank] = event
            case e.RoundStopped():
                self.stage = "stopped"
            case e.LimitsChanged():
                self.limits.update(event.limits)
            case InProcessPhase(phase="detect"):
                self.inprocess_now = True
            case InProcessPhase(phase="re-enter"):
                self.inprocess_now = False
                self.inprocess += 1
            case e.JobEnded():
                self.ended = event
            case _:
                pass

    def _opened(self, event: e.JournalOpened) -> None:
        before, self.opened = self.opened, event
        if before is None or _writer(before) != _writer(event):
            self._begin_job(None)

    def _replaced(self, event: e.RankReplaced) -> None:
        self.exits.pop(event.rank, None)
        if event.rank in self.ranks and len(self.pids) == len(self.ranks):
            self.pids[self.ranks.index(event.rank)] = event.pid


def _writer(opened: e.JournalOpened) -> tuple[str, int, int]:
    return opened.boot_id, opened.pid, opened.start_ticks
