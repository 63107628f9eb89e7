"""The report: a job and its launches as lines of styled pieces, for any terminal or none."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from undaunted.base.console import labelled, plain, table, wrap
from undaunted.base.text import (
    count,
    format_duration,
    format_ranks,
    name_ranks,
    one_line,
    printable,
)
from undaunted.journal.job.values import NodePart
from undaunted.journal.words import exit_in_words, outcome_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from undaunted.base.console import Line
    from undaunted.journal.checkpoints import Checkpoints
    from undaunted.journal.events import AgentPaused, RankExited
    from undaunted.journal.goodput import Times
    from undaunted.journal.job.values import (
        Cost,
        InProcessRestart,
        JobRound,
        JobSummary,
        LaunchSummary,
        Phases,
    )


Each = TypeVar("Each")

KINDS = {
    "crash": ("crash", "crashes"),
    "hang": ("hang", "hangs"),
    "spawn": ("failed start", "failed starts"),
    "failed": ("failure", "failures"),
    "lost": ("lost node", "lost nodes"),
}
"""Names of failures, one and several."""
STYLES = {"finished": "green", "crash": "red", "hang": "red", "spawn": "red", "failed": "red"}
INDENT = " " * 9
# How many restarts inside of processes `render_launch` explains per round.
_SHORT_INPROCESS = 5
# Of more different rounds one after the other, the first and the last are explained.
_FIRST_ROUNDS, _LAST_ROUNDS = 3, 12
_MOST_PAUSES = 3  # of an agent, in the detail of a round
_NUMBER = re.compile(r"[0-9]+(?:[.][0-9]+)?")
_MORE = "where the time went, and each part of the restarts: --times"

NO_END = {
    True: "still runs",
    False: "no end recorded, and its launcher is gone: killed, or its journal was cut off",
    None: "no end recorded: it still runs, or was killed",
}
_NAMED = 5  # nodes and ranks that failed
_SPARE = "nodes without a seat in the round"
# Width of explanations where nothing is known of the reader's terminal.
_LEGEND_WIDTH = 100
_INPROCESS_SHOWN = 20
_LONGEST_WHY = 200  # of a cause, where the round has all of it
_SHOWN_FROM_NS = 50_000  # what lasts less in sum is shown as 0 ms: such a column is left out


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the field it shows, and what it means, in a few words."""

    title: str
    field: str
    meaning: str


INPROCESS = (
    Column("abort", "abort_ns", "of communication, the longest of a rank"),
    Column("stop", "stop_ns", "from there until a rank was out of the function, the longest"),
    Column("finalize", "finalize_ns", "the longest"),
    Column("health", "health_ns", "checks of a rank, the longest"),
    Column("collect", "collect_ns", "garbage, the longest"),
    Column("agree", "agree_ns", "the rest, until all were known to be ready"),
    Column("total", "total_ns", "from the first reason until the function ran again"),
)
CLASSES = (
    Column("productive", "productive_ns", "steps done for the first time"),
    Column("recomputed", "recomputed_ns", "steps done again, and those a failure cut short"),
    Column("spawn", "spawn_ns", "until all workers existed"),
    Column("import", "import_ns", "imports for warm workers, and until the program ran"),
    Column("initialise", "initialise_ns", "from there until monitoring began"),
    Column("load", "load_ns", "until the first step"),
    Column("detect", "detect_ns", "until the failure was noticed (a hang: from its beginning)"),
    Column("evidence", "evidence_ns", "gathered and judged"),
    Column("decide", "decide_ns", "until the ranks were told to stop"),
    Column("stop", "stop_ns", "until all had ended"),
    Column("idle", "idle_ns", "between rounds, before the first and after the last"),
    Column("unknown", "unknown_ns", "the program ran, but never called undaunted.step"),
)


_MEANING = {one.title: one.meaning for one in CLASSES}
PHASES = (
    Column("detect", "detect_ns", "until the failure was noticed (a hang: from its limit)"),
    *(Column(name, f"{name}_ns", _MEANING[name]) for name in ("evidence", "decide", "stop")),
    Column("idle", "idle_ns", "until the next round began"),
    *(Column(name, f"{name}_ns", _MEANING[name]) for name in ("spawn", "import")),
    Column("total", "total_ns", "from the failure until the program ran on all ranks"),
    *(Column(name, f"{name}_ns", _MEANING[name]) for name in ("initialise", "load")),
)
"""Parts of a restart: classes of the time, and their sum up to the program."""


