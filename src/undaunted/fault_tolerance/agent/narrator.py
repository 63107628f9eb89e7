"""The console of a launcher: lines for people out of what its journal records. Pure.

The sentences are those of `journal.words`. Here is which events are shown as they happen, and what
a reader at the console knows already.
"""

from __future__ import annotations

import shlex
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.text import count, format_duration, one_line
from undaunted.fault_tolerance.output.lines import DONE, ERROR, INFO, PROGRESS, WARNING
from undaunted.fault_tolerance.run_config import TO_FILE
from undaunted.journal import events as e
from undaunted.journal.words import CHECKPOINT, is_news, outcome_in_words, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.words import Tone

_NS = 1_000_000_000
_SHOWN_NS = 50 * _NS  # of progress, at least that apart: about once a minute
_LONGEST = 1000
_LONG = 160  # for a line that people read a second time
_LEVELS: dict[Tone, int] = {"": INFO, "good": DONE, "odd": WARNING, "bad": ERROR}
_REMARKS = {"info": INFO, "warning": WARNING, "error": ERROR}
# Shown as they are.
_SHOWN = frozenset(
    {e.SlowRank, e.GpuThrottled, e.KernelLogged, e.RankSilent, e.TemplateLost, e.AgentPaused,
     e.ControlRequested, e.RankLost, e.AttributionResult, e.NodeChecked, e.MemoryReclaimed,
     e.InProcessPhase, e.InProcessCall, e.RoundStopped}
)  # fmt: skip


class Line(NamedTuple):
    """A line of the launcher, as `Messages.say` takes it."""

    text: str
    level: int = WARNING
    rank: int | None = None
    prefix: bool = True


