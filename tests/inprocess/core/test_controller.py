"""Calls after each other, ranks that come back, and what is nobody's business any more."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inprocess.core.jobs import Job, all_hear
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m

ALL = range(4)


def test_a_call_from_its_beginning_to_its_end() -> None:
    job = Job().begin()
    assert job.told(0) == [m.Record(0, 0, (0, 1, 2, 3), 4)]
    assert set(job.all_told()) == {1, 2, 3}
    job.completes(0, 0, 1, 2)
    assert job.all_told() == {}
    job.completes(0, 3)
    assert job.told(3) == [m.Finished(0, 0, (0, 1, 2, 3))]
    assert [note.what for note in job.notes] == ["recorded", "finished"]
    assert not job.controller.calls


def test_a_quick_rank_begins_the_next_call_before_others_have_heard_the_end() -> None:
    job = Job().begin().completes(0, *ALL).begin(1, 2)
    job.all_told()
    job.completes(0, 0).begin(1, 0, 1, 3)
    assert job.all_told() == all_hear(ALL, "Record")


def test_the_next_call_does_not_wait_for_ranks_that_are_lost() -> None:
    job = Job().begin().feed(Job().lost(3))
    job.joins(1, 0, 1, 2).completes(1, 0, 1, 2)
    job.all_told()
    job.begin(1, 0, 1, 2)
    assert job.told(0) == [m.Record(1, 0, (0, 1, 2), 4, terminated=(3,))]


def test_the_next_call_does_not_wait_for_ranks_that_have_left() -> None:
    job = Job().begin()
    job.feed(job.leave(3)).joins(1, 0, 1, 2)
    job.feed(job.enter(3, 1)).completes(1, 0, 1, 2)
    assert "Dismissed" in job.all_told()[3]
    job.begin(1, 0, 1, 2)
    record = job.told(0)[-1]
    assert isinstance(record, m.Record)
    assert (record.members, record.terminated) == ((0, 1, 2), (3,))
    job.feed(job.enter(3, 2))
    assert isinstance(job.told(3)[0], m.Dismissed)


def test_ranks_that_have_all_left_may_call_again() -> None:
    job = Job(2).begin()
    job.feed(job.leave(0), job.enter(0, 1), job.join(0, 0, 1), job.leave(1))
    job.all_told()
    job.begin(1, 1)
    assert job.all_told() == {0: ["Record"], 1: ["Record"]}


def test_a_call_without_ranks_does_not_begin_again() -> None:
    job = Job(2).begin()
    record = job.told(0)[0]
    assert isinstance(record, m.Record)
    job.feed(job.leave(0), job.leave(1))
    job.all_told()
    job.feed(resume(job, 0, record))
    assert job.all_told() == {0: ["End"]}


def test_who_calls_again_has_left_the_call_before() -> None:
    job = Job().begin()
    job.all_told()
    job.feed(job.enter(1, 1))
    assert job.all_told() == {0: ["Stop"], 2: ["Stop"], 3: ["Stop"]}


def test_a_rank_that_has_called_again_and_is_lost_hears_of_its_loss_alone() -> None:
    job = Job().begin().feed(Job().enter(3, 1))
    job.feed(c.Unreachable((3,), "its node is cut off")).joins(1, 0, 1, 2)
    job.told(3)
    job.completes(1, 0, 1, 2)
    assert job.told(3) == []
    job.feed(job.enter(3, 1))
    [dismissed] = job.told(3)
    assert isinstance(dismissed, m.Dismissed)
    assert "its node is cut off" in dismissed.text


def test_a_lost_rank_is_dismissed() -> None:
    job = Job().begin().feed(Job().lost(3))
    job.told(3)
    job.feed(job.enter(3, 1))
    [dismissed] = job.told(3)
    assert isinstance(dismissed, m.Dismissed)
    assert "killed" in dismissed.text
    job.feed(m.Resume(job.enter(3), None, None, ()))
    assert isinstance(job.told(3)[0], m.Dismissed)


def test_what_a_lost_rank_says_is_nobodys_business() -> None:
    job = Job().begin().feed(Job().lost(3))
    job.all_told()
    job.feed(job.join(3, 1), job.fault(3)).completes(0, 3)
    assert job.all_told() == {}


@pytest.mark.parametrize("version", [0, m.VERSION + 1])
def test_another_version_is_dismissed(version: int) -> None:
    job = Job().feed(Job().enter(0, version=version))
    [dismissed] = job.answers
    assert isinstance(dismissed, m.Dismissed)
    assert "version" in dismissed.text


@pytest.mark.parametrize(("job_rank", "world_size"), [(4, 4), (-1, 4), (0, 0), (0, 1 << 40)])
def test_an_impossible_rank_is_dismissed(job_rank: int, world_size: int) -> None:
    job = Job()
    job.feed(job.enter(job_rank, world_size=world_size))
    assert isinstance(job.answers[0], m.Dismissed)
    assert not job.controller.calls


def test_who_comes_after_a_call_has_ended_is_told_so() -> None:
    job = Job().feed(Job().enter(0), c.TimerFired("barrier 0 0"))
    [end] = job.told(0)
    assert isinstance(end, m.End)
    assert end.kind == "barrier"
    assert "1, 2, 3" in end.text
    job.feed(job.enter(1))
    assert job.told(1) == [end]


def test_nobody_is_left() -> None:
    job = Job(2).begin()
    job.feed(job.lost(0))
    assert not job.over
    job.feed(job.lost(1))
    assert job.over


def test_not_over_while_processes_live() -> None:
    job = Job(2).begin().completes(0, 0, 1)
    job.feed(job.lost(0))
    assert not job.over
    job.feed(job.lost(1))
    assert job.over


def test_not_over_before_all_could_come() -> None:
    job = Job(2)
    job.feed(job.enter(0), job.lost(0))
    assert not job.over
    job.feed(c.TimerFired("barrier 0 0"))
    assert job.over


def test_unreachable_ranks_are_lost_at_once() -> None:
    job = Job().begin()
    job.all_told()
    job.feed(c.Unreachable((2, 3), "node n1 is gone"))
    [stop] = job.told(0)
    assert isinstance(stop, m.Stop)
    assert [reason.job_rank for reason in stop.reasons] == [2, 3]


def test_bounded_memory() -> None:
    job = Job(1)
    for call in range(100):
        job.begin(call, 0).completes(0, 0, call=call)
    assert not job.controller.calls
    assert len(job.controller._outcomes) < 10


# --- taking the place of a lost one ---------------------------------------------------------------


def rejoin(job: Job, job_rank: int, pid: int = 999) -> Job:
    return job.feed(
        job.enter(job_rank, pid=pid, rejoin=True),
        job.join(job_rank, 0, rank=-1),
    )


def test_a_process_that_replaces_a_lost_one_is_in_the_next_epoch() -> None:
    job = Job().begin().feed(Job().lost(1)).joins(1, 0, 2, 3)
    rejoin(job, 1)
    job.all_told()
    job.feed(job.fault(0, 1)).joins(2, 0, world_size=3, rank=0)
    job.joins(2, 2, world_size=3, rank=1).joins(2, 3, world_size=3, rank=2)
    [record] = job.told(1)
    assert isinstance(record, m.Record)
    assert (record.members, record.world_size) == ((0, 1, 2, 3), 4)
    assert (record.joined, record.terminated) == ({1: 3}, ())
    job.completes(2, 0, 2, 3)
    job.all_told()
    job.completes(2, 1)
    assert job.all_told() == all_hear(ALL, "Finished")
    job.begin(1)  # it is like any other
    assert job.all_told() == all_hear(ALL, "Record")


def test_it_may_be_in_the_epoch_that_its_own_death_has_caused() -> None:
    job = Job().begin().feed(Job().lost(1)).joins(1, 0, 2)
    rejoin(job, 1)
    job.all_told()
    job.joins(1, 3)
    [record] = job.told(1)
    assert isinstance(record, m.Record)
    assert (record.joined, record.terminated) == ({1: 1}, ())


def test_it_is_not_waited_for() -> None:
    job = Job().begin().feed(Job().lost(1))
    job.feed(job.enter(1, pid=999, rejoin=True))
    job.all_told()
    job.joins(1, 0, 2, 3)
    assert job.all_told() == {0: ["Record"], 2: ["Record"], 3: ["Record"]}


def test_its_predecessor_is_lost_even_if_nobody_has_said_so() -> None:
    job = Job().begin()
    job.all_told()
    rejoin(job, 1)
    assert job.all_told() == {0: ["Stop"], 2: ["Stop"], 3: ["Stop"]}
    job.feed(job.lost(1, pid=101))  # late
    job.joins(1, 0, 2, 3)
    assert job.all_told() == all_hear(ALL, "Record")
    job.feed(job.lost(1, pid=101))
    assert job.all_told() == {}
    job.feed(job.lost(1, pid=999))
    assert set(job.all_told()) == {0, 2, 3}


def test_it_waits_for_the_next_call() -> None:
    job = Job().begin().feed(Job().lost(1)).joins(1, 0, 2, 3).completes(1, 0, 2, 3)
    rejoin(job, 1)
    job.all_told()
    job.begin(1, 0, 2, 3)
    [record] = job.told(1)
    assert isinstance(record, m.Record)
    assert (record.call, record.epoch, record.joined) == (1, 0, {1: 1})


def test_it_is_told_if_there_is_nothing_to_join() -> None:
    job = Job(2).begin().feed(Job().lost(1))
    rejoin(job, 1)
    job.all_told()
    job.feed(job.lost(0))
    [dismissed] = job.told(1)
    assert isinstance(dismissed, m.Dismissed)
    assert not dismissed.finished
    job.feed(job.lost(1))
    assert job.over


def test_it_is_not_joined_if_it_dies_while_it_waits() -> None:
    job = Job().begin().feed(Job().lost(1)).joins(1, 0, 2)
    rejoin(job, 1)
    job.feed(job.lost(1, pid=999))
    job.all_told()
    job.joins(1, 3)
    assert job.told(1) == []
    [record] = job.told(0)
    assert isinstance(record, m.Record)
    assert (record.members, record.joined, record.terminated) == ((0, 2, 3), {}, (1,))


@pytest.mark.parametrize("late", [False, True])
def test_it_is_told_if_the_others_have_finished(late: bool) -> None:
    job = Job(2).begin().feed(Job().lost(1)).joins(1, 0)
    if late:
        job.completes(1, 0).feed(job.lost(0))
        rejoin(job, 1)
    else:
        rejoin(job, 1).completes(1, 0).feed(job.lost(0))
    [dismissed] = job.told(1)[-1:]
    assert isinstance(dismissed, m.Dismissed)
    assert dismissed.finished
    job.feed(job.lost(1))
    assert job.over


# --- take-over ------------------------------------------------------------------------------------

RECORD = m.Record(0, 1, (0, 1, 2), 4, terminated=(3,))
STOP = m.Stop(0, 1, (m.Reason("EXCEPTION", 1),))


def resume(
    job: Job,
    job_rank: int,
    record: m.Record | None = RECORD,
    stop: m.Stop | None = None,
    *said: m.Join | m.Fault | m.Completed | m.Leave,
    call: int = 0,
    ended: m.Finished | m.End | None = None,
) -> m.Resume:
    return m.Resume(job.enter(job_rank, call), record, stop, said, ended)


def test_a_call_goes_on_under_a_new_controller() -> None:
    job = Job()
    job.feed(*(resume(job, each) for each in range(3)))
    assert job.all_told() == {}
    job.feed(job.fault(0, 1))
    assert job.all_told() == all_hear(range(3), "Stop")
    job.joins(2, 0, 1, 2, world_size=3)
    assert job.all_told() == {}  # there may be ranks that have not come back yet
    job.settle()
    assert job.all_told() == all_hear(range(3), "Record")


def test_what_was_not_said_to_all_is_repeated() -> None:
    job = Job()
    old = m.Record(0, 0, (0, 1, 2, 3), 4)
    old_stop = m.Stop(0, 0, STOP.reasons)
    job.feed(
        resume(job, 0),
        resume(job, 1, RECORD, STOP, job.join(1, 2, world_size=3)),
    )
    job.feed(resume(job, 2, old, old_stop, job.join(2, 1)))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"], 2: ["Record", "Stop"]}
    job.joins(2, 0, 2, world_size=3).settle()
    assert job.all_told() == all_hear(range(3), "Record")


def test_what_ranks_have_said_to_nobody_counts() -> None:
    job = Job()
    job.feed(*(resume(job, each, RECORD, None, m.Completed(0, each, 1)) for each in range(3)))
    assert job.all_told() == all_hear(range(3), "Finished")


def test_what_is_said_meanwhile_counts() -> None:
    job = Job().feed(resume(Job(), 0))
    job.completes(1, 0).feed(resume(job, 1)).completes(1, 1)
    job.feed(resume(job, 2, RECORD, None, m.Completed(0, 2, 1)))
    assert job.all_told() == all_hear(range(3), "Finished")


def test_who_does_not_come_back_is_lost() -> None:
    job = Job().feed(resume(Job(), 0), resume(Job(), 1))
    assert job.timers["resume 0 0"] == 51.0  # a guard that is cut off has ended its rank by then
    assert job.all_told() == {}
    job.feed(c.TimerFired("resume 0 0"))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"]}
    job.feed(resume(job, 2))
    assert job.all_told() == {2: ["Dismissed"]}


def test_who_is_lost_is_not_waited_for() -> None:
    job = Job().feed(resume(Job(), 0), resume(Job(), 1), Job().lost(2))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"]}


def test_before_the_first_record() -> None:
    job = Job()
    job.feed(*(resume(job, each, None, None, job.join(each, 0)) for each in ALL))
    assert job.all_told() == all_hear(ALL, "Record")


def test_some_have_been_told_the_first_record() -> None:
    job = Job()
    first = m.Record(0, 0, (0, 1, 2, 3), 4)
    job.feed(*(resume(job, each, None, None, job.join(each, 0)) for each in (0, 1)))
    job.feed(resume(job, 2, first), resume(job, 3, first))
    assert job.all_told() == {0: ["Record"], 1: ["Record"]}
    job.completes(0, *ALL)
    assert job.all_told() == all_hear(ALL, "Finished")


def test_a_call_that_has_ended_for_one_has_ended_for_all() -> None:
    job = Job()
    finished = m.Finished(0, 1, (0, 1, 2))
    completed = [m.Completed(0, each, 1) for each in range(3)]
    job.feed(resume(job, 0, RECORD, None, completed[0]))
    job.feed(resume(job, 1, RECORD, None, completed[1], ended=finished))
    assert job.all_told() == {0: ["Finished"]}
    job.feed(resume(job, 2, None, None, job.join(2, 0, 1), call=1, ended=finished))
    assert job.all_told() == {}
    job.begin(1, 0, 1).settle()  # rank 3 was lost: it is not waited for
    assert job.all_told() == all_hear(range(3), "Record")


def test_the_end_under_the_controller_before_is_told_to_those_who_come_later() -> None:
    job = Job()
    end = m.End(0, "abort", "again and again")
    job.feed(resume(job, 0, ended=end), resume(job, 1))
    assert job.told(1) == [end]


def test_a_process_that_replaces_a_lost_one_comes_to_a_new_controller() -> None:
    job = Job()
    enter = job.enter(3, pid=999, rejoin=True)
    job.feed(m.Resume(enter, None, None, (job.join(3, 0, rank=-1),)))
    job.feed(*(resume(job, each) for each in range(3)))
    job.feed(job.fault(0, 1)).joins(2, 0, 1, 2, world_size=3).settle()
    assert job.all_told() == {**all_hear(range(3), "Stop", "Record"), 3: ["Record"]}


def test_a_loss_of_before_does_not_concern_the_process_that_took_the_place() -> None:
    """Rank 2 has died in call 0; another process of that rank is in call 1."""
    job = Job()
    record = m.Record(1, 0, (0, 1, 2), 3)
    job.feed(resume(job, 0, record, call=1), job.lost(2, call=0, pid=102))
    job.feed(resume(job, 1, record, call=1))
    assert job.all_told() == {}
    job.feed(m.Resume(job.enter(2, 1, pid=999, rejoin=True), record, None, ()))
    assert job.all_told() == {}
    job.completes(0, 0, 1, 2, call=1)
    assert job.all_told() == all_hear(range(3), "Finished")


def test_who_waits_to_join_is_not_lost_with_its_predecessor() -> None:
    job = Job().feed(Job().lost(2))
    job.feed(job.enter(2, pid=999, rejoin=True), job.join(2, 0, rank=-1))
    job.feed(resume(job, 0), resume(job, 1))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"]}
    job.joins(2, 0, 1, world_size=3).settle()
    assert job.all_told() == all_hear(range(3), "Record")


def test_who_waits_to_join_is_told_that_nobody_has_come() -> None:
    job = Job()
    rejoin(job, 1)
    assert job.all_told() == {}
    job.feed(c.TimerFired("begun 0 0"))
    assert job.all_told() == {1: ["Dismissed"]}


# --- links that break and come back ---------------------------------------------------------------


def test_a_rank_that_is_back_is_told_what_it_has_missed() -> None:
    job = Job().begin()
    [record] = job.told(3)
    assert isinstance(record, m.Record)
    job.feed(job.fault(0))
    job.all_told()
    job.feed(resume(job, 3, None, None, job.join(3, 0)))
    assert job.all_told() == {3: ["Record", "Stop"]}
    job.feed(resume(job, 3, record))
    assert job.all_told() == {3: ["Stop"]}
    job.joins(1, *ALL)
    job.all_told()
    stop = m.Stop(0, 0, (job.fault(0).reason,))
    job.feed(resume(job, 3, record, stop, job.join(3, 1)))
    assert job.all_told() == {3: ["Record"]}


def test_what_it_has_said_meanwhile_counts() -> None:
    job = Job().begin().completes(0, 0, 1, 2)
    [record] = job.told(3)
    assert isinstance(record, m.Record)
    job.all_told()
    job.feed(resume(job, 3, record, None, m.Completed(0, 3, 0)))
    assert job.all_told() == all_hear(ALL, "Finished")
    job.feed(resume(job, 3, record, None, m.Completed(0, 3, 0)))
    assert job.all_told() == {3: ["Finished"]}


def test_a_rank_that_was_told_something_else_is_lost() -> None:
    job = Job().begin()
    job.all_told()
    job.feed(resume(job, 3, m.Record(0, 5, (3,), 1)))
    assert job.all_told() == {0: ["Stop"], 1: ["Stop"], 2: ["Stop"], 3: ["Dismissed"]}


def test_a_member_that_does_not_know_it_is_told_its_record() -> None:
    job = Job().begin().feed(Job().lost(1)).joins(1, 0, 2)
    rejoin(job, 1).joins(1, 3)
    record = job.told(1)[-1]
    enter = job.enter(1, pid=999, rejoin=True)
    job.feed(m.Resume(enter, None, None, (job.join(1, 0, rank=-1),)))
    assert job.told(1) == [record]


def test_the_guard_of_the_process_before_has_nothing_to_say() -> None:
    job = Job().begin().feed(Job().lost(1)).joins(1, 0, 2)
    rejoin(job, 1).joins(1, 3)
    job.all_told()
    job.feed(resume(job, 1, m.Record(0, 0, (0, 1, 2, 3), 4)))
    assert job.all_told() == {}


def test_the_next_call_of_those_who_are_left() -> None:
    """They come with the ranks of the call before, which they have kept."""
    job = Job(3).begin()
    job.feed(job.lost(0)).joins(1, 1, 2).completes(1, 1, 2)
    job.all_told()
    for rank, job_rank in enumerate((1, 2)):
        job.feed(job.enter(job_rank, 1), job.join(job_rank, 0, 1, rank=rank, world_size=2))
    record = job.told(1)[-1]
    assert isinstance(record, m.Record)
    assert (record.call, record.epoch) == (1, 0)
    assert (record.members, record.world_size, record.terminated) == ((1, 2), 2, ())


@pytest.mark.parametrize("stray", [{"pid": 999, "node": "login"}, {"world_size": 4}])
def test_a_stray_process_is_sent_away_and_disturbs_nobody(stray: dict[str, Any]) -> None:
    job = Job(3).begin()
    job.all_told()
    rank = 3 if "world_size" in stray else 1
    enter = job.enter(rank, **stray)
    job.feed(enter, m.Resume(enter, None, None, ()))
    assert [each.kind for each in job.answers if isinstance(each, m.End)] == ["mismatch"] * 2
    job.feed(job.lost(rank, pid=enter.pid))  # it ends
    assert job.all_told() == {}
    job.completes(0, 0, 1, 2)
    assert job.all_told() == all_hear(range(3), "Finished")


def test_ranks_that_have_waited_before_a_take_over_do_not_wait_as_long_again() -> None:
    limits, record = m.Limits(), m.Record(0, 0, (0, 1, 2, 3), 4)
    job = Job().feed()
    completed = m.Completed(0, 0, 0)
    job.feed(m.Resume(job.enter(0), record, None, (completed,), waited_s=100.0))
    job.feed(*(m.Resume(job.enter(each), record, None, ()) for each in (1, 2, 3)))
    assert job.timers["completion 0 0"] == limits.completion_timeout - 100.0


def test_a_barrier_goes_on_after_a_take_over() -> None:
    limits, record = m.Limits(), m.Record(0, 0, (0, 1, 2, 3), 4)
    job = Job().feed()
    stop = m.Stop(0, 0, (m.Reason("EXCEPTION", 1),))
    for job_rank, waited_s in enumerate((20.0, 30.0, 10.0)):
        said = (job.join(job_rank, 1),)
        job.feed(m.Resume(job.enter(job_rank), record, stop, said, waited_s=waited_s))
    job.feed(m.Resume(job.enter(3), record, stop, ()))
    assert job.timers["barrier 0 1"] == limits.barrier_timeout - 30.0


def test_the_first_barrier_goes_on_after_a_take_over() -> None:
    job = Job().feed()
    job.feed(m.Resume(job.enter(0), None, None, (job.join(0, 0),), waited_s=50.0))
    job.feed(m.Resume(job.enter(1), None, None, (job.join(1, 0),), waited_s=20.0))
    assert job.timers["barrier 0 0"] == m.Limits().barrier_timeout - 50.0