def _restart_table(launch: LaunchSummary, width: int | None) -> Iterator[Line]:
    """Yield how long each part of each restart took; ``width`` as in `render_launch`."""
    failed = [(one.round, one.phases) for one in launch.rounds if one.phases is not None]
    shown = [
        one
        for one in PHASES
        if one.title == "total" or any(getattr(each, one.field) is not None for _, each in failed)
    ]
    rows = [
        [str(number), *(_milliseconds(getattr(phases, one.field)) for one in shown)]
        for number, phases in failed
    ]
    yield from _table(
        "restarts, milliseconds", "after round", shown, rows, width, "-: not recorded"
    )


def _inprocess_table(launch: LaunchSummary, width: int | None) -> Iterator[Line]:
    """Yield how long the last restarts inside of processes took; ``width`` as above."""
    rows = [
        [f"{one.round}, {each.call}, {each.epoch}", *_inprocess_cells(each)]
        for one in launch.rounds
        for each in one.inprocess
    ]
    heading = "in-process restarts, milliseconds"
    if len(rows) > _INPROCESS_SHOWN:
        heading += f" (the last {_INPROCESS_SHOWN} of {len(rows)})"
    yield from _table(
        heading,
        "round, call, restart",
        INPROCESS,
        rows[-_INPROCESS_SHOWN:],
        width,
        "-: not recorded",
    )


def _inprocess_cells(restart: InProcessRestart) -> list[str]:
    return [_milliseconds(getattr(restart, column.field)) for column in INPROCESS]


def _time_table(launch: LaunchSummary, width: int | None, cost: Cost | None) -> Iterator[Line]:
    """Yield where the time of each round and of the launch went, without classes that are empty."""
    shown = [one for one in CLASSES if getattr(launch.times, one.field) >= _SHOWN_FROM_NS]
    rows = [[str(one.round), *_durations(one.times, shown)] for one in launch.rounds]
    rows.append(["all", *_durations(launch.times, shown)])
    whole = launch.times.total_ns
    if whole:
        parts = (getattr(launch.times, one.field) / whole for one in shown)
        rows.append(["share", *(percent(part) for part in parts)])
    if cost is not None:
        paid = (cost.by_class.get(one.title, 0.0) for one in shown)
        rows.append([one_line(cost.currency) or "cost", *(f"{amount:,.2f}" for amount in paid)])
    yield from _table("where the time went", "round", shown, rows, width)


def _class_table(job: JobSummary) -> Iterator[Line]:
    """Yield the rank-time and cost of each class that is not empty."""
    spent = [(one.title, getattr(job.times, one.field), one.meaning) for one in CLASSES]
    spent.append(("spare", job.spare_ns, _SPARE))
    whole_ns = job.times.total_ns + job.spare_ns
    heads = ["", "rank-time", "share"]
    if job.cost is not None:
        heads.append(one_line(job.cost.currency) or "cost")
    rows: list[list[str | tuple[str, str]]] = []
    for title, ns, meaning in spent:
        if ns <= 0:
            continue
        cost = [] if job.cost is None else [f"{job.cost.by_class[title]:,.2f}"]
        took = format_duration(ns / 1e9)
        rows.append([title, took, percent(ns / whole_ns), *cost, (meaning, "dim")])
    total = [] if job.cost is None else [f"{job.cost.total:,.2f}"]
    rows.append(["all", format_duration(whole_ns / 1e9), "100 %", *total, ""])
    yield [("where the time of all ranks went", "bold")]
    yield from table([*heads, ""], rows, right=range(1, len(heads)))


def _phase_cells(phases: Phases) -> Iterator[tuple[Column, str]]:
    for column in PHASES:
        took = _milliseconds(getattr(phases, column.field))
        yield column, took if took == "-" else f"{took} ms"


def _class_cells(times: Times) -> list[tuple[Column, str]]:
    """Return each class that is not empty with its duration."""
    shown = [one for one in CLASSES if getattr(times, one.field) >= _SHOWN_FROM_NS]
    return list(zip(shown, _durations(times, shown), strict=True))


def percent(part: float) -> str:
    """Return a part of a whole for people; only all of it is 100 %, only nothing of it 0 %."""
    if part <= 0 or part >= 1:
        return f"{part * 100:.0f} %"
    if part < 0.0005:
        return "<0.1 %"
    return f"{min(99.9, part * 100):.{0 if 0.095 <= part < 0.995 else 1}f} %"


