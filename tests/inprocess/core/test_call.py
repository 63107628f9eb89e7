"""One call: what stops an epoch, who is in the next one, and how the call ends."""

from __future__ import annotations

import pytest

from tests.inprocess.core.jobs import NS, Job, all_hear
from undaunted.attribution.hang import Standing
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m

ALL = range(4)


def running(**enter: object) -> Job:
    job = Job(**enter).begin()
    job.all_told()
    return job


def record_of(job: Job, job_rank: int = 0) -> m.Record:
    record = job.told(job_rank)[-1]
    assert isinstance(record, m.Record)
    return record


def end_of(job: Job, job_rank: int = 0) -> m.End:
    end = job.told(job_rank)[-1]
    assert isinstance(end, m.End)
    return end


def test_a_fault_stops_the_epoch_everywhere_and_the_next_one_begins_when_all_have_joined() -> None:
    job = running().feed(Job().fault(1))
    reason = m.Reason("EXCEPTION", 1, text="boom")
    assert job.told(3) == [m.Stop(0, 0, (reason,))]
    job.joins(1, 0, 1, 2)
    job.all_told()
    job.joins(1, 3)
    record = record_of(job)
    assert (record.epoch, record.members, record.terminated) == (1, (0, 1, 2, 3), ())
    assert record.reasons[0].rank == 1  # known from its join


def test_reasons_that_come_while_the_others_recover_are_in_the_record() -> None:
    job = running().feed(Job().fault(1), Job().fault(2))
    assert job.all_told() == all_hear(ALL, "Stop")
    job.feed(job.lost(3)).joins(1, 0, 1, 2)
    record = record_of(job)
    assert [reason.job_rank for reason in record.reasons] == [1, 2, 3]
    assert record.terminated == (3,)


def test_what_a_loss_has_caused_is_not_the_first_reason_even_if_it_came_first() -> None:
    reset = m.Reason("EXCEPTION", 0, text="Connection reset by peer", consequence=True)
    job = running().feed(m.Fault(0, 0, 0, reset))
    assert job.told(3) == [m.Stop(0, 0, (reset,))]
    job.feed(job.lost(1)).joins(1, 0, 2, 3)
    kinds = [(reason.kind, reason.job_rank) for reason in record_of(job).reasons]
    assert kinds == [("TERMINATED", 1), ("EXCEPTION", 0)]


def test_a_cause_is_not_left_out_for_its_consequences() -> None:
    job = Job(world_size=100).begin()
    for rank in range(99):
        reset = m.Reason("EXCEPTION", rank, text="Connection reset by peer", consequence=True)
        job.feed(m.Fault(0, rank, 0, reset))
    job.feed(job.lost(99)).joins(1, *range(99))
    assert record_of(job).reasons[0].job_rank == 99


def test_a_lost_rank_is_not_in_the_next_epoch() -> None:
    job = running().feed(Job().lost(1)).joins(1, 0, 2, 3)
    assert record_of(job).members == (0, 2, 3)


def test_a_rank_that_dies_between_its_join_and_the_record() -> None:
    job = running().feed(Job().fault(0)).joins(1, 1).feed(Job().lost(1)).joins(1, 0, 2, 3)
    record = record_of(job)
    assert (record.members, record.terminated) == ((0, 2, 3), (1,))


def test_a_rank_that_dies_while_only_it_is_waited_for() -> None:
    job = running().feed(Job().fault(0)).joins(1, 0, 2, 3).feed(Job().lost(1))
    assert record_of(job).members == (0, 2, 3)


def test_terminated_ranks_are_those_that_nobody_has() -> None:
    """In epoch 1 ranks are assigned in another order than that of the job ranks."""
    job = running().feed(Job().fault(0))
    for job_rank in ALL:
        job.joins(1, job_rank)
    job.feed(job.fault(0, 1), job.lost(2))
    for job_rank in (0, 1, 3):
        job.joins(2, job_rank, rank=3 - job_rank)
    assert record_of(job).terminated == (1,)


