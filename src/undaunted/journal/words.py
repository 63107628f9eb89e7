"""An event in English: one row for each kind. Pure.

The console of the launcher, ``report``, ``explain``, ``top`` and the page choose kinds and merge
what is alike; the sentences are here. See docs/design/journal.md, "One table of words".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from undaunted.base.text import count, format_duration, name_ranks
from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

Tone = Literal["", "good", "odd", "bad"]
STYLES: dict[Tone, str] = {"": "", "good": "green", "odd": "yellow", "bad": "red"}
"""The codes by which a terminal shows each tone."""

_TONES: dict[str, Tone] = {"warning": "odd", "error": "bad"}
CHECKPOINT, FAULT = "checkpoint", "fault"  # events of ranks with special words
# Each rank tells these of itself; one line is enough.
_BY_ALL = ("saved", "loaded", "rescued", "deleted")
_NS = 1_000_000_000
_NUMBER = re.compile(r"(\w+)=([0-9.]+)")
# As `checkpointing.announce` puts it into the page of rank 0.
_DOUBTED = re.compile(r"doubted step=([0-9]+) taken=([0-9]+) (.*)", re.DOTALL)
_INTERRUPTED = re.compile(r"\breceived SIGINT\b")


class Words(NamedTuple):
    """An event for people; not yet printable, as it may hold text of users' programs.

    Attributes:
        text: who, what and where.
        tone: whether that is a failure (``bad``), unusual (``odd``) or an end as it should be.
        more: details, "; " between them.
        subject: events with the same one tell of one thing, also those of several ranks.
    """

    text: str
    tone: Tone = ""
    more: str = ""
    subject: str = ""

    @property
    def full(self) -> str:
        """The text with its details."""
        return f"{self.text}; {self.more}" if self.more else self.text


def words_of(event: e.Event) -> Words:
    """Return what an event means."""
    return _WORDS[type(event)](event)


def outcome_in_words(outcome: str, reason: str = "") -> str:
    """Return how a job or launch has ended, "" if it has not.

    Args:
        outcome: as in `JobEnded`.
        reason: as there; a person who presses Ctrl-C preempts nothing.
    """
    if outcome == "preempted" and _INTERRUPTED.search(reason):
        return "stopped by the user (Ctrl-C)"
    return outcome.replace("_", " ")


def exit_in_words(exited: e.RankExited) -> str:
    """Return how the process of a rank ended."""
    how = exited.signal or f"exit code {exited.exit_code}"
    return f"{how}, told to stop" if exited.by_us else how


def is_news(event: e.Event) -> bool:
    """Return whether an event tells of more than that things go as they should; quick."""
    match event:
        case e.RoundStarted(round=number):
            return number > 0
        case e.Decision(round=number):  # a node without a seat does not tell of which round it is
            return number >= 0
        case e.RoundAdvised(line=line):
            return bool(line)
        case e.InProcessPhase(phase=phase):
            return phase in ("detect", "re-enter")
        case e.InProcessCall(what=what):
            return what == "ended"
        case e.NodeChecked(problem=problem):
            return bool(problem)
        case e.MemoryReclaimed(held=held, skipped=skipped):
            return bool(held or skipped)
        case e.RoundStopped(unkillable=pids):
            return bool(pids)
    return True


# --- a row each -----------------------------------------------------------------------------------


def _job_started(event: e.JobStarted) -> Words:
    program = event.argv[0] if event.argv else "a program"
    allowed = f"{count(event.max_restarts, 'restart')} allowed"
    return Words(f"{count(event.nproc_per_node, 'rank')} of {program} on {event.node}", "", allowed)


def _spawned(event: e.WorkersSpawned) -> Words:
    return Words(f"{count(len(event.pids), 'worker')} started {event.mode}", "", event.reason)


def _milestone(event: e.RankMilestone) -> Words:
    return Words(f"rank {event.rank} has reached its {event.name.replace('_', ' ')}")


def failure(event: e.FailureDetected) -> Words:
    """Say how a failure was noticed that nobody has judged.

    A hang is not said to be of a rank: whose limit passes first often waits for the one to blame.
    """
    if event.kind == "hang" and event.rank >= 0:
        seen = f" ({event.detail})" if event.detail else ""
        passed = f"hang: rank {event.rank} passed its limit first{seen}"
        return Words(passed, "odd", "which rank is to blame is not recorded")
    who = f" of rank {event.rank}" if event.rank >= 0 else ""
    return Words(f"{event.kind}{who}: {event.detail}".removesuffix(": "), "odd")


def _limits(event: e.LimitsChanged) -> Words:
    limits = ", ".join(
        f"{name} {'none' if limit is None else format_duration(limit)}"
        for name, limit in event.limits.items()
    )
    return Words(f"ranks are held to other limits: {limits}")


def _stop_agreed(event: e.StopAgreed) -> Words:
    if event.iteration < 0:
        return Words("no rank asks whether to stop")
    return Words(f"the ranks stop after iteration {event.iteration}")


def _stopped(event: e.RoundStopped) -> Words:
    if not event.unkillable:
        return Words(f"round {event.round} has stopped")
    pids = ", ".join(map(str, event.unkillable))
    what = f"processes of round {event.round} cannot be killed: {pids}"
    return Words(what, "bad", "they wait in the kernel (disk or driver); going on without them")


def _blamed(event: e.RoundBlamed) -> Words:
    names = ", ".join(event.victims)
    more = f"{names} stopped because of it" if names else ""
    if event.ranks and names:
        more = f"the ranks of {names} are victims"
    return Words(f"first cause in round {event.number}: {event.line}", "bad", more)


def _advised(event: e.RoundAdvised) -> Words:
    if not event.line:
        return Words(f"advice after round {event.number}: {event.action}")
    word = "done" if event.done else "advice"
    return Words(f"{word} after round {event.number}: {event.line}", "odd")


def _inprocess(event: e.InProcessPhase) -> Words:
    name, took = f"in-process restart {event.epoch}", format_duration(event.took_s)
    match event.phase:
        case "detect":
            why = event.reasons[0] if event.reasons else "it was stopped"
            return Words(f"{name}: {why}", "odd")
        case "re-enter":
            ranks = f"{count(event.members, 'rank')} " if event.members else ""
            lost = f", without {name_ranks(event.lost)}" if event.lost else ""
            return Words(f"{name}: {ranks}running again after {took}{lost}")
    return Words(f"{name}: {event.phase} took {took}")


def _call(event: e.InProcessCall) -> Words:
    if event.what == "ended":
        return Words("the function cannot go on in any rank", "bad", event.text)
    ranks = f" of {count(event.members, 'rank')}" if event.members else ""
    return Words(f"call {event.call} of a restartable function{ranks} {event.what}", "", event.text)


def _memory(event: e.MemoryReclaimed) -> Words:
    took = format_duration(event.duration_ns / _NS)
    if event.skipped:
        return Words(f"restarts do not wait for device memory: {event.skipped}", "odd")
    if event.held:
        hint = (
            "if it belongs to others, raise --ft-gpu-memory-tolerance-mb, or give "
            "--ft-gpu-memory-reclaim-timeout 0"
        )
        what = f"device memory is not free {took} after round {event.round}: {event.held}"
        return Words(what, "odd", hint if event.devices else "")
    return Words(f"{took} until the memory of {count(event.devices, 'GPU')} was free")


def _checked(event: e.NodeChecked) -> Words:
    if event.problem:
        return Words(f"the node is unhealthy: {event.problem}", "bad")
    return Words(f"the node is healthy ({format_duration(event.duration_ns / _NS)})")


def _decision(event: e.Decision) -> Words:
    left = f", {event.restarts_left} left" if event.action == "restart" else ""
    text = f"{event.action}{left}: {event.reason}".removesuffix(": ")
    return Words(text, subject=f"{event.round} {text}")


def _rank_event(event: e.RankEvent) -> Words:
    return of_rank(event.rank, event.name, event.text)


def of_rank(rank: int, name: str, text: str) -> Words:
    """Return what an event means that a rank has put into its page."""
    if name == FAULT:
        said = f"fault in rank {rank}: {text}"
        return Words(said, "odd", subject=said)
    if name != CHECKPOINT:
        return Words(f"rank {rank}: {name} {text}".rstrip())
    what, _, rest = text.partition(" ")
    numbers = dict(_NUMBER.findall(rest))
    step = numbers.get("step", "?")
    if what in _BY_ALL:
        took = numbers.get("total_s") or numbers.get("seconds")
        after = f" in {_duration(took)}" if took else ""
        subject = f"checkpoint {what} {step}"
        return Words(f"checkpoint of step {step} {what}{after}", subject=subject)
    if doubted := _DOUBTED.match(text):
        trusted = f"the checkpoint of step {doubted[1]} is not trusted: {doubted[3]}"
        again = f"the ranks go on from step {doubted[2]}"
        return Words(trusted, "odd", f"{again} (--no-checkpoint-fallback loads the newest)", text)
    said = f"rank {rank}: checkpoint {text}"
    return Words(said, "odd", subject=said)


def _duration(seconds: str) -> str:
    try:
        return format_duration(float(seconds))
    except ValueError:
        return seconds


def _imports(event: e.ImportsLearned) -> Words:
    if event.problem:
        return Words(f"restarted ranks import everything themselves: {event.problem}", "odd")
    modules, packages = count(event.modules, "module"), count(len(event.packages), "package")
    took = format_duration(event.took_ns / _NS)
    packages_of: dict[str, list[str]] = {}
    for package, reason in event.left.items():
        packages_of.setdefault(reason, []).append(package)
    left = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in packages_of.items())
    return Words(
        f"restarted ranks found {modules} of {packages} imported, which took {took} beside the "
        "training",
        "",
        f"they import themselves: {left}" if left else "",
    )


def _attribution(event: e.AttributionResult) -> Words:
    advice = f" (it recommends {event.action})" if event.action else ""
    return Words(f"attribution of round {event.round}{advice}: {event.text}")


def _passed_on(event: e.SignalPassedOn) -> Words:
    if event.everywhere:
        what = "the ranks got it as well"
    elif event.ranks:
        what = f"passed on to {name_ranks(event.ranks)}"
    else:
        what = "no rank has a handler for it, so that it is not passed on"
    goes_on = "the job goes on (--signals-to-handle makes it a stop)"
    return Words(f"the launcher received {event.signal}: {what}", "", goes_on)


def _ended(event: e.JobEnded) -> Words:
    text = f"{outcome_in_words(event.outcome, event.reason)}: {event.reason}".removesuffix(": ")
    return Words(text, "bad" if event.exit_code else "good")


def _last_copy(event: e.LastCopy) -> Words:
    copy = f"the copy of step {event.step}" if event.step >= 0 else "what was copied last"
    if event.outcome == "written":
        return Words(f"{copy} is written to {event.place}")
    return Words(f"{copy} is lost, as it was not written to {event.place}: {event.why}", "bad")


def _kernel(event: e.KernelLogged) -> Words:
    first = "".join(event.lines[:1])
    more = f" and {event.count - 1} more" if event.count > 1 else ""
    return Words(
        f"the kernel of node {event.node} logged: {first}{more}", "odd", f"see {event.file}"
    )


_WORDS: dict[type[e.Event], Callable[[Any], Words]] = {
    e.JournalOpened: lambda event: Words(f"the launcher (pid {event.pid}) begins its journal"),
    e.JobStarted: _job_started,
    e.RoundStarted: lambda event: Words(f"round {event.round} begins"),
    e.WorkersSpawned: _spawned,
    e.RankMilestone: _milestone,
    e.RoundProgress: lambda event: Words(f"iteration {event.last_iteration} has begun"),
    e.FailureDetected: failure,
    e.EvidenceCollected: lambda event: Words(f"stacks of all ranks: {event.path}"),
    e.RankSilent: lambda event: Words(event.line, "odd"),
    e.Verdict: lambda event: Words(event.line, "bad"),
    e.LimitsChanged: _limits,
    e.StopRequested: lambda event: Words(f"round {event.round} is stopped: {event.reason}"),
    e.StopAgreed: _stop_agreed,
    e.RankExited: lambda event: Words(
        f"rank {event.rank} (pid {event.pid}) ended: {exit_in_words(event)}"
    ),
    e.RoundStopped: _stopped,
    e.RoundBlamed: _blamed,
    e.RoundAdvised: _advised,
    e.SlowRank: lambda event: Words(event.line, "" if event.over else "odd"),
    e.GpuThrottled: lambda event: Words(
        f"GPU {event.gpu}, which rank {event.rank} uses, has low clocks: "
        f"{', '.join(event.reasons)}",
        "odd",
    ),
    e.KernelLogged: _kernel,
    e.RankLost: lambda event: Words(
        f"rank {event.rank} (node {event.node}) is lost: {event.detail}",
        "bad",
        "the others go on without it",
    ),
    e.RankReplaced: lambda event: Words(f"rank {event.rank} is replaced by pid {event.pid}"),
    e.InProcessPhase: _inprocess,
    e.InProcessCall: _call,
    e.MemoryReclaimed: _memory,
    e.NodeChecked: _checked,
    e.Decision: _decision,
    e.ControlRequested: lambda event: Words(
        f"rank {event.rank} requests {event.action}: {event.description or 'no reason given'}",
        "odd",
    ),
    e.RankEvent: _rank_event,
    e.RankEventsLost: lambda event: Words(
        f"{count(event.count, 'event')} of rank {event.rank} came too fast to be read", "odd"
    ),
    e.TemplateReady: lambda event: Words(
        f"workers can start warm: {count(len(event.modules), 'module')} imported"
    ),
    e.ImportsLearned: _imports,
    e.TemplateLost: lambda event: Words(f"workers start fresh, not warm: {event.reason}", "odd"),
    e.AttributionResult: _attribution,
    e.AgentPaused: lambda event: Words(
        f"the agent, or its machine, did not run for {format_duration(event.seconds)}",
        "odd",
        "every deadline is moved by that",
    ),
    e.SignalReceived: lambda event: Words(f"the launcher received {event.signal}", "odd"),
    e.SignalPassedOn: _passed_on,
    e.EventsLost: lambda event: Words(
        f"{count(event.count, 'event')} missing in the journal: {event.reason}", "odd"
    ),
    e.Remark: lambda event: Words(event.text, _TONES.get(event.level, "")),
    e.JobEnded: _ended,
    e.LastCopy: _last_copy,
}