def _durations(times: Times, shown: Sequence[Column]) -> list[str]:
    return [format_duration(getattr(times, one.field) / 1e9) for one in shown]


def _milliseconds(ns: int | None) -> str:
    if ns is None:
        return "-"
    ms = ns / 1e6
    return f"{ms:.1f}" if ms < 9.95 else f"{ms:.0f}"


def _table(
    heading: str,
    key: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int | None,
    more: str = "",
) -> Iterator[Line]:
    """Yield a table, or where it is too wide one paragraph per row; then what the columns mean."""
    titles = [key, *(column.title for column in columns)]
    lines = table(titles, rows, right=range(len(titles)))
    yield [(heading, "bold")]
    if width is not None and len(plain(lines[:1])) > width + 1:
        for row in rows:
            pairs = zip(titles[1:], row[1:], strict=True)
            said = ", ".join(f"{title} {cell}" for title, cell in pairs)
            name = f"round {row[0]}" if row[0].isdigit() else row[0]
            first, *others = wrap(f"{name}: {said}", width, 2)
            yield from [[(first, "")], *([("  " + other, "")] for other in others)]
    else:
        yield from lines
    meanings = [f"{column.title}: {column.meaning}" for column in columns]
    legend = "; ".join([*meanings, *([more] if more else [])])
    yield from ([(part, "dim")] for part in wrap(legend, width or _LEGEND_WIDTH))


# --- the report -----------------------------------------------------------------------------------


def render_job(
    job: JobSummary, *, width: int | None = None, times: bool = False, everything: bool = False
) -> list[Line]:
    """Return the report of a job on all its nodes.

    Args:
        job: its summary.
        width: columns of the terminal; None leaves long lines alone.
        times: with the table of times.
        everything: every round, also those that are like the one before.
    """
    lines = [*_job(job, width), []]
    seen: set[str] = set()
    for few in shown_rounds(job.rounds, _likeness, everything=everything):
        if len(few) > 1:
            lines.append(
                alike(_name(job, few[0]), _name(job, few[-1]), {one.outcome for one in few})
            )
        else:
            lines.extend(_of_job(job, few[0], width, _longest(few[0], 500, seen)))
    if times and job.times.total_ns + job.spare_ns:
        lines.extend([[], *_class_table(job)])
    for note in job.notes:
        lines.extend(labelled("note: ", one_line(note), width, style="yellow"))
    return lines


def render_launch(
    launch: LaunchSummary,
    *,
    width: int | None = None,
    times: bool = False,
    everything: bool = False,
    cost: Cost | None = None,
) -> list[Line]:
    """Return the report of one launch.

    Args:
        launch: its summary.
        width: columns of the terminal; None leaves long lines alone.
        times: with the tables of times.
        everything: every round, also those that are like the one before.
        cost: of the job, where this launch is all of it.
    """
    lines = [*_launch(launch, cost, width), []]
    seen: set[str] = set()
    for few in shown_rounds(launch.rounds, _likeness, everything=everything):
        if len(few) > 1:
            lines.append(alike(few[0].round, few[-1].round, {one.outcome for one in few}))
        else:
            lines.extend(_of_node(few[0], width, _longest(few[0], 2000, seen)))
            lines.extend(_inprocess(few[0], width, most=_SHORT_INPROCESS))
    if times:
        lines.extend(_times(launch, width, cost))
    elif launch.times.total_ns and launch.rounds:
        lines.append([(_MORE, "dim")])
    for note in launch.notes:
        lines.extend(labelled("note: ", one_line(note), width, style="yellow"))
    if launch.log_dir:
        lines.append([("logs: ", "dim"), (printable(launch.log_dir), "")])
    return lines


def render_round(launch: LaunchSummary, number: int, *, width: int | None = None) -> list[Line]:
    """Return all that is known about a round; nothing if the launch has no such round."""
    found = [one for one in launch.rounds if one.round == number]
    lines: list[Line] = []
    for one in found:
        lines.extend(_of_node(one, width))
        lines.extend(_details(one))
        lines.extend(_inprocess(one, width, most=len(one.inprocess)))
        if one.phases is not None:
            lines.extend(_list("the restart", _phase_cells(one.phases)))
        lines.extend(_list("where its time went", _class_cells(one.times)))
    return lines


