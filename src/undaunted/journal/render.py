"""Summaries as text for people: lines of styled pieces, without any terminal in sight."""

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
from undaunted.journal.words import exit_in_words, outcome_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from undaunted.base.console import Line
    from undaunted.journal.checkpoints import Checkpoints
    from undaunted.journal.events import RankExited, RoundAdvised
    from undaunted.journal.goodput import Times
    from undaunted.journal.job.values import Cost
    from undaunted.journal.summary import InProcessRestart, Phases, RoundSummary, RunSummary


Each = TypeVar("Each")

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


def restart_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    """Yield how long each failure took to be got over; ``width`` as in ``render_run``."""
    failed = [(one.round, one.phases) for one in run.rounds if one.phases is not None]
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


def inprocess_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    """Yield how long the last restarts inside of processes took; ``width`` as above."""
    rows = [
        [f"{one.round}, {each.call}, {each.epoch}", *_inprocess_cells(each)]
        for one in run.rounds
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


def time_table(run: RunSummary, width: int | None) -> Iterator[Line]:
    """Yield where the time of each round, and of the run, went; without classes that are empty."""
    shown = [one for one in CLASSES if getattr(run.times, one.field) >= _SHOWN_FROM_NS]
    rows = [[str(one.round), *_durations(one.times, shown)] for one in run.rounds]
    rows.append(["all", *_durations(run.times, shown)])
    whole = run.times.total_ns
    if whole:
        parts = (getattr(run.times, one.field) / whole for one in shown)
        rows.append(["share", *(percent(part) for part in parts)])
    yield from _table("where the time went", "round", shown, rows, width)


def _phase_cells(phases: Phases) -> Iterator[tuple[Column, str]]:
    for column in PHASES:
        took = _milliseconds(getattr(phases, column.field))
        yield column, took if took == "-" else f"{took} ms"


def class_cells(times: Times) -> list[tuple[Column, str]]:
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


KINDS = {
    "crash": ("crash", "crashes"),
    "hang": ("hang", "hangs"),
    "spawn": ("failed start", "failed starts"),
    "failed": ("failure", "failures"),
    "lost": ("lost node", "lost nodes"),
}
"""What ends a round, one and several of it."""
STYLES = {"finished": "green", "crash": "red", "hang": "red", "spawn": "red", "failed": "red"}
INDENT = " " * 9
# How many restarts inside of processes `render_run` explains per round.
_SHORT_INPROCESS = 5
# Of more different rounds one after the other, the first and the last are explained.
_FIRST_ROUNDS, _LAST_ROUNDS = 3, 12
_NUMBER = re.compile(r"[0-9]+(?:[.][0-9]+)?")
_MORE = "where the time went, and each part of the restarts: --times"

NO_END = {
    True: "still runs",
    False: "no end recorded, and its launcher is gone: killed, or its journal was cut off",
    None: "no end recorded: it still runs, or was killed",
}


def render_run(
    run: RunSummary,
    *,
    width: int | None = None,
    times: bool = False,
    everything: bool = False,
    cost: Cost | None = None,
) -> list[Line]:
    """Return the report of one launch.

    Args:
        run: the summary.
        width: columns of the terminal; None leaves long lines alone.
        times: with the tables of times.
        everything: every round, also those that are like the one before.
        cost: of the job, where this launch is all of it.
    """
    lines = list(_header(run, width))
    if cost is not None:
        lines.extend(cost_line(cost, width))
    lines.append([])
    seen: set[str] = set()
    for few in shown_rounds(run.rounds, _likeness, everything=everything):
        one = few[0]
        if len(few) > 1:
            lines.append(alike(one.round, few[-1].round, {each.outcome for each in few}))
            continue
        lines.extend(_round(one, width, longest=longest_cause(one.cause, 2000, seen)))
        lines.extend(_inprocess(one, width, most=_SHORT_INPROCESS))
    if times:
        lines.extend(_times(run, width))
    elif run.times.total_ns and run.rounds:
        lines.append([(_MORE, "dim")])
    for note in run.notes:
        lines.extend(labelled("note: ", one_line(note), width, style="yellow"))
    if run.log_dir:
        lines.append([("logs: ", "dim"), (printable(run.log_dir), "")])
    return lines


def _times(run: RunSummary, width: int | None) -> Iterator[Line]:
    tables = (
        (restart_table, any(one.phases is not None for one in run.rounds)),
        (inprocess_table, any(one.inprocess for one in run.rounds)),
        (time_table, bool(run.times.total_ns and run.rounds)),
    )
    for lines_of, has_rows in tables:
        if has_rows:
            yield []
            yield from lines_of(run, width)


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


def _likeness(one: RoundSummary) -> object:
    return one.outcome, without_numbers(one.cause), bool(one.inprocess), one.advised is None


def alike(first: object, last: object, outcomes: set[str]) -> Line:
    """Return the line for rounds that are not shown one by one."""
    what = "the same" if len(outcomes) == 1 else one_line(", ".join(sorted(outcomes)))
    return [(f"rounds {first} to {last}", "bold"), (f"  {what}; --all shows them", "dim")]


def why(failures: Sequence[tuple[str, str]], reason: str, width: int | None) -> Iterator[Line]:
    """Yield what has kept a job from its work, and why it ended.

    Args:
        failures: the kind of each round that failed, and its cause.
        reason: why the job ended, "" = nobody asks; what the last cause says is left out.
        width: columns of the terminal; None leaves long lines alone.
    """
    if failures:
        cause = failures[-1][1]
        kinds = Counter(kind for kind, _ in failures)
        text = one_line(cause.partition("; ")[0], longest=_LONGEST_WHY) or "nobody knows"
        if len(failures) > 1:
            text = f"{counted(kinds)}; the last: {text}"
        yield from labelled("why:      ", text, width)
        reason = reason.removeprefix(cause).lstrip("; ") if cause else reason
    if reason:
        yield from labelled("reason:   ", one_line(reason), width)


def counted(kinds: Mapping[str, int]) -> str:
    """Return how many failures there were of each kind."""
    names = ((KINDS.get(kind, (one_line(kind),) * 2), number) for kind, number in kinds.items())
    return ", ".join(f"{number} {one if number == 1 else many}" for (one, many), number in names)


def render_round(run: RunSummary, number: int, *, width: int | None = None) -> list[Line]:
    """Return everything known about one round; nothing if the run has no such round."""
    found = [one for one in run.rounds if one.round == number]
    lines: list[Line] = []
    for one in found:
        lines.extend(_round(one, width))
        lines.extend(_details(one))
        lines.extend(_inprocess(one, width, most=len(one.inprocess)))
        if one.phases is not None:
            lines.extend(_list("the restart", _phase_cells(one.phases)))
        lines.extend(_list("where its time went", class_cells(one.times)))
    return lines


def _header(run: RunSummary, width: int | None) -> Iterator[Line]:
    outcome = outcome_in_words(run.outcome, run.reason) or NO_END[run.running]
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    name = f"run {run.run_id}" if run.run_id else "run of unknown name"
    yield [
        (one_line(name), "bold"),
        (f" on {one_line(run.node)}: " if run.node else ": ", ""),
        (one_line(outcome), STYLES.get(run.outcome, "yellow")),
        (code, ""),
        (f", {told}" if (told := down(run.lost_ns, run.duration_ns)) else "", ""),
        ("" if run.goodput is None else f", goodput {percent(run.goodput)}", ""),
    ]
    failed = [(one.outcome, one.cause) for one in run.rounds if one.outcome in KINDS]
    yield from why(failed, run.reason if run.exit_code or not failed else "", width)
    if run.argv:
        ranks = f" ({count(run.nproc_per_node, 'rank')} on this node)"
        program = one_line(" ".join(run.argv), longest=200) + ranks
        yield from labelled("program:  ", program, width)
    if run.started_wall is not None:
        if run.duration_ns is not None:
            took = f", took {format_duration(run.duration_ns / 1e9)}"
        else:
            took = told_for(run.times.total_ns)
        yield [("started:  ", "dim"), (utc(run.started_wall) + took, "")]
    yield [("restarts: ", "dim"), (_restarts(run), "")]
    if run.checkpoints is not None:
        yield from checkpoint_lines(run.checkpoints)


def cost_line(cost: Cost, width: int | None) -> Iterator[Line]:
    """Yield what the time of a job cost."""
    currency = f" {one_line(cost.currency)}" if cost.currency else ""
    text = (
        f"{cost.total:,.2f}{currency}, {cost.productive:,.2f}{currency} of it productive "
        f"(a rank-hour is {cost.price:g}{currency})"
    )
    yield from labelled("cost:     ", text, width)


def down(lost_ns: int, of_ns: int | None) -> str:
    """Return how long failures kept a job from running, "" = for no time."""
    if not lost_ns:
        return ""
    whole = "" if of_ns is None else f" of {format_duration(of_ns / 1e9)}"
    return f"down {format_duration(lost_ns / 1e9)}{whole}"


def told_for(ns: int) -> str:
    """Return how much a journal without an end tells: goodput and times are of that alone."""
    return f", told up to {format_duration(ns / 1e9)} later" if ns else ""


def ordered(number: int) -> str:
    """Return how many restarts were ordered, behind the number of the others."""
    return f", {number} more on request" if number else ""


def _restarts(run: RunSummary) -> str:
    text = f"{run.restarts - run.restarts_ordered} of {run.max_restarts}"
    text += ordered(run.restarts_ordered)
    if run.restarts > run.untimed_restarts:
        text += f", {format_duration(run.lost_ns / 1e9)} lost"
    if run.untimed_restarts:
        text += f" ({run.untimed_restarts} of unknown duration)"
    inside = [each for one in run.rounds for each in one.inprocess]
    if inside:
        lost_s = sum(each.total_ns or 0 for each in inside) / 1e9
        text += f"; {len(inside)} in-process, {format_duration(lost_s)} lost"
    return text


def longest_cause(cause: str, longest: int, seen: set[str]) -> int:
    """Return how much of a cause is shown: less, once one that is alike was shown.

    Args:
        cause: of a round.
        longest: of one that is new, characters.
        seen: causes that were shown, without numbers; this one is added.
    """
    text = without_numbers(cause)
    known = text in seen
    seen.add(text)
    return _LONGEST_WHY if known else longest


def _round(one: RoundSummary, width: int | None, *, longest: int = 2000) -> Iterator[Line]:
    took = "-" if one.duration_ns is None else format_duration(one.duration_ns / 1e9)
    outcome = one.outcome or "no end recorded"
    yield [
        (f"round {one.round:<2} ", "bold"),
        (f"{took}, {one_line(one.worker_start) or 'no'} start, {iterations(one)}", ""),
        (one_line(outcome), STYLES.get(one.outcome, "yellow")),
    ]
    if one.cause and one.outcome != "finished":
        cause = one.cause.replace(f"; stacks: {one.stacks}", "", 1)  # they have their own line
        for part in wrap(one_line(cause, longest=longest), width, len(INDENT)):
            yield [(INDENT + part, "")]
    yield from advice_line(one.advised, width)
    if one.stacks:
        yield [(f"{INDENT}stacks: ", "dim"), (printable(one.stacks), "")]


def advice_line(advised: RoundAdvised | None, width: int | None) -> Iterator[Line]:
    """Yield what was best done after a round, where that is more than a restart."""
    if advised is not None and advised.line:
        word = "done: " if advised.done else "advice: "
        yield from labelled(f"{INDENT}{word}", one_line(advised.line, longest=500), width)


def _inprocess(one: RoundSummary, width: int | None, *, most: int) -> Iterator[Line]:
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


def iterations(one: RoundSummary) -> str:
    """Return which iterations a round began."""
    if not one.iterations or one.last_iteration is None:
        return ""
    return f"iterations {one.iterations[0]} to {one.last_iteration}, "


def _details(one: RoundSummary) -> Iterator[Line]:
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
    for exited in one.exits:
        yield [(f"{INDENT}{_exit(exited)}", "")]
    if verdict is not None and verdict.traceback:
        for line in printable(verdict.traceback).splitlines():
            yield [(f"{INDENT}  {line}", "dim")]


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
