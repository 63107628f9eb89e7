"""A trace has slices that nest on tracks of the job, its nodes and ranks, and is bounded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from benchmarks.simulated_job import simulate, write
from tests.journal.page.jobs import HOSTILE, hostile, job, journal, two
from tests.journal.sample import MS, RUN, at
from undaunted.journal import events as e
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.reader import read_journal
from undaunted.journal.trace import trace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Events = list[dict[str, Any]]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # exact in the numbers of a browser
Number = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]  # as of a process
Name = Annotated[str, msgspec.Meta(min_length=1)]


class _Event(msgspec.Struct, tag_field="ph", forbid_unknown_fields=True, kw_only=True):
    """Keys that each event has, and no others but those of its phase. Times are microseconds."""

    name: Name
    pid: Number
    tid: Number


class Label(_Event, tag="M"):
    """Of a process or a thread."""

    args: dict[Literal["name", "sort_index"], str | int]


class Slice(_Event, tag="X"):
    ts: Count
    dur: Count
    args: dict[str, Any] = {}


class Instant(_Event, tag="i"):
    ts: Count
    s: Literal["t"]  # of a thread
    args: dict[str, Any]


class _Aside(_Event):
    ts: Count
    cat: Name
    id: Name


class Begin(_Aside, tag="b"):
    args: dict[str, Any]


class End(_Aside, tag="e"):
    pass


class Trace(msgspec.Struct, forbid_unknown_fields=True):
    """The object format of Chrome's trace events."""

    displayTimeUnit: Literal["ms", "ns"]  # noqa: N815 - of the format
    otherData: dict[str, Any]  # noqa: N815
    traceEvents: list[Label | Slice | Instant | Begin | End]  # noqa: N815


def events_of(text: str) -> Events:
    """The events of a trace, which has the form that viewers expect."""
    events = msgspec.json.decode(text, type=Trace).traceEvents
    labels = [one for one in events if isinstance(one, Label)]
    for one in labels:
        kind, _, key = one.name.partition("_")
        assert kind in {"process", "thread"}
        form = ("name", str) if key == "name" else ("sort_index", int)
        assert [(name, type(value)) for name, value in one.args.items()] == [form]
    named = [(one.pid, one.tid) for one in labels if one.name == "thread_name"]
    assert len(named) == len(set(named))
    processes = [one.pid for one in labels if one.name == "process_name"]
    assert len(processes) == len(set(processes))
    assert {(one.pid, one.tid) for one in events} <= set(named)
    assert {one.pid for one in events} <= set(processes)
    begins = [-1 if isinstance(one, Label) else one.ts for one in events]
    assert begins == sorted(begins), "labels first, then all in the order of time"
    assert_in_pairs([one for one in events if isinstance(one, _Aside)])
    assert_nested([one for one in events if isinstance(one, Slice)])
    found: Events = json.loads(text)["traceEvents"]
    return found


def assert_in_pairs(events: Iterable[_Aside]) -> None:
    """Each beginning has its end on its track, behind it in the file and in time.

    Viewers find both by category and id alone, so that no other pair of any track has these.
    """
    opened: dict[tuple[str, str], _Aside] = {}
    seen: set[tuple[str, str]] = set()
    for one in events:
        key = (one.cat, one.id)
        if isinstance(one, Begin):
            assert key not in seen
            seen.add(key)
            opened[key] = one
        else:
            begun = opened.pop(key)
            assert (one.name, one.pid, one.tid) == (begun.name, begun.pid, begun.tid)
            assert one.ts >= begun.ts
    assert opened == {}


def assert_nested(slices: Iterable[Slice]) -> None:
    """On each track, a slice lies within another one or beside it.

    Viewers sort by the beginning only: of two that begin at once, the outer is first in the file.
    """
    around: dict[tuple[int, int], list[int]] = {}
    for one in sorted(slices, key=lambda one: one.ts):
        ends = around.setdefault((one.pid, one.tid), [])
        while ends and ends[-1] <= one.ts:
            ends.pop()
        end = one.ts + one.dur
        assert not ends or end <= ends[-1], one
        ends.append(end)


def names(events: Events, key: str) -> dict[tuple[int, int], str]:
    return {
        (one["pid"], one["tid"]): one["args"]["name"]
        for one in events
        if one["ph"] == "M" and one["name"] == key
    }


def on(events: Events, track: str, ph: str = "X") -> Events:
    """Events of one kind on the track of this name, in the order of time."""
    tracks = {place for place, name in names(events, "thread_name").items() if name == track}
    found = [one for one in events if one["ph"] == ph and (one["pid"], one["tid"]) in tracks]
    return sorted(found, key=lambda one: (one["ts"], -one.get("dur", 0)))