def _times(launch: LaunchSummary, width: int | None, cost: Cost | None) -> Iterator[Line]:
    if any(one.phases is not None for one in launch.rounds):
        yield []
        yield from _restart_table(launch, width)
    if any(one.inprocess for one in launch.rounds):
        yield []
        yield from _inprocess_table(launch, width)
    if launch.times.total_ns and launch.rounds:
        yield []
        yield from _time_table(launch, width, cost)


# --- its head -------------------------------------------------------------------------------------


def _job(job: JobSummary, width: int | None) -> Iterator[Line]:
    known = job.goodput is not None and job.ettr is not None
    took = f", took {format_duration(job.duration_ns / 1e9)}"
    if not job.outcome:
        took = _recorded(job.duration_ns)
    if job.attempts > 1:
        took += f" in {job.attempts} launches, {format_duration(job.between_ns / 1e9)} between them"
    yield from _head(
        job,
        [(f"job {one_line(job.run_id)}" if job.run_id else "job of unknown name", "bold")],
        still_runs(job),
        [f"ETTR {percent(job.ettr)}"] if known and job.ettr is not None else [],
        f"{count(job.world_size, 'rank')}, {count(len(job.nodes), 'node')}",
        took,
        width,
    )
    yield [("restarts: ", "dim"), (_restarts_of_job(job), "")]
    if job.failures.count:
        yield from labelled("failures: ", _failures(job), width)
    yield from _cost(job.cost, width)
    if job.checkpoints is not None:
        yield from checkpoint_lines(job.checkpoints)
    if len(job.clocks) > 1:
        yield [("clocks:   ", "dim"), (_clocks(job), "")]


def _launch(launch: LaunchSummary, cost: Cost | None, width: int | None) -> Iterator[Line]:
    name = f"run {launch.run_id}" if launch.run_id else "run of unknown name"
    took = _recorded(launch.times.total_ns)
    if launch.duration_ns is not None:
        took = f", took {format_duration(launch.duration_ns / 1e9)}"
    yield from _head(
        launch,
        [(one_line(name), "bold"), (f" on {one_line(launch.node)}" if launch.node else "", "")],
        launch.running,
        [],
        f"{count(launch.nproc_per_node, 'rank')} on this node",
        took,
        width,
    )
    yield [("restarts: ", "dim"), (_restarts(launch), "")]
    yield from _cost(cost, width)
    if launch.checkpoints is not None:
        yield from checkpoint_lines(launch.checkpoints)


def _head(
    of: JobSummary | LaunchSummary,
    name: Line,
    running: bool | None,
    figures: Sequence[str],
    ranks: str,
    took: str,
    width: int | None,
) -> Iterator[Line]:
    """Yield what a job and a launch have in common: the end, the downtime, the program."""
    outcome = outcome_in_words(of.outcome, of.reason) or NO_END[running]
    figures = [
        "" if of.exit_code is None else f"exit code {of.exit_code}",
        _down(of.lost_ns, of.duration_ns),
        "" if of.goodput is None else f"goodput {percent(of.goodput)}",
        *figures,
    ]
    yield [
        *name,
        (": ", ""),
        (one_line(outcome), STYLES.get(of.outcome, "yellow")),
        ("".join(f", {figure}" for figure in figures if figure), ""),
    ]
    failed = [(one.outcome, one.cause) for one in of.rounds if one.outcome in KINDS]
    yield from _why(failed, of.reason if of.exit_code or not failed else "", width)
    if of.argv:
        program = f"{one_line(' '.join(of.argv), longest=200)} ({ranks})"
        yield from labelled("program:  ", program, width)
    if of.started_wall is not None:
        yield [("started:  ", "dim"), (utc(of.started_wall) + took, "")]


def _why(failures: Sequence[tuple[str, str]], reason: str, width: int | None) -> Iterator[Line]:
    """Yield what has kept a job from its work, and why it ended.

    Args:
        failures: the kind of each round that failed, and its cause.
        reason: why the job ended, "" = not shown; the part in the last cause is left out.
        width: columns of the terminal; None leaves long lines alone.
    """
    if failures:
        cause = failures[-1][1]
        kinds = Counter(kind for kind, _ in failures)
        text = one_line(cause.partition("; ")[0], longest=_LONGEST_WHY) or "unknown"
        if len(failures) > 1:
            text = f"{_counted(kinds)}; the last: {text}"
        yield from labelled("why:      ", text, width)
        reason = reason.removeprefix(cause).lstrip("; ") if cause else reason
    if reason:
        yield from labelled("reason:   ", one_line(reason), width)


