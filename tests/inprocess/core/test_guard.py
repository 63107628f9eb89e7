"""What a guard reports, passes on, says again, and when it ends its rank."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.hang import RankObservation, Standing
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.guard import (
    ANSWER_S,
    UNKILLABLE_AFTER_S,
    Ages,
    Passed,
    Patience,
    RankGuard,
    judge,
)
from undaunted.inprocess.core.messages import Limits
from undaunted.inprocess.core.reading import Phase, Reading

NS = 1_000_000_000
ENTER = m.Enter(0, 2, 4, 1234, "node", m.Limits())
JOIN = m.Join(0, 2, 0, 2, 4)
RECORD = m.Record(0, 0, (0, 1, 2, 3), 4)
STOP = m.Stop(0, 0, (m.Reason("EXCEPTION", 1),))
TERM = c.Signal((signal.SIGTERM, signal.SIGCONT))
KILL = c.Signal((signal.SIGKILL,))


class Story:
    """A guard, and the time; `do` returns what it commands, without wishes to look."""

    def __init__(self) -> None:
        self.guard = RankGuard()
        self.now = 0
        self.look_at: int | None = None

    def do(self, *events: Any, at: float | None = None) -> list[Any]:
        if at is not None:
            self.now = round(at * NS)
        commands = []
        for event in events:
            for command in self.guard.handle(event, self.now):
                if isinstance(command, c.LookIn):
                    self.look_at = self.now + round(command.delay_s * NS)
                else:
                    commands.append(command)
        return commands

    def look(self, until: float = 1e4, state: str = "", **page: Any) -> list[Any]:
        """Look as asked until something follows from it, with a page that does not change."""
        reading = Reading(**{"auto_ns": 0, "call": 0, "epoch": 0, **page})
        while self.look_at is not None and self.look_at <= until * NS:
            self.now, self.look_at = self.look_at, None
            commands = self.do(c.Look(reading, state))
            if commands:
                return commands
        return []

    @property
    def seconds(self) -> float:
        return round(self.now / NS, 1)


@pytest.fixture
def running() -> Story:
    story = Story()
    story.do(c.LinkUp(), ENTER, JOIN, RECORD)
    return story


def test_it_hands_on_in_both_directions() -> None:
    story = Story()
    assert story.do(c.LinkUp()) == []
    assert story.do(ENTER) == [c.Report(ENTER)]
    assert story.do(JOIN) == [c.Report(JOIN)]
    assert story.do(RECORD) == [c.Pass(RECORD)]
    assert story.do(STOP) == [c.Pass(STOP)]
    again = m.Join(0, 2, 1, 2, 4)
    assert story.do(again) == [c.Report(again)]


@pytest.mark.parametrize(
    "message",
    [
        RECORD,
        m.Record(1, 1, (0, 2), 4),
        m.Record(0, 1, (0, 1), 4),
        m.Stop(0, 1, ()),
        m.Stop(1, 0, ()),
        m.Finished(0, 1),
        m.End(1, "abort", ""),
        m.Dismissed(0, 1, ""),
    ],
)
def test_what_is_not_meant_for_the_rank_now_is_not_passed(
    running: Story, message: m.ToRank
) -> None:
    assert running.do(message) == []


@pytest.mark.parametrize(
    "message",
    [
        ENTER,
        m.Join(1, 2, 1, 2, 4),
        m.Join(0, 3, 1, 3, 4),  # in another's name
        m.Completed(2, 2, 0),
    ],
)
def test_what_makes_no_sense_is_not_reported(running: Story, message: m.FromRank) -> None:
    assert running.do(message) == []


def test_everything_once() -> None:
    story = Story()
    story.do(c.LinkUp(), ENTER, JOIN, RECORD, STOP)
    join = m.Join(0, 2, 1, 2, 4)
    assert story.do(STOP, join, join) == [c.Report(join)]


def test_a_call_that_is_over_for_the_rank_is_over(running: Story) -> None:
    finished = m.Finished(0, 0, (0, 1, 2, 3))
    assert running.do(m.Completed(0, 2, 0), finished)[-1] == c.Pass(finished)
    assert running.do(STOP, m.End(0, "abort", ""), m.Fault(0, 2, 0, STOP.reasons[0])) == []


# --- a hang ---------------------------------------------------------------------------------------

HANG = m.Stop(0, 0, (m.Reason("SOFT_TIMEOUT", 1),))


@pytest.mark.parametrize(
    ("state", "standing"), [("S", Standing.SILENT), ("T", Standing.STOPPED), ("", Standing.SILENT)]
)
def test_evidence_of_a_rank_that_does_not_answer(
    running: Story, state: str, standing: Standing
) -> None:
    assert running.do(HANG, at=61.0) == [c.Pass(HANG), c.SetTimer("evidence", ANSWER_S)]
    assert running.do(c.TimerFired("evidence"), at=62.5) == []
    assert running.look_at == running.now
    page = Reading(auto_ns=0, call=0, epoch=0, rank=3, phase=Phase.RUNNING)
    [report] = running.do(c.Look(page, state))
    evidence = report.message
    assert (evidence.job_rank, evidence.epoch, evidence.rank) == (2, 0, 3)
    seen = msgspec.msgpack.decode(evidence.seen, type=RankObservation)
    assert (seen.rank, seen.pid, seen.standing) == (2, 1234, standing)
    assert seen.expired is not None


def test_a_rank_that_has_answered_speaks_for_itself(running: Story) -> None:
    own = m.Evidence(0, 2, 0, 2, b"")
    assert running.do(HANG, own)[-1] == c.Report(own)
    running.do(c.TimerFired("evidence"))
    assert running.do(c.Look(Reading(auto_ns=0))) == []
    running.do(c.LinkDown())
    [again] = running.do(c.LinkUp())
    assert again.message.said == (own,)


def test_that_a_process_was_stopped_is_in_the_reason(running: Story) -> None:
    running.do(HANG)
    assert TERM in running.look(state="T", phase=Phase.RUNNING)
    assert running.guard.killed.endswith("; it was stopped by a signal")


def test_nobody_is_asked_again_in_the_next_epoch(running: Story) -> None:
    running.do(HANG, m.Join(0, 2, 1, 2, 4), m.Record(0, 1, (0, 1, 2, 3), 4))
    running.do(c.TimerFired("evidence"))
    assert running.do(c.Look(Reading(auto_ns=0))) == []


# --- the link -------------------------------------------------------------------------------------


def test_a_new_controller_is_told_all(running: Story) -> None:
    completed = m.Completed(0, 2, 0)
    running.do(c.LinkDown())
    assert running.do(completed) == []
    assert running.do(c.LinkUp()) == [c.Report(m.Resume(ENTER, RECORD, None, (completed,)))]
    running.do(STOP)
    resume = m.Resume(ENTER, RECORD, STOP, (completed,))
    assert running.do(c.LinkDown(), c.LinkUp())[-1] == c.Report(resume)


def test_a_new_controller_is_told_how_the_last_call_ended(running: Story) -> None:
    finished = m.Finished(0, 0, (0, 1, 2, 3))
    enter = m.Enter(1, 2, 4, 1234, "node", m.Limits())
    running.do(finished, enter)
    assert running.do(c.LinkUp()) == [c.Report(m.Resume(enter, None, None, (), finished))]


def test_without_a_controller_the_rank_leaves_in_time(running: Story) -> None:
    [timer] = running.do(c.LinkDown(), at=5)
    assert timer == c.SetTimer("link 1", 30.0)
    [passed] = running.do(c.TimerFired("link 1"), at=35)
    assert isinstance(passed.message, m.Dismissed)
    running.do(c.Look(Reading(auto_ns=0, call=0, epoch=0, phase=Phase.OUTSIDE)))
    [report] = running.do(c.LinkUp())
    assert isinstance(report.message.said[-1], m.Leave)
    assert report.message.ended is None  # it has not ended for others


def test_without_a_controller_a_rank_that_was_not_in_the_function_has_left_at_once() -> None:
    story = Story()
    story.do(ENTER, JOIN)
    story.do(c.TimerFired("link 1"), at=30)
    [report] = story.do(c.LinkUp())
    assert isinstance(report.message.said[-1], m.Leave)


@pytest.mark.parametrize("page", [{}, {"atomic": 1}, {"unguarded": 1}])
def test_without_a_controller_a_rank_in_the_function_is_ended_before_others_begin(
    running: Story, page: dict[str, int]
) -> None:
    page = {"auto_ns": 30 * NS, "phase": Phase.RUNNING, **page}
    running.do(c.LinkDown(), at=5)
    running.do(c.TimerFired("link 1"), at=35)
    assert running.look(**page) == [TERM, c.SetTimer("grace", 5.0)]
    assert running.seconds == 40.0
    assert running.do(c.LinkUp())[-1].message.said == ()  # the function may still run


def test_one_that_was_dismissed_in_atomic_is_ended_when_it_is_cut_off(running: Story) -> None:
    page = {"auto_ns": 40 * NS, "phase": Phase.RUNNING, "atomic": 1, "atomic_since_ns": 40 * NS}
    running.do(STOP, m.Dismissed(0, 2, "it is late"), at=50)
    assert running.look(79, **page) == []
    assert running.do(c.LinkDown(), at=79) == [c.SetTimer("link 1", 30.0)]
    assert running.look(109, **page) == []
    running.do(c.TimerFired("link 1"), at=109)
    assert running.look(**page)[0] == TERM
    assert running.seconds == 114.0


def test_atomic_is_waited_for_again_when_the_link_is_back(running: Story) -> None:
    page = {"auto_ns": 30 * NS, "phase": Phase.RUNNING, "atomic": 1, "atomic_since_ns": 20 * NS}
    running.do(c.LinkDown(), at=5)
    running.do(c.TimerFired("link 1"), at=35)
    running.do(c.LinkUp(), at=35)
    assert running.look(**page)[0] == TERM
    assert running.seconds == 140.0


def test_a_link_that_is_back_in_time_changes_nothing(running: Story) -> None:
    running.do(c.LinkDown(), c.LinkUp())
    assert running.do(c.TimerFired("link 1")) == []
    running.do(c.LinkDown())
    assert running.do(c.TimerFired("link 1")) == []  # of the time before


def test_a_rank_that_enters_without_a_link_waits_for_it() -> None:
    story = Story()
    assert story.do(ENTER) == [c.SetTimer("link 1", 30.0)]
    assert story.do(JOIN) == []
    assert story.do(c.LinkUp()) == [c.Report(m.Resume(ENTER, None, None, (JOIN,)))]


# --- limits ---------------------------------------------------------------------------------------


def test_soft_then_hard_timeout(running: Story) -> None:
    [report] = running.look(phase=Phase.RUNNING, rank=1)
    assert running.seconds == 60.0
    fault = report.message
    assert (fault.reason.kind, fault.reason.job_rank, fault.reason.rank) == ("SOFT_TIMEOUT", 2, 1)
    assert fault.reason.fingerprint
    assert running.do(STOP) == [c.Pass(STOP)]
    assert running.look(phase=Phase.RUNNING) == [TERM, c.SetTimer("grace", 5.0)]
    assert running.seconds == 90.0
    assert running.do(c.TimerFired("grace")) == [
        KILL,
        c.SetTimer("unkillable", UNKILLABLE_AFTER_S),
    ]
    lost, finish = running.do(c.ProcessEnded("was killed by SIGKILL"))
    assert finish == c.Finish()
    assert lost.message.reason.kind == "HARD_TIMEOUT"
    assert lost.message.pid == 1234
    assert running.do(c.TimerFired("unkillable")) == []


def test_a_process_that_does_not_end_counts_as_lost(running: Story) -> None:
    running.look(phase=Phase.RUNNING)
    running.look(phase=Phase.RUNNING)
    running.do(c.TimerFired("grace"))
    [report] = running.do(c.TimerFired("unkillable"))
    assert isinstance(report.message, m.Lost)


def test_a_rank_that_is_alive_is_left_alone(running: Story) -> None:
    for second in range(55, 1000, 55):
        assert running.look(second, auto_ns=(second - 5) * NS, phase=Phase.RUNNING) == []


def test_a_rank_that_does_not_stop_is_ended(running: Story) -> None:
    running.do(STOP, at=50)
    fresh = {"auto_ns": 10_000 * NS, "phase": Phase.RUNNING}
    assert running.look(**fresh)[0] == TERM
    assert running.seconds == 140.0


def test_a_rank_that_does_not_take_up_its_record_is_ended(running: Story) -> None:
    assert running.look(phase=Phase.WAITING, epoch=-1)[0] == TERM
    assert running.seconds == 90.0


def test_a_rank_that_has_stopped_may_wait(running: Story) -> None:
    running.do(STOP, m.Join(0, 2, 1, 2, 4), at=50)
    assert running.look(1000, phase=Phase.WAITING) == []


@pytest.mark.parametrize("end", [m.End(0, "abort", ""), m.Dismissed(0, 2, "")])
def test_a_rank_that_does_not_leave_is_ended(running: Story, end: m.ToRank) -> None:
    running.do(end, at=50)
    assert running.look(phase=Phase.RUNNING)[0] == TERM


def test_a_rank_that_hangs_on_its_way_out_is_ended(running: Story) -> None:
    running.do(m.End(0, "abort", ""), at=50)
    assert running.look(phase=Phase.RECOVERING, auto_ns=51 * NS)[0] == TERM
    assert running.seconds == 141.0


def test_one_that_was_dismissed_comes_to_an_end_with_its_recovery(running: Story) -> None:
    fresh = {"auto_ns": 10_000 * NS, "phase": Phase.RECOVERING}
    running.do(STOP, at=50)
    assert running.look(170, **fresh) == []
    running.do(m.Dismissed(0, 2, "it is late"), at=170)
    [report] = running.look(**fresh)
    assert (report.message.reason.text, running.seconds) == ("it is late", 170.0)
    assert running.look(**fresh)[0] == TERM
    assert running.seconds == 260.0


@pytest.mark.parametrize("unguarded", [0, 1])
def test_one_that_was_dismissed_in_the_function_is_ended_soon(
    running: Story, unguarded: int
) -> None:
    fresh = {"auto_ns": 10_000 * NS, "phase": Phase.RUNNING, "unguarded": unguarded}
    running.do(STOP, at=50)
    assert running.look(60, **fresh) == []
    running.do(m.Dismissed(0, 2, "it is late"), at=60)
    assert running.look(64, **fresh) == []
    assert running.do(c.LinkDown(), c.LinkUp(), at=64)[-1].message.said == ()  # it has not left
    assert running.look(**fresh)[0] == TERM
    assert running.seconds == 65.0
    lost, _ = running.do(c.ProcessEnded("was killed by SIGTERM"))
    assert lost.message.reason.text.startswith("it is late; it has not left the function for 5.0 s")


def test_one_that_was_dismissed_has_left_when_its_function_has(running: Story) -> None:
    running.do(STOP, m.Dismissed(0, 2, "it is late"), at=50)
    assert running.look(50, phase=Phase.RUNNING) == []
    [report] = running.look(phase=Phase.OUTSIDE)
    assert isinstance(report.message, m.Leave)
    assert running.look(phase=Phase.OUTSIDE) == []


def test_nobody_looks_while_nothing_is_called(running: Story) -> None:
    running.do(m.Finished(0, 0), at=50)
    assert running.look(phase=Phase.OUTSIDE) == []
    assert running.look_at is None
    running.do(m.Enter(1, 2, 4, 1234, "node", m.Limits()), at=5000)
    assert running.look_at == 5060 * NS


def test_the_next_look_is_not_put_off_by_what_is_passed(running: Story) -> None:
    before = running.look_at
    running.do(STOP, at=59)
    assert running.look_at == before


def test_a_page_that_cannot_be_read_limits_nothing(running: Story) -> None:
    for _ in range(5):
        assert running.do(c.Look(None)) == []
        assert running.look_at == running.now + 60 * NS


def test_the_guards_own_pauses_do_not_count(running: Story) -> None:
    assert running.do(c.Look(Reading(0, phase=Phase.RUNNING, call=0, epoch=0)), at=200) == []
    assert running.look(phase=Phase.RUNNING)[0] != TERM
    assert running.seconds == 200.0  # 60 s of its own time


# --- the process ----------------------------------------------------------------------------------


def test_the_end_of_the_process_is_reported(running: Story) -> None:
    last = Reading(0, call=0, epoch=0, rank=3)
    report, finish = running.do(c.ProcessEnded("was killed by SIGKILL", last))
    reason = m.Reason("TERMINATED", 2, 3, "was killed by SIGKILL")
    assert report == c.Report(m.Lost(0, 2, reason, 1234))
    assert finish == c.Finish()
    assert running.do(STOP, JOIN) == []
    assert running.do(c.LinkUp()) == [report, finish]  # to another controller


def test_the_end_is_reported_when_the_link_is_back(running: Story) -> None:
    running.do(c.LinkDown())
    [timer] = running.do(c.ProcessEnded("x"))
    assert timer == c.SetTimer("link 2", 30.0)
    assert [type(each) for each in running.do(c.LinkUp())] == [c.Report, c.Finish]


def test_a_guard_does_not_wait_for_ever_to_report_the_end(running: Story) -> None:
    running.do(c.LinkDown(), c.ProcessEnded("x"))
    assert running.do(c.TimerFired("link 2")) == [c.Finish()]


def test_a_process_that_has_called_nothing_is_nobodys_business() -> None:
    assert Story().do(c.LinkUp(), c.ProcessEnded("exited")) == [c.Finish()]


# --- taking the place of a lost one ---------------------------------------------------------------


def test_a_process_that_replaces_a_lost_one_takes_its_numbers_from_the_record() -> None:
    story = Story()
    enter = m.Enter(0, 2, 4, 99, "node", m.Limits(), rejoin=True)
    join = m.Join(0, 2, 0, -1, 4)
    record = m.Record(3, 7, (0, 1, 2), 4, joined={2: 3})
    assert story.do(c.LinkUp(), enter, join) == [c.Report(enter), c.Report(join)]
    assert story.do(m.Record(3, 6, (0, 1, 2), 4), m.Dismissed(3, 2, "")) == []  # of the one before
    assert story.do(record) == [c.Pass(record)]
    completed = m.Completed(3, 2, 7)
    assert story.do(completed) == [c.Report(completed)]
    assert story.do(m.Stop(0, 0, ())) == []


LIMITS = Limits()  # soft 60 s, hard 90 s, barrier 120 s


def look(phase: Phase, *, soft: bool = True, unguarded: int = 0, **ages: Any) -> tuple[str, float]:
    reading = Reading(0, phase=phase, unguarded=unguarded, atomic=int("atomic" in ages))
    verdict = judge(reading, Ages(**{"auto": 0.0, **ages}), LIMITS, soft=soft)
    return verdict.passed.name, round(verdict.look_in_s, 1)


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        ({"auto": 0.0}, ("NONE", 60.0)),
        ({"auto": 59.0}, ("NONE", 1.0)),
        ({"auto": 61.0}, ("SOFT", 0.0)),
        ({"auto": 0.0, "ping": 50.0}, ("NONE", 10.0)),
        ({"auto": 0.0, "ping": 61.0}, ("SOFT", 0.0)),
        ({"auto": 95.0}, ("SOFT", 0.0)),  # one after the other
        ({"auto": 95.0, "soft": False}, ("HARD", 0.0)),
        ({"auto": 0.0, "ping": 91.0, "soft": False}, ("HARD", 0.0)),
        ({"auto": 61.0, "soft": False}, ("NONE", 29.0)),
        ({"auto": 61.0, "atomic": 61.0}, ("SOFT", 0.0)),
        ({"auto": 95.0, "atomic": 100.0, "soft": False}, ("NONE", 20.0)),
        ({"auto": 121.0, "atomic": 121.0, "soft": False}, ("HARD", 0.0)),
        ({"auto": 0.0, "owed": 40.0, "soft": False}, ("NONE", 50.0)),
        ({"auto": 0.0, "owed": 91.0, "soft": False}, ("HARD", 0.0)),
    ],
)
def test_a_rank_in_the_function(ages: dict[str, Any], expected: tuple[str, float]) -> None:
    assert look(Phase.RUNNING, **ages) == expected


@pytest.mark.parametrize(
    ("phase", "ages", "expected"),
    [
        (Phase.RECOVERING, {"auto": 61.0}, ("NONE", 29.0)),
        (Phase.RECOVERING, {"auto": 91.0}, ("HARD", 0.0)),
        (Phase.RECOVERING, {"auto": 0.0, "ping": 1000.0}, ("NONE", 90.0)),
        (Phase.WAITING, {"auto": 1000.0}, ("NONE", 60.0)),
        (Phase.WAITING, {"auto": 0.0, "owed": 91.0}, ("HARD", 0.0)),
        (Phase.OUTSIDE, {"auto": 1000.0, "ping": 1000.0}, ("NONE", 60.0)),
    ],
)
def test_other_phases(phase: Phase, ages: dict[str, Any], expected: tuple[str, float]) -> None:
    assert look(phase, **ages) == expected


@pytest.mark.parametrize("phase", Phase)
def test_without_hang_protection_nothing_is_limited(phase: Phase) -> None:
    assert look(phase, auto=1e6, owed=1e6, unguarded=2) == ("NONE", 30.0)


def test_the_text_says_what_has_not_happened() -> None:
    verdict = judge(Reading(0, phase=Phase.RUNNING), Ages(0.0, ping=61.5), LIMITS, soft=True)
    assert verdict.text == "it has not called ping() for 61.5 s (soft timeout)"


seconds = st.floats(0, 1000, allow_nan=False)


@given(st.sampled_from(Phase), seconds, st.none() | seconds, st.none() | seconds, st.booleans())
def test_nothing_is_passed_before_the_next_look(
    phase: Phase, auto: float, ping: float | None, owed: float | None, soft: bool
) -> None:
    """Looking when it was asked for is enough: no limit is passed long before."""
    reading, ages = Reading(0, phase=phase), Ages(auto, ping, None, owed)
    verdict = judge(reading, ages, LIMITS, soft=soft)
    assert verdict.look_in_s > 0
    if verdict.passed is Passed.NONE:
        almost = verdict.look_in_s - 0.01

        def later(age: float | None) -> float | None:
            return None if age is None else age + almost

        ages = Ages(auto + almost, later(ping), None, later(owed))
        assert judge(reading, ages, LIMITS, soft=soft).passed is Passed.NONE


def test_ages_are_times_since() -> None:
    patience = Patience()
    patience.expect(60, 0)
    patience.wake(60 * NS + 1000)  # as late as timers are
    assert patience.age("auto", 10 * NS, 60 * NS) == 50.0


def test_time_for_which_the_guard_stood_still_does_not_count() -> None:
    patience = Patience()
    patience.expect(10, 0)
    assert patience.age("ping", 0, 0) == 0.0
    patience.wake(110 * NS)
    assert patience.age("ping", 0, 110 * NS) == 10.0
    # First seen afterwards: a moment of before, and one of after.
    assert patience.age("auto", 9 * NS, 110 * NS) == 1.0
    assert patience.age("atomic", 110 * NS, 112 * NS) == 2.0
    patience.wake(111 * NS)  # not counted twice
    assert patience.age("ping", 0, 111 * NS) == 11.0


def test_a_new_moment_begins_anew() -> None:
    patience = Patience()
    patience.age("auto", 0, 0)
    patience.expect(1, 0)
    patience.wake(101 * NS)
    assert patience.age("auto", 102 * NS, 103 * NS) == 1.0