def test_late_and_repeated_messages_change_nothing() -> None:
    job = running().feed(Job().fault(0)).joins(1, *ALL)
    job.all_told()
    job.feed(job.fault(1, 0), job.fault(1, 2)).joins(1, *ALL).joins(0, *ALL).joins(2, 0, 1)
    job.completes(0, *ALL).completes(2, *ALL)
    job.feed(*(job.enter(each) for each in ALL), *map(c.TimerFired, list(job.timers)))
    assert job.all_told() == {}


def test_a_discarded_rank_is_counted_out_without_a_stop() -> None:
    job = running().completes(0, 0, 1, 2)
    assert job.all_told() == {}
    job.feed(job.leave(3, discarded=True))
    assert job.all_told() == {0: ["Finished"], 1: ["Finished"], 2: ["Finished"]}


def test_a_rank_that_leaves_is_lost() -> None:
    job = running().feed(Job().leave(3))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"], 2: ["Stop"]}


def test_a_loss_after_completion_restarts_the_others() -> None:
    job = running().completes(0, 0, 1, 3).feed(Job().lost(3))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"], 2: ["Stop"]}
    job.joins(1, 0, 1, 2)
    job.all_told()
    job.completes(1, 0, 1)
    assert job.all_told() == {}  # what was completed in epoch 0 does not count


def test_the_store_is_where_the_first_can_serve_it() -> None:
    job = Job()
    for job_rank, store in enumerate(["", "n1:1", "n2:2", ""]):
        job.feed(job.enter(job_rank), job.join(job_rank, 0, store=store))
    assert record_of(job).store == "n1:1"


def test_the_record_has_what_assignments_want_to_know_by_rank() -> None:
    job = running().feed(Job().fault(0))
    for job_rank in ALL:
        info = None if job_rank == 2 else {"host": f"n{job_rank}"}
        job.joins(1, job_rank, rank=3 - job_rank, info=info)
    assert record_of(job).info == {0: {"host": "n3"}, 2: {"host": "n1"}, 3: {"host": "n0"}}


def test_ranks_beyond_the_world_for_processes_that_come_in_addition() -> None:
    job = running().feed(Job().leave(3)).joins(1, 0, 1, 2)
    for job_rank, rank in ((0, 0), (1, 1), (2, 2)):
        job.joins(2, job_rank, rank=rank, world_size=3)
    job.feed(job.enter(3, pid=9, rejoin=True), job.join(3, 0, rank=-1), job.fault(0, 1))
    for job_rank in range(3):
        job.joins(2, job_rank, world_size=3)
    record = record_of(job)
    assert (record.world_size, record.joined, record.terminated) == (4, {3: 3}, ())


# --- what ranks must agree about ------------------------------------------------------------------


def test_two_with_one_rank() -> None:
    job = running().feed(Job().fault(0)).joins(1, 0, 1, 2).joins(1, 3, rank=2)
    end = end_of(job)
    assert end.kind == "mismatch"
    assert "2 and 3" in end.text
    assert job.all_told().keys() == {1, 2, 3}


def test_worlds_of_different_size() -> None:
    job = running().feed(Job().fault(0)).joins(1, 0, 1, 2).joins(1, 3, world_size=3)
    assert end_of(job).kind == "mismatch"


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_of_the_world(rank: int) -> None:
    job = running().feed(Job().fault(0)).joins(1, 0, 1, 2).joins(1, 3, rank=rank)
    assert end_of(job).kind == "mismatch"


def test_jobs_of_different_size() -> None:
    job = Job()
    job.feed(job.enter(0), job.enter(1, world_size=5))
    [end] = job.answers
    assert isinstance(end, m.End)
    assert (end.kind, "4 ranks" in end.text, "says 5" in end.text) == ("mismatch", True, True)
    job.begin(0, 1, 2, 3).joins(0, 0)
    assert record_of(job).members == (0, 1, 2, 3)


def test_two_processes_with_one_job_rank() -> None:
    job = Job()
    job.feed(job.enter(0), job.enter(0, pid=7))
    [end] = job.answers
    assert isinstance(end, m.End)
    assert "process 7" in end.text
    assert job.all_told() == {}