def _counted(kinds: Mapping[str, int]) -> str:
    """Return how many failures there were of each kind."""
    names = ((KINDS.get(kind, (one_line(kind),) * 2), number) for kind, number in kinds.items())
    return ", ".join(f"{number} {one if number == 1 else many}" for (one, many), number in names)


def shown_rounds(
    rounds: Sequence[Each], likeness: Callable[[Each], object], *, everything: bool
) -> Iterator[Sequence[Each]]:
    """Yield rounds that are shown by themselves, and several that are shown as one line.

    Args:
        rounds: in their order.
        likeness: what is the same of rounds that need not be shown one by one.
        everything: each by itself.
    """
    if everything:
        yield from ([one] for one in rounds)
        return
    groups = [list(group) for _, group in groupby(rounds, likeness)]
    # Of those that are alike the first is shown, and two are no fewer lines as one.
    few = [
        part
        for group in groups
        for part in ([group[:1], group[1:]] if len(group) > 2 else [[one] for one in group])
    ]
    if few and len(few[-1]) > 1:  # the last one is what people ask about
        few[-1:] = [few[-1][:-1], few[-1][-1:]]
    if len(few) > _FIRST_ROUNDS + _LAST_ROUNDS + 1:
        between = [one for part in few[_FIRST_ROUNDS:-_LAST_ROUNDS] for one in part]
        few = [*few[:_FIRST_ROUNDS], between, *few[-_LAST_ROUNDS:]]
    yield from few


def without_numbers(text: str) -> str:
    """Return a text in which numbers do not count: processes, times, iterations, files."""
    return _NUMBER.sub("#", text)


def alike(first: object, last: object, outcomes: set[str]) -> Line:
    """Return the line for rounds that are not shown one by one."""
    what = "the same" if len(outcomes) == 1 else one_line(", ".join(sorted(outcomes)))
    return [(f"rounds {first} to {last}", "bold"), (f"  {what}; --all shows them", "dim")]


def _cost(cost: Cost | None, width: int | None) -> Iterator[Line]:
    if cost is None:
        return
    currency = f" {one_line(cost.currency)}" if cost.currency else ""
    text = (
        f"{cost.total:,.2f}{currency}, {cost.productive:,.2f}{currency} of it productive "
        f"(a rank-hour is {cost.price:g}{currency})"
    )
    yield from labelled("cost:     ", text, width)


def checkpoint_lines(of: Checkpoints) -> Iterator[Line]:
    """Yield one line of facts and, where there were failures, one of advice."""
    facts = [f"{of.saved} saved"]
    if of.stall_s is not None:
        facts.append(f"stopped training for {format_duration(of.stall_s)}")
    if of.total_s is not None:
        facts.append(f"committed after {format_duration(of.total_s)}")
    if of.interval_s is not None:
        facts.append(f"one every {format_duration(of.interval_s)}")
    if of.failed:
        facts.append(f"{of.failed} failed")
    if of.loaded:
        took = "" if of.load_s is None else f" in {format_duration(of.load_s)}"
        facts.append(f"{of.loaded} loaded{took}")
    yield [("checkpoints: ", "dim"), (", ".join(facts), "")]
    if of.advice_s is None or of.between_failures_s is None or of.advised_cost is None:
        return
    now = "" if of.present_cost is None else f" (now {percent(of.present_cost)})"
    text = (
        f"with a failure every {format_duration(of.between_failures_s)}, a checkpoint every "
        f"{format_duration(of.advice_s)} costs the least: {percent(of.advised_cost)} of the "
        f"time{now} for stops, steps done again and loads (Young/Daly)"
    )
    yield [("advice:   ", "dim"), (text, "")]


def _down(lost_ns: int, of_ns: int | None) -> str:
    """Return how long failures kept a job from running, "" = for no time."""
    if not lost_ns:
        return ""
    whole = "" if of_ns is None else f" of {format_duration(of_ns / 1e9)}"
    return f"down {format_duration(lost_ns / 1e9)}{whole}"


def _recorded(ns: int) -> str:
    """Return how much time a journal without an end has: goodput and times are of that alone."""
    return f", recorded up to {format_duration(ns / 1e9)} later" if ns else ""


def ordered(number: int) -> str:
    """Return how many restarts were ordered, behind the number of the others."""
    return f", {number} more on request" if number else ""


