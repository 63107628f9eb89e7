"""A job as Chrome trace events, which Perfetto opens: pure, from a job and its launches.

Times are whole microseconds since the job began. Process 1 is the job, and each node is one more;
a node has a thread for its launcher and one for each of its ranks. Slices of one thread nest.
Events are in the order of time, behind the names of tracks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.text import one_line
from undaunted.journal import events as e
from undaunted.journal.checkpoints import Save, save_of
from undaunted.journal.files import write_output
from undaunted.journal.goodput import STARTING
from undaunted.journal.page.timeline import Marks, Texts
from undaunted.journal.query import every

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from undaunted.journal.goodput import Span
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobRound, JobSummary
    from undaunted.journal.launch import RoundState

MOST_OF_LAUNCHERS = 100_000
MOST_OF_RANKS = 200_000
"""Events of the rounds of a job, on the threads of launchers and of ranks; the newest are kept."""

_JOB = 1
_FIRST_NODE = 2
_FIRST_RANK = 100_000  # numbers of threads differ in the whole file
_MILESTONES = ("first_line", "initialized", "first_step")


class TraceEvent(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """One event as the format names its keys; ``ts`` and ``dur`` are microseconds."""

    name: str
    ph: str
    pid: int
    tid: int
    ts: int | None = None
    dur: int | None = None
    cat: str = ""
    s: str = ""
    id: str = ""
    args: dict[str, Any] = {}


def trace(
    job: JobSummary,
    launches: Sequence[Launch],
    *,
    most_of_launchers: int = MOST_OF_LAUNCHERS,
    most_of_ranks: int = MOST_OF_RANKS,
) -> str:
    """Return the job as JSON of Chrome's trace event format.

    Args:
        job: the summary of the job.
        launches: those it was made from, placed on its axis by that.
        most_of_launchers: bound for what launchers did in rounds; the oldest rounds are left out.
        most_of_ranks: likewise for ranks.
    """
    pids = {name: _FIRST_NODE + place for place, name in enumerate(job.nodes)}
    of_rounds, left_out = _rounds(job, launches, pids, most_of_launchers, most_of_ranks)
    events = [
        *_names(launches, pids),
        *_job(job),
        *(_launch(job, launch, pids[launch.node]) for launch in launches),
        *of_rounds,
        *_marks(job, launches, pids),
    ]
    events.sort(key=_when)  # of two at once the one around the other stays first
    about = {
        "run_id": one_line(job.run_id),
        "started_wall": job.started_wall,
        "rounds_without_launchers": left_out[0],
        "rounds_without_ranks": left_out[1],
    }
    data = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}
    return msgspec.json.encode(data).decode()


def write_trace(job: JobSummary, launches: Sequence[Launch], file: str | os.PathLike[str]) -> None:
    """Write the trace of a job as a file.

    Args:
        job: its summary.
        launches: those it was made from.
        file: see `write_output`.

    Raises:
        OSError: the file cannot be written.
    """
    write_output(file, trace(job, launches))


# --- tracks ---------------------------------------------------------------------------------------


def _names(launches: Sequence[Launch], pids: dict[str, int]) -> Iterator[TraceEvent]:
    yield from _named(_JOB, _JOB, "job", "rounds")
    for name, pid in pids.items():
        yield from _named(pid, pid, f"node {one_line(name)}", "launcher")
    ranks = {
        (pids[launch.node], rank)
        for launch in launches
        for one in launch.state.rounds.values()
        for rank in one.ranks
    }
    for pid, rank in sorted(ranks):
        yield _meta(pid, _thread(rank), "thread_name", name=f"rank {rank}")
        yield _meta(pid, _thread(rank), "thread_sort_index", sort_index=1 + rank)


def _named(pid: int, tid: int, process: str, thread: str) -> Iterator[TraceEvent]:
    yield _meta(pid, tid, "process_name", name=process)
    yield _meta(pid, tid, "process_sort_index", sort_index=pid)
    yield _meta(pid, tid, "thread_name", name=thread)
    yield _meta(pid, tid, "thread_sort_index", sort_index=0)


def _meta(pid: int, tid: int, key: str, **args: Any) -> TraceEvent:
    return TraceEvent(name=key, ph="M", pid=pid, tid=tid, args=args)


def _thread(rank: int) -> int:
    return _FIRST_RANK + rank


# --- slices ---------------------------------------------------------------------------------------


def _job(job: JobSummary) -> Iterator[TraceEvent]:
    following = [*(one.began_ns for one in job.rounds[1:]), job.duration_ns]
    for place, (one, after_ns) in enumerate(zip(job.rounds, following, strict=False)):
        end_ns = min(after_ns if one.stopped_ns is None else one.stopped_ns, after_ns)
        yield _slice(_name(job, one), one.began_ns, end_ns, _JOB, _JOB, _about(one))
        if one.failed_ns is not None and one.restart_ns is not None:
            span = (one.failed_ns, one.failed_ns + one.restart_ns)
            yield from _aside("restart", *span, _JOB, f"r{place}", {"after_round": one.round})


def _name(job: JobSummary, one: JobRound) -> str:
    return f"round {one.attempt}.{one.round}" if job.attempts > 1 else f"round {one.round}"


def _about(one: JobRound) -> dict[str, Any]:
    return {
        "ranks": one.world_size,
        "outcome": one.outcome,
        "cause": one_line(one.cause),
        "first_iteration": one.first_iteration,
        "last_iteration": one.last_iteration,
        "lost_steps": one.lost_steps,
    }


def _launch(job: JobSummary, launch: Launch, pid: int) -> TraceEvent:
    spans = job.lanes[launch.index]
    start, end = (spans[0].start_ns, spans[-1].end_ns) if spans else (0, 0)
    return _slice("launch", start, end, pid, pid)


def _rounds(
    job: JobSummary, launches: Sequence[Launch], pids: dict[str, int], *most: int
) -> tuple[list[TraceEvent], list[int]]:
    """Return what launchers and ranks did in rounds, and of how many rounds each is left out."""
    lanes = [_by_round(lane) for lane in job.lanes]
    saves = [_saves(launch) for launch in launches]
    kept: list[TraceEvent] = []
    for launch in launches:  # before their first round
        kept += _classes(lanes[launch.index].get(-1, ()), pids[launch.node])
    room, left_out = list(most), [0, 0]
    for one in reversed(job.rounds):
        layers: tuple[list[TraceEvent], list[TraceEvent]] = ([], [])
        for part in one.parts:
            name, pid = _name(job, one), pids[part.node]
            if room[0] > 0:
                layers[0].extend(_of_launcher(name, lanes[part.launch].get(one.round, ()), pid))
            if room[1] > 0:
                theirs = saves[part.launch].get(one.round, {})
                layers[1].extend(_of_ranks(name, launches[part.launch], one.round, theirs, pid))
        for place, layer in enumerate(layers):
            room[place] -= len(layer)
            if room[place] < 0 or not layer:
                room[place], left_out[place] = 0, left_out[place] + 1
            else:
                kept += layer
    return kept, left_out


def _by_round(lane: Iterable[Span]) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in lane:
        found.setdefault(span.round, []).append(span)
    return found


def _of_launcher(name: str, spans: Sequence[Span], pid: int) -> Iterator[TraceEvent]:
    if spans:
        yield _slice(name, spans[0].start_ns, spans[-1].end_ns, pid, pid)
        yield from _classes(spans, pid)


def _classes(spans: Iterable[Span], pid: int) -> Iterator[TraceEvent]:
    for span in spans:
        if span.end_ns > span.start_ns:
            yield _slice(span.kind, span.start_ns, span.end_ns, pid, pid)


def _of_ranks(
    name: str, launch: Launch, number: int, saves: _Saves, pid: int
) -> Iterator[TraceEvent]:
    one = launch.state.rounds.get(number)
    if one is None:
        return
    after = launch.state.rounds.get(number + 1)
    stopped_ns = one.time_of(e.RoundStopped)
    latest_ns = one.last_ns if stopped_ns is None else stopped_ns
    if after is not None:
        latest_ns = min(latest_ns, after.began_ns)
    exits: dict[int, e.RankExited] = {}
    for exited in one.exits:
        exits.setdefault(exited.rank, exited)
    for rank in one.ranks:
        exited_of = exits.get(rank)
        end_ns = latest_ns if exited_of is None else min(exited_of.t, latest_ns)
        about = {} if exited_of is None else {"end": _how(exited_of)}
        slices = [(name, one.began_ns, end_ns, about), *_stages(one, rank, end_ns)]
        slices += [
            (f"{save.kind}, step {save.step}", save.began_ns, save.stalled_ns, {})
            for save in saves.get(rank, ())
        ]
        for label, start_ns, until_ns, args in _nested(slices):
            moments = (launch.on_axis(start_ns), launch.on_axis(until_ns))
            yield _slice(label, *moments, pid, _thread(rank), args)
    for step, (start_ns, until_ns) in _written(saves).items():
        moments = (launch.on_axis(start_ns), launch.on_axis(until_ns))
        key = f"s{launch.index}.{number}.{step}"
        yield from _aside("save", *moments, pid, key, {"step": step})
    yield from _inside(launch, one, pid)


_Slice = tuple[str, int, int, dict[str, Any]]


def _stages(one: RoundState, rank: int, end_ns: int) -> Iterator[_Slice]:
    """Yield what a rank did in a round, one thing after the other."""
    passed = [one.time_of(e.WorkersSpawned)]
    passed += [one.milestones.get(name, {}).get(rank) for name in _MILESTONES]
    since_ns, name = one.began_ns, STARTING[0]
    for moment, following in zip(passed, (*STARTING[1:], "steps"), strict=True):
        if moment is None:
            continue
        yield name, since_ns, moment, {}
        since_ns, name = moment, following
    yield name, since_ns, end_ns, {}


def _nested(slices: Iterable[_Slice]) -> Iterator[_Slice]:
    """Yield slices in their order, each ended no later than the one around it."""
    ends: list[int] = []
    for name, start_ns, until_ns, args in sorted(slices, key=lambda one: (one[1], -one[2])):
        while ends and ends[-1] <= start_ns:
            ends.pop()
        ends.append(max(start_ns, min([until_ns, *ends[-1:]])))
        yield name, start_ns, ends[-1], args


_Saves = dict[int, list[Save]]  # by rank


def _saves(launch: Launch) -> dict[int, _Saves]:
    """Return saves and loads of each round."""
    found: dict[int, _Saves] = {}
    for event in every(launch.events, e.RankEvent):
        if (save := save_of(event)) is not None:
            found.setdefault(event.round, {}).setdefault(event.rank, []).append(save)
    return found


def _written(saves: _Saves) -> dict[int, tuple[int, int]]:
    """Return when each checkpoint of a node began and was complete, by step."""
    spans: dict[int, tuple[int, int]] = {}
    for save in (save for of_rank in saves.values() for save in of_rank if save.kind == "saved"):
        began_ns, ended_ns = spans.get(save.step, (save.began_ns, save.ended_ns))
        spans[save.step] = (min(began_ns, save.began_ns), max(ended_ns, save.ended_ns))
    return spans


def _how(exited: e.RankExited) -> str:
    return exited.signal or f"exit code {exited.exit_code}"


def _inside(launch: Launch, one: RoundState, pid: int) -> Iterator[TraceEvent]:
    """Yield restarts inside of the processes."""
    for (call, epoch, phase), event in one.inprocess.items():
        began = one.inprocess.get((call, epoch, "detect"))
        if phase != "re-enter" or began is None:
            continue
        moments = (launch.on_axis(began.t), launch.on_axis(event.t))
        about = {"epoch": epoch, "members": event.members, "reasons": began.reasons}
        key = f"i{launch.index}.{one.number}.{call}.{epoch}"
        yield from _aside("in-process restart", *moments, pid, key, about)


def _slice(
    name: str, start_ns: int, end_ns: int, pid: int, tid: int, args: dict[str, Any] | None = None
) -> TraceEvent:
    ts = _us(start_ns)
    dur = max(0, _us(end_ns) - ts)
    return TraceEvent(name=name, ph="X", pid=pid, tid=tid, ts=ts, dur=dur, args=args or {})


def _aside(
    name: str, start_ns: int, end_ns: int, pid: int, key: str, args: dict[str, Any]
) -> Iterator[TraceEvent]:
    """Yield a slice that may overlap with others of its name: viewers give it another row."""
    for ph, moment, about in (("b", start_ns, args), ("e", max(start_ns, end_ns), {})):
        yield TraceEvent(
            name=name, ph=ph, pid=pid, tid=pid, ts=_us(moment), cat=name,
            id=key, args=about,
        )  # fmt: skip


def _marks(
    job: JobSummary, launches: Sequence[Launch], pids: dict[str, int]
) -> Iterator[TraceEvent]:
    texts = Texts()
    marks = Marks(texts)
    for launch in launches:
        marks.read(pids[launch.node] - _FIRST_NODE, launch)
    marks.blame(job.rounds, {name: place for place, name in enumerate(job.nodes)})
    for mark in marks.kept():
        pid = _FIRST_NODE + mark.node
        tid = pid if mark.rank < 0 else _thread(mark.rank)
        text = {"text": texts.all[mark.text]}
        yield TraceEvent(
            name=mark.kind, ph="i", pid=pid, tid=tid, ts=mark.at * 1000, s="t", args=text
        )


def _when(one: TraceEvent) -> int:
    return -1 if one.ts is None else one.ts


def _us(ns: int) -> int:
    return max(0, ns) // 1000