# --- upper bounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gone", [Job().leave(3), Job().lost(3), c.Unreachable((3,), "it is cut off")]
)
def test_who_has_not_joined_in_time_is_waited_for_until_it_is_gone(
    gone: m.Leave | m.Lost | c.Unreachable,
) -> None:
    job = running().feed(Job().fault(0)).joins(1, 0, 1, 2)
    job.all_told()
    assert job.timers["barrier 0 1"] == 120.0
    job.feed(c.TimerFired("barrier 0 1")).joins(1, 3)
    assert job.all_told() == {3: ["Dismissed"]}
    record = record_of(job.feed(gone))
    assert record.members == (0, 1, 2)
    assert record.reasons[-1].job_rank == 3


def test_who_is_late_hears_it_again_when_its_guard_is_back() -> None:
    job = running().feed(Job().fault(0)).joins(1, 0, 1, 2).feed(c.TimerFired("barrier 0 1"))
    stop, _ = job.told(3)
    job.all_told()
    assert isinstance(stop, m.Stop)
    job.feed(m.Resume(job.enter(3), job.controller.calls[0].record, stop, ()))
    assert job.all_told() == {3: ["Stop", "Dismissed"]}


def test_completion_timeout() -> None:
    job = running()
    job.feed(m.Completed(0, 0, 0, reserve=True))
    assert "completion 0 0" not in job.timers
    job.completes(0, 1)
    assert job.timers["completion 0 0"] == 120.0
    job.feed(c.TimerFired("completion 0 0"))
    [stop] = job.told(3)
    assert isinstance(stop, m.Stop)
    assert [reason.job_rank for reason in stop.reasons] == [2, 3]


def test_reasons_are_bounded() -> None:
    job = Job(200).begin()
    for job_rank in range(200):
        reason = m.Reason("EXCEPTION", job_rank, text="x" * 5000)
        job.feed(m.Fault(0, job_rank, 0, reason))
    job.joins(1, *range(200))
    reasons = record_of(job).reasons
    assert len(reasons) < 100
    assert max(len(reason.text) for reason in reasons) <= 1000


# --- the same fault again and again ---------------------------------------------------------------


def restart(job: Job, epoch: int, fingerprint: str, progress: int = 0) -> Job:
    job.feed(job.fault(1, epoch, fingerprint))
    job.joins(epoch + 1, *ALL, progress=progress)
    return job.feed(*map(c.TimerFired, [name for name in job.timers if name.startswith("pause")]))


def test_the_same_fault_again_and_again_ends_the_call() -> None:
    job = running(repeats=3)
    restart(job, 0, "a")
    assert "pause 0 1" not in job.timers
    restart(job, 1, "a")
    assert isinstance(job.told(0)[-1], m.Record)
    restart(job, 2, "a")
    end = end_of(job)
    assert end.kind == "abort"
    assert "boom" in end.text
    assert job.notes[-1].what == "ended"


def test_before_a_fault_that_repeats_is_met_again_is_a_pause() -> None:
    job = running(repeats=10)
    for epoch in range(6):
        restart(job, epoch, "a")
    pauses = [job.timers[f"pause 0 {epoch}"] for epoch in range(2, 7)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, 5.0)
    job.all_told()
    job.feed(job.fault(1, 6, "a")).joins(7, *ALL)
    assert not any(isinstance(one, m.Record) for told in job.all_told().values() for one in told)
    job.feed(c.TimerFired("barrier 0 7"), job.lost(2))  # while it lasts
    job.feed(c.TimerFired("pause 0 7"))
    assert record_of(job).members == (0, 1, 3)