def _restarts(launch: LaunchSummary) -> str:
    text = f"{launch.restarts - launch.restarts_ordered} of {launch.max_restarts}"
    text += ordered(launch.restarts_ordered)
    if launch.restarts > launch.untimed_restarts:
        text += f", {format_duration(launch.lost_ns / 1e9)} lost"
    if launch.untimed_restarts:
        text += f" ({launch.untimed_restarts} of unknown duration)"
    inside = [each for one in launch.rounds for each in one.inprocess]
    if inside:
        lost_s = sum(each.total_ns or 0 for each in inside) / 1e9
        text += f"; {len(inside)} in-process, {format_duration(lost_s)} lost"
    return text


def still_runs(job: JobSummary) -> bool | None:
    """Tell whether a launcher still runs, as far as that is known of those without an end."""
    known = {run.running for run in job.launches if not run.outcome}
    return True if True in known else False if known == {False} else None


def _restarts_of_job(job: JobSummary) -> str:
    text = str(job.restarts - job.restarts_ordered) + ordered(job.restarts_ordered)
    if job.lost_ns:
        text += f", {format_duration(job.lost_ns / 1e9)} lost"
    if job.lost_steps:
        text += f", {count(job.lost_steps, 'step')} done again"
    if job.failures.in_process:
        text += f"; {job.failures.in_process} in-process"
    return text


def _failures(job: JobSummary) -> str:
    failures = job.failures
    text = str(failures.count)
    if failures.mttf_ns is not None:
        text += f", one in {format_duration(failures.mttf_ns / 1e9)} (MTTF)"
    text += f": {_counted(failures.by_kind)}"
    if failures.by_node:
        text += f"; by node: {_most(failures.by_node)}"
    if failures.by_rank:
        text += f"; by rank: {_most(failures.by_rank)}"
    return text


def _most(numbers: Mapping[str, int] | Mapping[int, int]) -> str:
    shown = [f"{one_line(str(name))} ({number})" for name, number in numbers.items()]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more


def _clocks(job: JobSummary) -> str:
    known = [clock.uncertainty_ns for clock in job.clocks if clock.uncertainty_ns is not None]
    text = f"{len(job.clocks)} machines, related by the order of events"
    return text + (f" to ±{format_duration(max(known) / 1e9)}" if len(known) > 1 else "")


# --- its rounds -----------------------------------------------------------------------------------


def _of_job(job: JobSummary, one: JobRound, width: int | None, longest: int) -> Iterator[Line]:
    took_ns = None if one.stopped_ns is None else one.stopped_ns - one.began_ns
    facts = [count(one.world_size, "rank"), count(len(one.parts), "node")]
    facts += _iterations(one.first_iteration, one.last_iteration)
    yield from _round(one, _name(job, one), took_ns, facts, one_line(one.cause, longest), width)
    undone = [f"{count(one.lost_steps, 'step')} done again"] if one.lost_steps else []
    if one.restart_ns is not None:
        took = format_duration(one.restart_ns / 1e9)
        undone.append(f"all ranks running again {took} after the failure")
    if undone:
        yield [(INDENT + ", ".join(undone), "dim")]


def _of_node(one: NodePart, width: int | None, longest: int = 2000) -> Iterator[Line]:
    facts = [f"{one_line(one.worker_start) or 'no'} start"]
    facts += _iterations(next(iter(one.iterations), None), one.last_iteration)
    cause = one.cause.replace(f"; stacks: {one.stacks}", "", 1)  # they have their own line
    yield from _round(one, f"{one.round}", one.duration_ns, facts, one_line(cause, longest), width)
    if one.stacks:
        yield [(f"{INDENT}stacks: ", "dim"), (printable(one.stacks), "")]


def _round(
    one: JobRound | NodePart,
    name: str,
    took_ns: int | None,
    facts: Sequence[str],
    cause: str,
    width: int | None,
) -> Iterator[Line]:
    took = "-" if took_ns is None else format_duration(took_ns / 1e9)
    yield [
        (f"round {name:<2} ", "bold"),
        ("".join(f"{fact}, " for fact in (took, *facts)), ""),
        (one_line(one.outcome or "no end recorded"), STYLES.get(one.outcome, "yellow")),
    ]
    if cause and one.outcome != "finished":
        yield from ([(INDENT + part, "")] for part in wrap(cause, width, len(INDENT)))
    if one.advised is not None and one.advised.line:  # more than a restart
        word = "done: " if one.advised.done else "advice: "
        yield from labelled(f"{INDENT}{word}", one_line(one.advised.line, longest=500), width)
    if one.pause:
        yield [(INDENT + one_line(one.pause), "dim")]


