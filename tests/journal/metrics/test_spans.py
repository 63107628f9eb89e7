"""Spans of one launch, each when it has ended, in a bounded queue."""

from __future__ import annotations

from tests.journal.sample import ENDING, MS, OPENING, RUN, at, begin
from undaunted.journal import events as e
from undaunted.journal.metrics.spans import JobSpan, Spans

WALL_NS = 1_000_000_000_000


def spans_of(events: list[e.AnyEvent], **about: int) -> list[JobSpan]:
    spans = Spans(**about)
    for event in events:
        spans.take(event)
    found = spans.drain()
    assert spans.drain() == []
    return found


def named(name: str, spans: list[JobSpan]) -> list[JobSpan]:
    return [one for one in spans if one.name == name]


def test_job_rounds_and_restarts() -> None:
    found = spans_of(RUN)
    (job,) = named("job", found)
    assert (job.parent, job.error) == ("", "")
    assert job.about == {"outcome": "finished", "exit_code": 0}
    assert (job.began_ns, job.ended_ns) == (WALL_NS + 1 * MS, WALL_NS + 9004 * MS)
    rounds = named("round", found)
    assert [one.about["round"] for one in rounds] == [0, 1, 2]
    assert [one.error for one in rounds[1:]] == ["rank 0 hangs", ""]
    assert rounds[0].error == "rank 1 raised ValueError: bad batch"
    assert {one.parent for one in rounds} == {job.key}
    restarts = named("restart", found)
    assert [one.about for one in restarts] == [
        {"after_round": 0, "round": 1},
        {"after_round": 1, "round": 2},
    ]
    assert restarts[0].began_ns == WALL_NS + 998 * MS
    assert restarts[0].ended_ns == WALL_NS + 1055 * MS


def test_keys_are_unique_and_parents_are_there() -> None:
    keys = [one.key for one in spans_of(RUN)]
    assert len(set(keys)) == len(keys)
    assert {one.parent for one in spans_of(RUN)} <= {"", *keys}


def test_a_job_that_fails() -> None:
    end = at(9, e.JobEnded, 0, outcome="failed", exit_code=1, reason="rank 1 crashed")
    (job,) = named("job", spans_of([*OPENING, end]))
    assert job.error == "rank 1 crashed"


def test_saves_and_loads_are_in_their_round() -> None:
    texts = (
        "saved step=30 bytes=9 stall_s=0.5 write_s=1 total_s=2.0",
        "loaded step=20 bytes=9 seconds=1.0",
        "failed step=40 disk full total_s=9",
        "deleted step=10",
    )
    events = [
        at(5000, e.RankEvent, 0, rank=1, name="checkpoint", at_ns=4000 * MS, text=text)
        for text in texts
    ]
    found = spans_of([*OPENING, *begin(10, 0), *events])
    save, failed = named("save", found)
    assert save.parent == "round 0"
    assert save.about == {"rank": 1, "step": 30, "round": 0, "stall_s": 0.5}
    assert (save.began_ns, save.ended_ns) == (WALL_NS + 2000 * MS, WALL_NS + 4000 * MS)
    assert (failed.about["step"], failed.began_ns) == (40, failed.ended_ns)
    assert "disk full" in failed.error
    (load,) = named("load", found)
    assert load.ended_ns - load.began_ns == 1000 * MS


def test_restarts_inside_of_processes() -> None:
    events = [
        at(100, e.InProcessPhase, 0, call=0, epoch=1, phase="detect", reasons=["x"]),
        at(130, e.InProcessPhase, 0, call=0, epoch=1, phase="re-enter", members=2),
        at(140, e.InProcessPhase, 0, call=0, epoch=2, phase="re-enter", members=2),
    ]
    (one,) = spans_of([*OPENING, *begin(10, 0), *events])
    assert one.name == "in-process restart"
    assert one.ended_ns - one.began_ns == 30 * MS


def test_a_job_that_ends_after_a_failure_has_no_restart() -> None:
    end = at(1001, e.Decision, 0, action="end", reason="no restarts left")
    failure = at(1000, e.FailureDetected, 0, kind="crash", rank=1, detail="exit code 1")
    found = spans_of([*OPENING, *begin(10, 0), failure, end, *begin(2000, 1)])
    assert named("restart", found) == []
    assert [one.error for one in named("round", found)] == ["exit code 1"]


def test_the_oldest_are_dropped() -> None:
    found = spans_of([*RUN, *ENDING], most=2)
    assert len(found) == 2
    assert found[-1].name == "job"