def labels(events: Iterable[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in events]


def saved(ms: float, rank: int, step: int, stall_s: float, total_s: float) -> e.AnyEvent:
    text = f"saved step={step} bytes=9 stall_s={stall_s} write_s=0.1 total_s={total_s}"
    return at(ms, e.RankEvent, 1, rank=rank, name="checkpoint", at_ns=round(ms * MS), text=text)


def test_tracks_and_slices_of_a_run() -> None:
    found = events_of(trace(*job()))
    assert set(names(found, "process_name").values()) == {"job", "node n0"}
    assert [one["name"] for one in on(found, "rounds")] == ["round 0", "round 1", "round 2"]
    assert on(found, "rounds")[0]["args"]["outcome"] == "crash"
    launcher = on(found, "launcher")
    assert labels(launcher)[0] == "launch"
    of_round = [one for one in launcher if one["ts"] >= on(found, "rounds")[1]["ts"]]
    assert labels(of_round)[:5] == ["round 1", "spawn", "import", "load", "recomputed"]
    assert "stop" in labels(of_round)
    ranks = on(found, "rank 1")
    assert labels(ranks)[:5] == ["round 0", "spawn", "import", "initialise", "steps"]
    assert ranks[0]["args"] == {"end": "exit code 1"}


def test_failures_and_restarts() -> None:
    found = events_of(trace(*job()))
    crash, hang = (one for one in found if one["ph"] == "i")
    assert (crash["name"], hang["name"]) == ("crash", "hang")
    assert crash["args"] == {"text": "rank 1 raised ValueError: bad batch"}
    assert (crash["tid"], hang["tid"]) == tuple(
        next(iter(on(found, f"rank {rank}")))["tid"] for rank in (1, 0)
    )
    begun = [one for one in found if one["ph"] == "b" and one["name"] == "restart"]
    assert [one["args"] for one in begun] == [{"after_round": 0}, {"after_round": 1}]


def test_saves() -> None:
    run = [*RUN[:-8], saved(4000, 0, 30, 0.02, 1.5), saved(4100, 1, 30, 0.03, 1.5), *RUN[-8:]]
    run.sort(key=lambda event: event.t)
    found = events_of(trace(*job(journal(run))))
    (save,) = (one for one in found if one["ph"] == "b" and one["name"] == "save")
    assert save["args"] == {"step": 30}
    (end,) = (one for one in found if one["ph"] == "e" and one["id"] == save["id"])
    assert end["ts"] - save["ts"] == 1_600_000
    (stop,) = (one for one in on(found, "rank 0") if one["name"] == "saved, step 30")
    assert stop["dur"] == 20_000


def test_two_nodes_are_on_one_axis() -> None:
    found = events_of(trace(*job(*two())))
    assert {name for name in names(found, "thread_name").values() if "rank" in name} == {
        f"rank {rank}" for rank in range(4)
    }
    starts = [one["ts"] for one in on(found, "launcher") if one["name"] == "round 1"]
    assert len(starts) == 2
    assert abs(starts[0] - starts[1]) < 1_000_000


def test_what_programs_print_is_made_printable() -> None:
    about, launches, _ = hostile()
    text = trace(about, launches)
    events_of(text)
    assert HOSTILE not in text
    assert "\\u001b" not in text


def test_any_part_of_a_journal_gives_a_trace() -> None:
    for count in range(1, len(RUN)):
        events_of(trace(*job(journal(RUN[:count]))))
        events_of(trace(*job(journal([RUN[0], *RUN[count:]]))))


def test_events_in_disorder_still_nest() -> None:
    run = [msgspec.structs.replace(one, t=max(0, 10_000 * MS - one.t)) for one in RUN]
    events_of(trace(*job(journal(run))))


def test_of_a_large_job_the_newest_rounds_are_kept(tmp_path: Path) -> None:
    paths = write(simulate(nodes=4, slots=2, restarts=20, saves=True), tmp_path)
    launches = launches_of([read_journal(path) for path in paths])
    about = summarize_job(launches)
    whole = events_of(trace(about, launches))
    text = trace(about, launches, most_of_launchers=300, most_of_ranks=200)
    part = events_of(text)
    left_out = json.loads(text)["otherData"]
    assert 0 < left_out["rounds_without_launchers"] < 21
    assert 0 < left_out["rounds_without_ranks"] < 21
    assert len(part) < len(whole) / 2
    assert len(on(part, "rounds")) == 21
    assert on(part, "rank 0")[-1] == on(whole, "rank 0")[-1]
    assert on(part, "rank 0")[0] != on(whole, "rank 0")[0]