def _iterations(first: int | None, last: int | None) -> list[str]:
    return [] if first is None or last is None else [f"iterations {first} to {last}"]


def _likeness(one: JobRound | NodePart) -> object:
    inside = isinstance(one, NodePart) and bool(one.inprocess)
    return one.outcome, without_numbers(one.cause), inside, one.advised is None, one.pause == ""


def _name(job: JobSummary, one: JobRound) -> str:
    return f"{one.round}" if job.attempts == 1 else f"{one.attempt}.{one.round}"


def _longest(one: JobRound | NodePart, longest: int, seen: set[str]) -> int:
    """Return how much of a cause is shown: less, once a cause like it was shown.

    Args:
        one: the round.
        longest: of a cause that is new, characters.
        seen: causes that were shown, without numbers; this one is added.
    """
    text = without_numbers(one.cause)
    known = text in seen
    seen.add(text)
    return _LONGEST_WHY if known else longest


def _inprocess(one: NodePart, width: int | None, *, most: int) -> Iterator[Line]:
    """Yield why a function was restarted, for the last ``most`` times."""
    if len(one.inprocess) > most:
        yield [(f"{INDENT}... {len(one.inprocess) - most} earlier in-process restarts", "dim")]
    for restart in one.inprocess[max(0, len(one.inprocess) - most) :]:
        ranks = count(restart.members, "rank") if restart.members else "no rank"
        lost = f" (without {format_ranks(restart.lost)})" if restart.lost else ""
        cause = restart.causes[0] if restart.causes else "it was stopped"
        text = f"in-process restart {restart.epoch}: {ranks}{lost} again after {cause}"
        for part in wrap(one_line(text, longest=400), width, len(INDENT)):
            yield [(INDENT + part, "")]


def _details(one: NodePart) -> Iterator[Line]:
    yield [(f"{INDENT}ranks: ", "dim"), (f"{format_ranks(one.ranks)} of {one.world_size}", "")]
    if one.iterations:
        steps = ", ".join(map(str, one.iterations))
        last = "" if one.last_iteration is None else f", reached: {one.last_iteration}"
        yield [(f"{INDENT}first iteration: ", "dim"), (steps + last, "")]
    verdict = one.verdict
    if verdict is not None and verdict.waiting:
        yield [(f"{INDENT}waiting for it: ", "dim"), (name_ranks(verdict.waiting), "")]
    if verdict is not None and verdict.frame:
        yield [(f"{INDENT}at: ", "dim"), (one_line(verdict.frame), "")]
    if verdict is not None and verdict.distribution:
        yield [(f"{INDENT}before: ", "dim"), (one_line(verdict.distribution), "")]
    if one.pauses:
        yield [(f"{INDENT}stood still: ", "dim"), (_pauses(one.pauses), "")]
    for exited in one.exits:
        yield [(f"{INDENT}{_exit(exited)}", "")]
    if verdict is not None and verdict.traceback:
        for line in printable(verdict.traceback).splitlines():
            yield [(f"{INDENT}  {line}", "dim")]


def _pauses(pauses: Sequence[AgentPaused]) -> str:
    last = pauses[-_MOST_PAUSES:]
    told = [f"{format_duration(one.seconds)} until {utc(one.wall)}" for one in last]
    more = [f"{len(pauses) - len(last)} times before"] if len(pauses) > len(last) else []
    return f"the agent, or its machine, for {', '.join([*told, *more])}"


def _exit(exited: RankExited) -> str:
    return f"rank {exited.rank} (pid {exited.pid}): {one_line(exit_in_words(exited))}"


def _list(heading: str, cells: Iterable[tuple[Column, str]]) -> Iterator[Line]:
    yield [(f"{INDENT}{heading}:", "dim")]
    for column, cell in cells:
        yield [
            (f"{INDENT}  {column.title:<11}", "dim"),
            (f"{cell:<8} ", ""),
            (column.meaning, "dim"),
        ]


def utc(wall: float) -> str:
    """Return Unix time as a date and a time of day."""
    try:
        when = datetime.fromtimestamp(wall, tz=UTC)
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")
