"""What happened at one moment: failures, checkpoints, restarts inside of processes, warnings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import format_duration
from undaunted.journal import events as e
from undaunted.journal.page.columns import Texts, differences, ms, to_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobRound
    from undaunted.journal.launch import RoundState

KINDS = (
    "crash", "hang", "spawn", "lost",  # what ended a round first
    "victim", "in-process restart", "checkpoint", "fault", "health", "warning",
)  # fmt: skip
_FAILURES = KINDS[:4]
# Other marks than failures; of more, an even part is kept.
_MOST = 20_000
# By far the most events; none of them is a mark.
_QUIET = frozenset((e.RankMilestone, e.RankExited, e.RoundProgress))
_STEP = re.compile(r"\bstep=(\d+)")
_OF_CHECKPOINTS = ("saved", "failed", "loaded", "rescued", "skipped")


class Mark(NamedTuple):
    """A moment, in milliseconds; ``node`` is an index, ``text`` too, ``rank`` -1 for none."""

    at: int
    kind: str
    node: int
    rank: int
    text: int


class Marks:
    """Collects the marks of all launches."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._failures: list[tuple[Mark, tuple[int, int]]] = []  # with launch and round
        self._others: list[Mark] = []

    def read(self, node: int, launch: Launch) -> None:
        """Take the marks of one launch; ``node`` is the index of its node."""
        for one in launch.state.ordered():
            self._failure(node, launch, one)
        saved: dict[tuple[int, str], list[e.RankEvent]] = {}
        for event in launch.events:
            if type(event) in _QUIET:
                continue
            if isinstance(event, e.RankEvent) and event.name == "checkpoint":
                what, step = event.text.split(" ", 1)[0], _STEP.search(event.text)
                if what in _OF_CHECKPOINTS and step is not None:
                    saved.setdefault((event.round, f"{what}, step {step[1]}"), []).append(event)
            else:
                self._other(node, launch, event)
        for (_, key), told in saved.items():
            at = max(ms(launch, one.at_ns) for one in told)
            text = f"{key}, by {len(told)} ranks" if len(told) > 1 else key
            rank = told[0].rank if len(told) == 1 else -1
            self._others.append(self._mark(at, "checkpoint", node, rank, text))

    def _failure(self, node: int, launch: Launch, one: RoundState) -> None:
        failure, verdict = one.first(e.FailureDetected), one.first(e.Verdict)
        if failure is None:
            return
        text = failure.detail or failure.kind if verdict is None else verdict.line
        rank = failure.rank if verdict is None else verdict.rank
        at = ms(launch, failure.t if failure.since_ns is None else failure.since_ns)
        kind = failure.kind if failure.kind in _FAILURES else "crash"
        mark = self._mark(at, kind, node, rank, text)
        self._failures.append((mark, (launch.index, one.number)))

    def _other(self, node: int, launch: Launch, event: e.Event) -> None:
        kind, text, rank = "warning", "", -1
        match event:
            case e.RankEvent(name="fault", rank=rank, text=text):
                kind = "fault"
            case e.InProcessPhase(phase="detect", epoch=epoch, reasons=reasons, rank=rank):
                kind = "in-process restart"
                text = f"{epoch}: {reasons[0] if reasons else 'it was stopped'}"
            case e.NodeChecked(problem=text) if text:
                kind = "health"
            case e.AgentPaused(seconds=seconds):
                text = f"the launcher did not run for {format_duration(seconds)}"
            case e.SignalReceived(signal=signal):
                text = f"the launcher received {signal}"
            case e.ControlRequested(rank=rank, action=action, description=description):
                text = f"asks for {action}: {description}"
            case e.TemplateLost(reason=reason):
                text = f"workers start fresh: {reason}"
            case e.RankLost(rank=rank, detail=detail):
                kind, text = "in-process restart", f"the others go on without it: {detail}"
        if text:
            at = getattr(event, "at_ns", event.t)
            self._others.append(self._mark(ms(launch, at), kind, node, rank, text))

    def blame(self, rounds: Sequence[JobRound], places: Mapping[str, int]) -> None:
        """Turn failures of nodes that failed because of another one into those of victims.

        Args:
            rounds: of the job.
            places: index of each node.
        """
        guilty: dict[tuple[int, int], int] = {}
        for one in rounds:
            if one.failure is None or one.failure.node not in places:
                continue
            place = places[one.failure.node]
            guilty |= {(part.launch, one.round): place for part in one.parts}
            if one.failure.kind == "lost":
                known = (one.failed_ns, one.stopped_ns, one.began_ns)
                at = to_ms(next(moment for moment in known if moment is not None))
                mark = self._mark(at, "lost", place, -1, one.failure.line)
                self._failures.append((mark, (-1, one.round)))
        self._failures = [
            (mark if guilty.get(key, mark.node) == mark.node else mark._replace(kind="victim"), key)
            for mark, key in self._failures
        ]

    def columns(self) -> dict[str, list[int]]:
        """Return all marks in the order of time."""
        failures = [mark for mark, _ in self._failures if mark.kind in _FAILURES]
        others = self._others + [mark for mark, _ in self._failures if mark.kind == "victim"]
        others.sort()
        keep = -(-len(others) // _MOST) or 1
        marks = sorted(failures + others[::keep])
        return {
            "at": differences(mark.at for mark in marks),
            "kind": [KINDS.index(mark.kind) for mark in marks],
            "node": [mark.node for mark in marks],
            "rank": [mark.rank for mark in marks],
            "text": [mark.text for mark in marks],
        }

    def _mark(self, at: int, kind: str, node: int, rank: int, text: str) -> Mark:
        return Mark(at, kind, node, rank, self._texts.place(text))
