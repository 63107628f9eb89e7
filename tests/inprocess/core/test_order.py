"""In which order ranks hear of an epoch: its record first, then that it is over, then the next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.inprocess.core.jobs import Job, all_hear
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m

SIZE = 3
RANKS = range(SIZE)


def test_a_loss_while_an_epoch_is_gathered_is_no_stop() -> None:
    job = Job(SIZE)
    job.feed(job.enter(0), job.join(0, 0), job.enter(1), job.join(1, 0), job.lost(2))
    assert job.all_told() == all_hear((0, 1), "Record")


def test_a_fault_before_the_record_is_of_no_epoch() -> None:
    job = Job(SIZE)
    job.feed(job.enter(0), job.join(0, 0), job.fault(0), job.enter(1), job.join(1, 0))
    assert job.all_told() == {}
    job.feed(job.enter(2), job.join(2, 0))
    assert job.all_told() == all_hear(RANKS, "Record")


def test_an_epoch_that_is_stopped_at_once_is_heard_of_before_its_end() -> None:
    job = Job(SIZE).begin().feed(Job().fault(1))
    assert job.all_told() == all_hear(RANKS, "Record", "Stop")


def test_a_fault_of_the_epoch_before_does_not_stop_the_next_one() -> None:
    job = Job(SIZE).begin().feed(Job().fault(1)).joins(1, *RANKS)
    job.all_told()
    job.feed(Job().fault(2, epoch=0))
    assert job.all_told() == {}


def test_a_rank_that_is_back_hears_the_record_before_the_stop() -> None:
    job = Job(SIZE).begin().feed(Job().fault(1))
    job.all_told()
    job.feed(m.Resume(job.enter(2), None, None, (job.join(2, 0),)))
    assert job.all_told() == {2: ["Record", "Stop"]}


def test_under_a_new_controller_as_well() -> None:
    before = Job(SIZE).begin()
    record = before.told(0)[0]
    assert isinstance(record, m.Record)
    stop = m.Stop(0, 0, (m.Reason("EXCEPTION", 1, text="boom"),))
    job = Job(SIZE)
    job.feed(m.Resume(job.enter(0), record, stop, ()))
    job.feed(m.Resume(job.enter(1), record, None, ()))
    job.feed(m.Resume(job.enter(2), None, None, (job.join(2, 0),)))
    assert job.all_told()[2] == ["Record", "Stop"]


# What may happen to one rank, by itself.
WHAT = st.sampled_from(["join", "late join", "fault", "late fault", "complete", "lost", "resume"])


@given(st.lists(st.tuples(st.sampled_from([*RANKS]), WHAT), max_size=40))
def test_whatever_happens(story: list[tuple[int, str]]) -> None:
    job = Job(SIZE)
    heard: dict[int, list[Any]] = {rank: [] for rank in RANKS}
    for rank in RANKS:
        job.feed(job.enter(rank))
    for rank, what in story:
        job.feed(_event(job, heard[rank], rank, what))
        for each in RANKS:
            heard[each] += job.told(each)
    for each in RANKS:
        _check_order(heard[each])


def _event(job: Job, heard: list[Any], rank: int, what: str) -> Any:
    records = [each for each in heard if isinstance(each, m.Record)]
    record = records[-1] if records else None
    stops = [each for each in heard if isinstance(each, m.Stop)]
    stop = stops[-1] if stops and record and stops[-1].epoch == record.epoch else None
    epoch = -1 if record is None else record.epoch
    match what:
        case "join" | "late join":
            return job.join(rank, max(0, epoch + (what == "join")))
        case "fault" | "late fault":
            return job.fault(rank, max(0, epoch - (what != "fault")))
        case "complete":
            return m.Completed(0, rank, max(0, epoch))
        case "lost":
            return c.Unreachable((rank,), "gone")
        case _:
            return m.Resume(job.enter(rank), record, stop, ())


def _check_order(heard: list[Any]) -> None:
    """A rank hears of each epoch once: its record, then its stop, perhaps again after a break."""
    epoch, stopped = -1, True
    for message in heard:
        match message:
            case m.Record():
                assert stopped, heard  # the one before was over
                assert message.epoch == epoch + 1, heard
                epoch, stopped = message.epoch, False
            case m.Stop():
                assert message.epoch == epoch, heard
                stopped = True
            case m.Finished():
                assert (message.epoch, stopped) == (epoch, False), heard