@pytest.mark.parametrize(
    "story",
    [
        [("a", 0), ("a", 1), ("a", 2), ("a", 3)],  # progress
        [("a", 0), ("a", 0), ("b", 0), ("a", 0)],
        [("", 0), ("", 0), ("", 0), ("", 0)],  # nobody knows whether they are the same
        [("a", 0), ("a", 0), ("", 0), ("a", 0)],
    ],
)
def test_what_is_not_the_same_fault_without_progress(story: list[tuple[str, int]]) -> None:
    job = running(repeats=3)
    for epoch, (fingerprint, progress) in enumerate(story):
        restart(job, epoch, fingerprint, progress)
        assert isinstance(job.told(0)[-1], m.Record)


def test_an_epoch_of_soft_timeout_is_progress() -> None:
    job = running(repeats=2)
    for epoch in range(4):
        job.now += 60 * NS
        restart(job, epoch, "a")
        assert isinstance(job.told(0)[-1], m.Record)


# --- the journal ----------------------------------------------------------------------------------


def test_notes_have_times_and_who_was_waited_for() -> None:
    job = running()
    job.now = 10 * NS
    job.feed(job.fault(1))
    job.now = 12 * NS
    for job_rank in ALL:
        job.joins(1, job_rank, phases={"abort": 0.1 * job_rank, "finalize": 1.0})
    begun, stopped, recorded = job.notes
    assert (begun.what, begun.took_s) == ("recorded", 0.0)
    assert (stopped.what, stopped.epoch, stopped.took_s) == ("stopped", 0, 10.0)
    assert (recorded.what, recorded.epoch, recorded.took_s) == ("recorded", 1, 2.0)
    assert recorded.last == 3
    assert recorded.phases == {"abort": (pytest.approx(0.3), 3), "finalize": (1.0, 0)}


# --- a hang ---------------------------------------------------------------------------------------


def stops_of(job: Job) -> list[c.Note]:
    return [note for note in job.notes if note.what == "stopped"]


def test_not_the_rank_that_waits_is_blamed_for_a_hang() -> None:
    job = running().feed(Job().hangs(0))
    assert job.all_told() == all_hear(ALL, "Stop")
    for job_rank in (0, 2, 3):
        job.feed(job.evidence(job_rank, Standing.WAITING))
    assert stops_of(job) == []
    job.feed(job.evidence(1, Standing.BUSY), job.hangs(2)).joins(1, *ALL)
    [note] = stops_of(job)
    first, *others = note.reasons
    assert (first.kind, first.job_rank, first.consequence) == ("SOFT_TIMEOUT", 1, False)
    assert first.named
    assert [(each.job_rank, each.consequence) for each in others] == [(0, True)]
    reasons = record_of(job).reasons
    assert [(each.job_rank, each.consequence) for each in reasons] == [
        (1, False),
        (0, True),
        (2, True),
    ]
    assert [bool(each.fingerprint) for each in reasons] == [True, False, False]


def test_the_next_record_waits_for_no_evidence() -> None:
    job = running().feed(Job().hangs(0)).joins(1, 0, 1, 2)
    assert stops_of(job) == []
    job.joins(1, 3)
    assert [each.reasons[0].job_rank for each in stops_of(job)] == [0]
    assert record_of(job).reasons[0].job_rank == 0


def test_a_rank_that_is_lost_gives_no_evidence() -> None:
    job = running().feed(Job().hangs(0))
    for job_rank in (0, 2, 3):
        job.feed(job.evidence(job_rank, Standing.WAITING))
    job.feed(job.lost(1))
    [note] = stops_of(job)
    assert len(note.reasons) == 2


def test_all_is_noted_of_a_hang_that_nobody_survives() -> None:
    job = running().feed(Job().hangs(0), *map(Job().lost, ALL))
    assert [note.what for note in job.notes][-2:] == ["stopped", "ended"]


def test_evidence_that_nobody_has_asked_for_changes_nothing() -> None:
    job = running()
    job.feed(*(job.evidence(each, Standing.BUSY) for each in ALL))
    assert job.all_told() == {}
    job.feed(job.fault(2)).joins(1, *ALL)
    job.feed(*(job.evidence(each, Standing.BUSY) for each in ALL))
    assert [each.job_rank for each in record_of(job).reasons] == [2]
    assert len(stops_of(job)) == 1