class Narrator:
    """Says of the events of one launcher, in the order in which they are recorded, what is news.

    Who hangs on one of several nodes is shown only if nobody says who does in the whole job.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._of_several = config.nodes is not None
        # --- the round ---
        self._begun: e.RoundStarted | None = None
        self._runs = False
        self._stop_heard_ns: int | None = None  # when this round was to be stopped
        self._detected_ns: int | None = None  # when a failure of this round was noticed
        self._lost_noticed_ns: int | None = None  # the same of a node that says nothing
        self._since_ns: int | None = None  # the failure that this round comes after
        self._first_lines: set[int] = set()  # ranks whose program has begun
        self._fresh = False  # they have everything to import
        # --- restarts ---
        self._restarts = 0
        self._used: int | None = None  # of those allowed, by the last decision; None = none heard
        self._counts = True  # the last one is of those
        self._label = ""  # of the present one
        self._ordered: dict[int, str] = {}  # rounds after which somebody wants another one: why
        # --- what people have read ---
        self._why = ""  # a round is stopped, and nobody is blamed for it
        self._said = ""  # the last line about who is to blame
        self._blamed: int | None = None  # the last round of which it was said who is to blame
        self._unsaid: e.Verdict | None = None  # until it is known who hangs in the job
        self._traceback = ""
        self._signals: set[str] = set()
        self._passed_on: set[str] = set()  # signals of the program's that were named
        self._shown: tuple[int, int, int] | None = None  # round, iteration, when: in the last line

    def take(self, event: e.Event) -> Iterator[Line]:  # noqa: C901, PLR0912 - one case each
        """Yield what is to be said of an event."""
        match event:
            case e.RankMilestone(name="first_line"):
                yield from self._first_line(event)
            case e.RoundProgress():
                yield from self._progress(event)
            case e.JobStarted():
                yield self._started(event)
            case e.RoundStarted():
                yield from self._round_begins(event)
            case e.WorkersSpawned():
                self._fresh = event.mode == "fresh"
            case e.FailureDetected():
                self._detected_ns = event.t
                if event.kind == "spawn":
                    yield Line(event.detail, ERROR)
            case e.Verdict():
                yield from self._judged(event)
            case e.Decision():
                yield from self._decided(event)
            case e.StopRequested():
                if not self._why and self._blamed != event.round:  # no decision was heard of
                    self._why = f"round {event.round} was stopped: {event.reason}"
                self._stop_heard_ns = self._stop_heard_ns or event.t
            case e.RoundStopped():
                self._runs = False
            case e.RoundBlamed():
                yield self._blames(event)
            case e.RoundAdvised():
                yield from self._advised(event)
            case e.LastCopy() if event.outcome != "written":
                yield _as_it_is(event)
            case e.RankEvent(name=name) if name == CHECKPOINT and event.text.startswith("doubted "):
                yield _as_it_is(event)
            case e.SignalReceived():
                yield self._signal(event.signal)
            case e.SignalPassedOn() if event.signal not in self._passed_on:
                self._passed_on.add(event.signal)
                yield _as_it_is(event)._replace(level=WARNING)
            case e.Remark():
                rank = None if event.rank < 0 else event.rank
                yield Line(event.text, _REMARKS.get(event.level, WARNING), rank)
            case e.JobEnded():
                yield from self._ended(event)
        if type(event) in _SHOWN and is_news(event):
            yield _as_it_is(event)

    def withdraw(self) -> None:
        """Another node is to blame, or a rank compiles; the round goes on."""
        self._unsaid, self._traceback = None, ""

    # --- the job --------------------------------------------------------------------------------

    def _started(self, event: e.JobStarted) -> Line:
        words, nodes = words_of(event), self._config.nodes
        allowed = f", {words.more}"
        if nodes is not None and not nodes.is_host and not event.max_restarts:
            allowed = ""  # the coordinator knows
        report = f"undaunted report {shlex.quote(self._config.run_dir)}"
        return Line(f"{one_line(words.text)}{allowed}; report: {report}", INFO)

    def _ended(self, event: e.JobEnded) -> Iterator[Line]:
        yield from self._say_verdict()
        last = self._begun.round if self._begun is not None else 0
        yield from self._not_all_ran()
        self._restarts += max(0, event.last_round - last)  # where this node was away
        if event.exit_code and self._traceback and not self._is_just_printed:
            yield Line("the first cause in full:", ERROR)
            yield Line(self._traceback.rstrip("\n"), ERROR, prefix=False)
        # Those of rounds that others have followed.
        ordered = [why for number, why in self._ordered.items() if number < last]
        used = self._restarts - len(ordered)
        again = f", {count(used, 'restart')}" if used else ""
        for why, number in Counter(ordered).items():
            again += f", {count(number, 'restart')} {why}"
        label = outcome_in_words(event.outcome, event.reason)
        text = f"{label}{again}: {self._without_said(event.reason)}"
        yield Line(text, ERROR if event.exit_code else DONE)

    @property
    def _is_just_printed(self) -> bool:
        """Whether the traceback stands a few lines above, printed by the only rank itself."""
        alone = self._begun is not None and self._begun.world_size == 1
        return alone and TO_FILE not in self._config.stderr

    def _decided(self, event: e.Decision) -> Iterator[Line]:
        self._ordered.pop(event.number, None)
        if self._begun is not None:
            used = max(0, self._begun.max_restarts - event.restarts_left)
            self._counts = used > (self._used or 0)
            self._used = used
        if event.by and event.action == "restart":
            self._ordered[event.number] = event.purpose or "on request"
            self._why = ""  # the line below has it
            now = time.strftime("%H:%M:%S", time.localtime(event.wall))
            follows = f"round {event.number} is stopped, another one follows"
            yield Line(f"{now} {event.reason}: {follows}; it costs no restart", INFO)
        elif event.number != self._blamed or self._said not in event.reason:
            self._why = f"round {event.number} was stopped: {event.reason}"

    def _blames(self, event: e.RoundBlamed) -> Line:
        self._why, self._unsaid, self._blamed = "", None, event.number
        self._said = event.line
        self._lost_noticed_ns = self._stop_heard_ns if event.lost or event.paused else None
        if event.node != self._config.node:
            self._traceback = ""  # of a victim
        return Line(one_line(words_of(event).full, _LONGEST), ERROR)

    def _advised(self, event: e.RoundAdvised) -> Iterator[Line]:
        if not event.line or (event.done and event.action == "stop"):
            return  # the last line has it
        acts = event.done or self._config.advice == "act"
        hint = "" if acts else " (--advice act does so)"
        yield Line(one_line(f"{words_of(event).text}{hint}", _LONGEST))

    # --- a round --------------------------------------------------------------------------------

    def _round_begins(self, event: e.RoundStarted) -> Iterator[Line]:
        yield from self._say_verdict()
        if self._why and self._of_several:
            yield Line(self._why, INFO)
        yield from self._not_all_ran()
        # A node that comes later counts what was before.
        self._restarts += event.round if self._begun is None else 1
        self._begun, self._runs = event, True
        self._label = self._name(event)
        self._why = self._traceback = ""
        self._since_ns, self._detected_ns = self._detected_ns, None
        if self._since_ns is None and 0 in event.ranks:
            self._since_ns = self._lost_noticed_ns
        self._lost_noticed_ns = self._stop_heard_ns = None
        self._first_lines = set()

    def _first_line(self, event: e.RankMilestone) -> Iterator[Line]:
        if self._begun is None:
            return
        self._first_lines.add(event.rank)
        running = len(self._first_lines)
        if self._since_ns is None or running < len(self._begun.ranks):
            return
        took = format_duration((event.at_ns - self._since_ns) / _NS)
        self._since_ns = None
        imports = " as new interpreters: their imports come after that" if self._fresh else ""
        here = " of this node" if self._of_several else ""
        yield Line(
            f"restart {self._label}: {count(running, 'rank')}{here} running again {took} after the "
            f"failure was noticed, at the first line of the script{imports}",
            INFO,
        )

    def _not_all_ran(self) -> Iterator[Line]:
        """Say of a restart that it came to nothing: else the numbers of restarts would jump."""
        if self._since_ns is None or self._begun is None or not self._restarts:
            return
        ranks, ran = len(self._begun.ranks), len(self._first_lines)
        self._since_ns = None
        text = f"{ran} of {count(ranks, 'rank')} came to the first line of the script"
        yield Line(f"restart {self._label}: {text}", INFO)

    def _name(self, begun: e.RoundStarted) -> str:
        """Which restart a round is; its number would count rounds that never began."""
        if why := self._ordered.get(begun.round - 1):
            return why
        allowed = begun.max_restarts
        if self._used is not None and not self._counts:
            return f"(none of the {allowed} allowed)"
        used = self._restarts - len(self._ordered) if self._used is None else self._used
        return f"{used} of {allowed}"

    def _progress(self, event: e.RoundProgress) -> Iterator[Line]:
        """Show people at a terminal how far the job is, now and then."""
        since, iteration, at_ns = self._shown, event.last_iteration, event.last_ns
        if since is None or since[0] != event.round:
            self._shown = event.round, iteration, at_ns
        elif at_ns - since[2] >= _SHOWN_NS and iteration > since[1]:
            rate = (iteration - since[1]) * _NS / (at_ns - since[2])
            pace = f"{rate:.3g} per second" if rate >= 1 else f"{format_duration(1 / rate)} each"
            restarts = count(self._restarts, "restart")
            self._shown = event.round, iteration, at_ns
            yield Line(f"iteration {iteration}, {pace}, {restarts}", PROGRESS)

    # --- who is to blame ------------------------------------------------------------------------

    def _judged(self, event: e.Verdict) -> Iterator[Line]:
        of_all = event.kind == "hang" and self._of_several
        if not of_all or event.round != self._blamed:
            self._unsaid = event
        self._traceback = event.traceback
        if not of_all:
            yield from self._say_verdict()

    def _say_verdict(self) -> Iterator[Line]:
        """Say the verdict of this node, unless there was one of the job."""
        event, self._unsaid = self._unsaid, None
        if event is not None:
            self._said = one_line(event.line, _LONGEST)
            yield Line(self._said, ERROR, event.rank)

    def _without_said(self, reason: str) -> str:
        """Shorten the line about a failure, if it is long or people have just read it twice."""
        line = self._said.partition("; stacks: ")[0]
        twice = bool(self._traceback) and self._is_just_printed
        for what in ("hangs", "failed"):
            who, found, _ = line.partition(f" {what}: ")
            if found and (what == "hangs" or twice or len(line) > _LONG):
                return reason.replace(line, f"{who} {what}, see above")
        return reason

    # --- signals --------------------------------------------------------------------------------

    def _signal(self, name: str) -> Line:
        if signal.Signals[name] not in self._config.signals:
            ends = "which ends the launcher: --signals-to-handle leaves it out"
            return Line(f"received {name}, {ends}")
        if not self._runs:
            what = "no rank runs here, so that nothing is waited for"
        elif self._stop_heard_ns is None:
            what = f"passed on to the ranks, which have {self._time_to_save(name)}"
        elif name in self._signals:
            what = "the ranks are being stopped already"
        else:
            what = f"the ranks are being stopped, and have {self._time_to_save(name)}"
        self._signals.add(name)
        return Line(f"received {name}: {what}")

    def _time_to_save(self, name: str) -> str:
        """Say how long the ranks have: what is known of it, and whose limit it is."""
        config = self._config
        limit = f"{format_duration(config.term_timeout_s)} to save and end (--term-timeout)"
        if name == "SIGINT":
            if config.slurm_task:
                return f"{limit}, unless srun ends its step, as it does after a Ctrl-C"
            return f"{limit}; a second Ctrl-C ends them at once"
        if 0 < config.grace_s < config.term_timeout_s:
            least = f"{format_duration(config.grace_s)} to save and end"
            return f"{least} where Slurm ends the job (KillWait, GraceTime, --signal)"
        if config.slurm and not config.grace_s:
            return f"{limit}, or less: Slurm kills them after its KillWait where it ends the job"
        return limit


def _as_it_is(event: e.Event) -> Line:
    words, rank = words_of(event), getattr(event, "rank", -1)
    text = one_line(words.full, _LONGEST)
    return Line(text, _LEVELS[words.tone], None if rank < 0 else rank)
