"""The node's life cycle: each fault in each state ends in a stopped round, never in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.agent import node as m
from undaunted.fault_tolerance.agent import node as n

LINGER = m.SetTimer("linger", n.LINGER_S)


def running(slots: int = 2, *, rank_termination_signal: int = 9, clearing_s: float = 0.0) -> n.Node:
    machine = n.Node(rank_termination_signal, clearing_s)
    assert machine.handle(m.StartRound(0, slots)) == [m.Spawn(0)]
    machine.handle(m.WorkersSpawned())
    return machine


def kinds(commands: list[m.Command]) -> list[type]:
    return [type(command) for command in commands]


STOP = m.StopRound(0, grace_s=2.0, signal=15)


def test_workers_are_watched_once_they_exist() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    assert machine.handle(m.WorkersSpawned()) == [m.Watch(on=True)]


def test_all_ranks_exit_with_0() -> None:
    machine = running()
    assert machine.handle(m.RankExited(0, 0)) == []
    assert machine.handle(m.RankExited(1, 0)) == [m.Watch(on=False), m.ReportFinished()]
    assert m.SignalTree(15) in machine.handle(STOP)  # what they left behind may end in peace
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=True, unkillable=False)]


def test_a_crash_is_reported_at_once_and_judged_when_the_others_have_ended() -> None:
    machine = running(slots=3)
    commands = machine.handle(m.RankExited(1, -11))
    assert m.ReportFailed("crash", 1, "killed by SIGSEGV") in commands
    assert m.JudgeCrash not in kinds(commands)
    assert m.SignalRanks((0, 2), 15) in machine.handle(STOP)
    assert machine.handle(m.RankExited(0, -15)) == []
    commands = machine.handle(m.RankExited(2, -15))
    assert kinds(commands) == [m.JudgeCrash, m.SetTimer, m.SignalTree]
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=False, unkillable=False)]


def test_the_end_of_a_rank_that_was_told_to_stop_is_no_failure_if_the_launcher_is_told_too() -> (
    None
):
    machine = running(slots=3)
    assert machine.handle(m.RankExited(1, -15, awaits_s=2.5)) == [m.SetTimer("told", 2.5)]
    assert machine.handle(m.RankErrored(2, "lost its peer")) == []
    assert machine.state is n.State.RUNNING
    told = machine.handle(m.StopRound(0, 60.0, 15))
    assert m.SignalRanks((0,), 15) in told
    assert machine.handle(m.TimerFired("told", 0)) == []
    commands = machine.handle(m.RankExited(2, 1)) + machine.handle(m.RankExited(0, -15))
    assert m.JudgeCrash not in kinds([*told, *commands])


def test_it_is_a_failure_if_the_launcher_is_not_told() -> None:
    machine = running(slots=3)
    machine.handle(m.RankExited(1, 1, awaits_s=2.0))
    machine.handle(m.RankExited(2, -9))
    commands = machine.handle(m.TimerFired("told", 0))
    assert m.ReportFailed("crash", 1, "exit code 1") in commands
    assert machine.state is n.State.FAILED


def test_it_is_a_failure_if_something_else_has_failed() -> None:
    machine = running(slots=3)
    machine.handle(m.RankErrored(1, "lost its peer", awaits_s=2.5))
    commands = machine.handle(m.StopRound(0, 2.0, 15, restart=True, failed=True))
    assert m.ReportFailed("crash", 1, "lost its peer") in commands
    assert m.SignalRanks((0, 2), 15) in commands
    assert m.JudgeCrash(final=False) in machine.handle(m.TimerFired("settle", 0))


def test_a_rank_that_a_signal_ends_while_all_stop_has_not_crashed() -> None:
    machine = running(slots=3)
    machine.handle(m.StopRound(0, 60.0, 15, agree=True))
    commands = machine.handle(m.RankExited(1, -15, awaits_s=2.5))
    assert m.ReportFailed("signal", 1, "killed by SIGTERM") in commands
    commands = machine.handle(m.RankErrored(2, "lost its peer"))
    assert commands == [m.ReportFailed("signal", 2, "lost its peer"), LINGER]


def test_a_held_rank_that_does_not_end_is_signalled_when_all_stop() -> None:
    machine = running()
    machine.handle(m.RankErrored(1, "lost its peer", awaits_s=2.5))
    commands = machine.handle(m.StopRound(0, 60.0, 15, agree=True))
    assert m.SetTimer("linger", n.LINGER_S) in commands
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((1,), 15)]


def test_a_rank_that_fails_of_its_own_while_all_stop_has_crashed() -> None:
    machine = running()
    machine.handle(m.StopRound(0, 60.0, 15, agree=True))
    commands = machine.handle(m.RankErrored(1, "no room to save"))
    assert commands == [m.ReportFailed("crash", 1, "no room to save"), LINGER]


def test_a_rank_that_others_go_on_without_is_no_failure() -> None:
    machine = running(slots=3)
    assert machine.handle(m.RankExited(1, -9, others_go_on=True)) == [
        m.GoOnWithout(1, "killed by SIGKILL")
    ]
    assert machine.state is n.State.RUNNING
    assert machine.handle(m.RankExited(0, 0)) == []
    assert machine.handle(m.RankExited(2, 0)) == [m.Watch(on=False), m.ReportFinished(lost=1)]
    machine.handle(STOP)
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=True, unkillable=False)]


def test_the_last_one_to_end_may_be_one_that_others_go_on_without() -> None:
    machine = running()
    machine.handle(m.RankExited(0, 0))
    assert machine.handle(m.RankExited(1, 1, others_go_on=True)) == [
        m.GoOnWithout(1, "exit code 1"),
        m.Watch(on=False),
        m.ReportFinished(lost=1),
    ]


def test_when_nobody_is_left_the_last_one_has_failed() -> None:
    machine = running()
    machine.handle(m.RankExited(0, -9, others_go_on=True))
    commands = machine.handle(m.RankExited(1, -11, others_go_on=True))
    detail = "killed by SIGSEGV; it was the last one that was left of its node"
    assert m.ReportFailed("crash", 1, detail) in commands
    machine.handle(STOP)
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=False, unkillable=False)]


def test_a_failure_of_a_rank_counts_although_others_were_lost_before() -> None:
    machine = running(slots=3)
    machine.handle(m.RankExited(0, -9, others_go_on=True))
    assert m.ReportFailed("crash", 1, "exit code 1") in machine.handle(m.RankExited(1, 1))


def test_a_rank_that_leaves_with_an_exception_is_lost_when_it_has_ended() -> None:
    machine = running()
    announced = m.RankErrored(1, "raised SystemError", others_go_on=True)
    assert machine.handle(announced) == [m.SetTimer("linger", n.LINGER_S)]
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((1,), 15)]
    assert machine.handle(m.RankExited(1, -15, others_go_on=True)) == [
        m.GoOnWithout(1, "raised SystemError")
    ]


def test_a_lost_rank_may_be_started_again() -> None:
    machine = running()
    commands = machine.handle(m.RankExited(1, -9, others_go_on=True, may_return=True))
    assert commands == [m.GoOnWithout(1, "killed by SIGKILL"), m.StartAgain(1)]
    assert machine.alive == (0, 1)
    assert machine.handle(m.RankExited(0, 0)) == []
    assert machine.handle(m.RankExited(1, 0)) == [m.Watch(on=False), m.ReportFinished()]


def test_the_others_may_finish_before_one_that_was_started_again_has_joined_them() -> None:
    machine = running(slots=3)
    machine.handle(m.RankExited(1, -9, others_go_on=True, may_return=True))
    assert machine.handle(m.RankExited(0, 0, absent=frozenset({1}))) == []
    finished = machine.handle(m.RankExited(2, 0, absent=frozenset({1})))
    assert finished == [m.Watch(on=False), m.ReportFinished(lost=1)]
    assert m.SignalRanks((1,), 15) in machine.handle(STOP)
    assert m.SignalTree(9) in machine.handle(m.RankExited(1, -15))
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=True, unkillable=False)]


def test_one_that_was_started_again_is_waited_for_once_it_has_joined() -> None:
    machine = running()
    machine.handle(m.RankExited(1, -9, others_go_on=True, may_return=True))
    assert machine.handle(m.RankExited(0, 0)) == []
    assert m.ReportFailed("crash", 1, "exit code 1") in machine.handle(m.RankExited(1, 1))


def test_others_that_failed_have_not_finished_without_one_that_was_started_again() -> None:
    machine = running(slots=3)
    machine.handle(m.RankExited(1, -9, others_go_on=True, may_return=True))
    machine.handle(m.RankExited(0, 0, absent=frozenset({1})))
    commands = machine.handle(m.RankExited(2, 1, absent=frozenset({1})))
    assert m.ReportFailed("crash", 2, "exit code 1") in commands


def test_a_hang_of_one_that_was_started_again_is_none_once_the_others_have_finished() -> None:
    machine = running()
    machine.handle(m.RankExited(1, -9, others_go_on=True, may_return=True))
    machine.handle(m.LimitPassed(1, "no heartbeat"))
    machine.handle(m.RankExited(0, 0, absent=frozenset({1})))
    judged = machine.handle(m.HangJudged(0, (1,), "rank 1 hangs"))
    assert judged == [m.ReportFinished(lost=1)]


def test_nobody_is_started_again_to_join_nobody() -> None:
    machine = running()
    machine.handle(m.RankExited(0, -9, others_go_on=True))
    commands = machine.handle(m.RankExited(1, -9, others_go_on=True, may_return=True))
    assert m.StartAgain not in kinds(commands)
    assert m.ReportFailed in kinds(commands)


def test_a_rank_that_cannot_be_started_again_stays_lost() -> None:
    machine = running()
    machine.handle(m.RankErrored(1, "raised X", others_go_on=True))
    machine.handle(m.RankExited(1, 1, others_go_on=True, may_return=True))
    assert machine.handle(m.RankExited(1, 1, others_go_on=True)) == [
        m.GoOnWithout(1, "exit code 1")
    ]
    assert m.ReportFinished(lost=1) in machine.handle(m.RankExited(0, 0))


def test_the_round_is_over_when_one_ends_that_was_being_started_again() -> None:
    machine = running()
    machine.handle(m.RankExited(0, -9, others_go_on=True, may_return=True))
    machine.handle(m.RankExited(1, -9))
    machine.handle(STOP)
    machine.handle(m.TimerFired("grace", 0))
    assert machine.handle(m.TreeEmpty()) == [], "there may be a process soon"
    assert m.SignalTree(9) in machine.handle(m.RankExited(0, -9, others_go_on=True))
    assert kinds(machine.handle(m.TreeEmpty()))[-1] is m.ReportStopped


def test_a_round_begins_without_lost_ranks() -> None:
    machine = running()
    machine.handle(m.RankExited(0, -9, others_go_on=True))
    machine.handle(STOP)
    machine.handle(m.RankExited(1, -15))
    machine.handle(m.TreeEmpty())
    machine.handle(m.StartRound(1, 2))
    machine.handle(m.WorkersSpawned())
    assert m.ReportFailed("crash", 0, "exit code 1") in machine.handle(m.RankExited(0, 1))


def test_a_crash_is_judged_before_long_even_if_nobody_else_ends() -> None:
    machine = running()
    machine.handle(m.RankExited(0, 1))
    machine.handle(STOP)
    assert machine.handle(m.TimerFired("settle", 0)) == [m.JudgeCrash(final=False)]
    assert machine.handle(m.TimerFired("settle", 0)) == []


def test_a_crash_of_which_only_victims_are_known_is_judged_again_at_the_end() -> None:
    machine = running()
    machine.handle(m.RankErrored(0, "connection closed by peer"))
    machine.handle(STOP)
    machine.handle(m.TimerFired("settle", 0))
    machine.handle(m.CrashUnclear())
    machine.handle(m.RankExited(0, 1))
    assert m.JudgeCrash(final=True) in machine.handle(m.RankExited(1, -9))


FAILED = m.StopRound(0, grace_s=2.0, signal=15, failed=True)


@pytest.mark.parametrize("examined", [False, True])
def test_a_crash_that_is_seen_after_another_node_has_failed_is_judged(*, examined: bool) -> None:
    machine = running()
    if examined:
        machine.handle(m.LimitPassed(0, "x"))
    machine.handle(FAILED)
    assert machine.handle(m.RankExited(1, -11)) == []
    assert m.JudgeLateCrash() in machine.handle(m.RankExited(0, -15))


def test_nothing_is_looked_for_where_no_rank_can_have_failed_unseen() -> None:
    def judged(machine: n.Node, stop: m.StopRound, code: int, *, lost: bool = False) -> bool:
        commands = machine.handle(stop)
        commands += machine.handle(m.RankExited(0, code, others_go_on=lost))
        commands += machine.handle(m.RankExited(1, 0))
        return m.JudgeLateCrash() in commands

    assert judged(running(), FAILED, 3)
    assert not judged(running(), STOP, 3)  # nothing has failed anywhere
    assert not judged(running(), FAILED, 0)
    assert not judged(running(), FAILED, 3, lost=True)
    reported = running(slots=3)
    reported.handle(m.RankExited(2, 3))
    assert not judged(reported, FAILED, 3)
    begins = n.Node()
    begins.handle(m.StartRound(0, 2))
    begins.handle(FAILED)
    begins.handle(m.WorkersSpawned())
    assert not judged(begins, FAILED, 3)


def test_a_recorded_exception_counts_before_the_process_is_dead() -> None:
    machine = running()
    commands = machine.handle(m.RankErrored(0, "rank 0 raised ValueError"))
    assert m.ReportFailed("crash", 0, "rank 0 raised ValueError") in commands
    assert machine.handle(m.RankExited(0, 1)) == []


def test_a_rank_that_announced_its_exception_may_end_by_itself_for_a_while() -> None:
    machine = running()
    assert m.SetTimer("linger", n.LINGER_S) in machine.handle(m.RankErrored(0, "x"))
    assert m.SignalRanks((1,), 15) in machine.handle(STOP)
    assert machine.handle(m.RankErrored(0, "again")) == []
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((0,), 15)]


SPARED = m.StopRound(0, grace_s=2.0, signal=15, failed=True, spared=(0, 1), spared_s=1.5)


def test_ranks_that_are_spared_may_end_by_themselves_for_a_while() -> None:
    machine = running(4)
    machine.handle(m.RankExited(3, -9))
    commands = machine.handle(SPARED)
    assert m.SignalRanks((2,), 15) in commands
    assert m.SetTimer("spared", 1.5) in commands
    assert m.SetTimer("grace", 3.5) in commands
    assert m.EndOrphans() in commands
    assert machine.handle(m.RankExited(2, -15)) == [m.EndOrphans()]
    assert machine.handle(m.RankErrored(0, "connection closed by peer")) == []
    assert machine.handle(m.TimerFired("spared", 0)) == [m.SignalRanks((1,), 15)]
    assert machine.handle(m.TimerFired("spared", 0)) == []
    assert m.SignalTree(9) in machine.handle(m.TimerFired("grace", 0))


def test_a_rank_that_has_raised_and_is_spared_is_not_signalled() -> None:
    machine = running()
    machine.handle(m.RankErrored(0, "x"))
    machine.handle(SPARED)
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((), 15)]
    assert machine.handle(m.TimerFired("spared", 0)) == [m.SignalRanks((1,), 15)]


def test_an_exit_seen_while_the_others_are_being_started_counts() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    assert machine.handle(m.RankExited(1, 3)) == []
    assert m.ReportFailed("crash", 1, "exit code 3") in machine.handle(m.WorkersSpawned())


def test_an_exception_announced_while_the_others_are_being_started_counts() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    machine.handle(m.RankErrored(0, "x"))
    commands = machine.handle(m.WorkersSpawned())
    assert m.ReportFailed("crash", 0, "x") in commands
    assert m.SignalRanks((1,), 15) in machine.handle(STOP)
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((0,), 15)]


def test_a_rank_that_fails_after_it_was_told_to_end_has_the_whole_grace() -> None:
    machine = running()
    machine.handle(m.StopRound(0, grace_s=1800.0, signal=15))
    assert machine.handle(m.RankErrored(0, "SystemExit")) == []
    assert machine.state is n.State.STOPPING
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((), 15)]


def test_ranks_that_end_well_while_they_are_examined_have_finished() -> None:
    machine = running()
    machine.handle(m.LimitPassed(0, "x"))
    machine.handle(m.RankExited(0, 0))
    machine.handle(m.RankExited(1, 0))
    assert machine.handle(m.HangJudged(0, (0,), "rank 0 hangs")) == [m.ReportFinished()]


def test_a_hang_gathers_evidence_before_anything_is_killed() -> None:
    machine = running()
    commands = machine.handle(m.LimitPassed(1, "heartbeat"))
    assert commands == [m.Watch(on=False), m.ReportSuspected("heartbeat"), m.GatherEvidence()]
    assert machine.handle(m.LimitPassed(0, "heartbeat")) == []
    assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence(), m.JudgeHang()]
    commands = machine.handle(m.HangJudged(0, (1,), "rank 1 hangs"))
    assert commands == [m.ReportFailed("hang", 1, "rank 1 hangs")]
    assert m.SignalRanks((1,), 9) in machine.handle(STOP)


class TestAVictimOfAHang:
    """Another node is to blame: the coordinator has this one go on."""

    def hung(self) -> n.Node:
        machine = running()
        machine.handle(m.LimitPassed(1, "heartbeat"))
        machine.handle(m.HangJudged(0, (1,), "rank 1 hangs"))
        return machine

    def test_it_goes_on_and_its_limits_count_anew(self) -> None:
        machine = self.hung()
        assert machine.handle(m.GoOn(0)) == [m.Watch(on=True, anew=True)]
        assert machine.state is n.State.RUNNING
        assert m.ReportSuspected("heartbeat") in machine.handle(m.LimitPassed(1, "heartbeat"))

    def test_one_that_has_passed_no_limit_yet_has_them_count_anew(self) -> None:
        assert running().handle(m.GoOn(0)) == [m.Watch(on=True, anew=True)]

    def test_one_that_is_still_examined_goes_on(self) -> None:
        machine = running()
        machine.handle(m.LimitPassed(1, "heartbeat"))
        machine.handle(m.RankExited(0, 1))
        assert m.ReportFailed("crash", 0, "exit code 1") in machine.handle(m.GoOn(0))
        assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence()]
        assert machine.handle(m.HangJudged(0, (1,), "rank 1 hangs")) == []

    def test_what_happened_meanwhile_is_judged_then(self) -> None:
        machine = self.hung()
        machine.handle(m.RankExited(0, 0))
        machine.handle(m.RankExited(1, 1))
        assert m.ReportFailed("crash", 1, "exit code 1") in machine.handle(m.GoOn(0))
        assert machine.handle(m.GoOn(0)) == [], "that is no hang"

    def test_what_was_judged_before_is_not_judged_again(self) -> None:
        machine = running(slots=3)
        machine.handle(m.RankErrored(0, "raised X", others_go_on=True))
        lost = m.RankExited(0, 1, others_go_on=True)
        assert machine.handle(lost) == [m.GoOnWithout(0, "raised X")]
        machine.handle(m.LimitPassed(1, "heartbeat"))
        machine.handle(m.HangJudged(0, (1,), "rank 1 hangs"))
        assert machine.handle(m.GoOn(0)) == [m.Watch(on=True, anew=True)]

    def test_a_rank_that_announced_its_end_meanwhile_is_lost_when_it_has_ended(self) -> None:
        machine = self.hung()
        machine.handle(m.RankErrored(0, "raised X", others_go_on=True))
        commands = machine.handle(m.GoOn(0))
        assert kinds(commands) == [m.Watch, m.SetTimer]
        lost = m.RankExited(0, 1, others_go_on=True)
        assert machine.handle(lost) == [m.GoOnWithout(0, "raised X")]

    def test_ranks_that_were_lost_meanwhile_are_started_again(self) -> None:
        machine = running(slots=3)
        machine.handle(m.LimitPassed(2, "heartbeat"))
        machine.handle(m.RankExited(0, -9, others_go_on=True, may_return=True))
        machine.handle(m.HangJudged(0, (2,), "rank 2 hangs"))
        machine.handle(m.RankErrored(1, "raised X", others_go_on=True))
        machine.handle(m.RankExited(1, 1, others_go_on=True, may_return=True))
        commands = machine.handle(m.GoOn(0))
        assert [each for each in commands if not isinstance(each, m.SetTimer)] == [
            m.Watch(on=True, anew=True),
            m.GoOnWithout(0, "killed by SIGKILL"),
            m.StartAgain(0),
            m.GoOnWithout(1, "raised X"),
            m.StartAgain(1),
        ]
        assert machine.alive == (0, 1, 2)

    def test_what_was_seen_of_one_hang_is_no_evidence_of_the_next(self) -> None:
        machine = self.hung()
        assert machine.handle(m.Gather(0)) == [m.ReportEvidence()], "of this hang"
        machine.handle(m.GoOn(0))
        machine.handle(m.RankExited(0, 1))
        assert machine.handle(m.Gather(0)) == [m.ReportEvidence(gathered=False)]

    def test_who_was_suspected_before_gets_no_signal_of_a_hang(self) -> None:
        machine = self.hung()
        machine.handle(m.GoOn(0))
        assert m.SignalRanks((1,), 9) not in machine.handle(STOP)

    def test_a_round_that_is_being_stopped_is(self) -> None:
        machine = self.hung()
        machine.handle(STOP)
        assert machine.handle(m.GoOn(0)) == []
        assert machine.state is n.State.STOPPING


def test_the_termination_signal_of_hung_ranks_can_be_chosen() -> None:
    machine = running(rank_termination_signal=6)
    machine.handle(m.LimitPassed(1, "heartbeat"))
    machine.handle(m.HangJudged(0, (1,), ""))
    assert m.SignalRanks((1,), 6) in machine.handle(STOP)


def test_a_culprit_that_died_while_all_nodes_were_looked_at_is_not_signalled() -> None:
    machine = running()
    machine.handle(m.LimitPassed(1, "heartbeat"))
    machine.handle(m.HangJudged(0, (1,), ""))
    assert machine.handle(m.RankExited(1, -6)) == []
    assert not any(isinstance(c, m.SignalRanks) and c.signal == 9 for c in machine.handle(STOP))


def test_the_ranks_of_another_node_are_looked_at_and_go_on() -> None:
    machine = running()
    assert machine.handle(m.Gather(0)) == [m.GatherEvidence()]
    assert machine.handle(m.Gather(0)) == [], "it is under way"
    assert machine.state is n.State.RUNNING
    assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence()]
    assert machine.handle(m.Gather(0)) == [m.GatherEvidence()]


def test_a_limit_that_is_passed_meanwhile_is_judged_by_the_same_evidence() -> None:
    machine = running()
    machine.handle(m.Gather(0))
    commands = machine.handle(m.LimitPassed(1, "heartbeat"))
    assert commands == [m.Watch(on=False), m.ReportSuspected("heartbeat")]
    assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence(), m.JudgeHang()]


class TestALookByHand:
    """A person wants to know what the ranks do."""

    def test_is_taken_and_nobody_else_hears_of_it(self) -> None:
        machine = running()
        look = m.LookByHand(0, recordings=False)
        assert machine.handle(look) == [m.GatherEvidence(by_hand=True, recordings=False)]
        assert machine.handle(look) == [], "it is under way"
        assert machine.handle(m.EvidenceGathered(0)) == []
        assert machine.state is n.State.RUNNING
        assert machine.handle(m.Gather(0)) == [m.GatherEvidence()]

    def test_shares_what_the_node_looks_at_itself(self) -> None:
        machine = running()
        machine.handle(m.LimitPassed(1, "heartbeat"))
        assert machine.handle(m.LookByHand(0, recordings=True)) == []
        assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence(), m.JudgeHang()]

    @pytest.mark.parametrize("event", [m.LimitPassed(1, "heartbeat"), m.Gather(0)])
    def test_is_no_evidence_of_what_happens_meanwhile(self, event: m.Event) -> None:
        machine = running()
        machine.handle(m.LookByHand(0, recordings=False))
        assert m.GatherEvidence() not in machine.handle(event)
        assert machine.handle(m.EvidenceGathered(0)) == [m.GatherEvidence()]
        assert m.ReportEvidence() in machine.handle(m.EvidenceGathered(0))

    def test_is_taken_while_ranks_do_not_stop(self) -> None:
        machine = running()
        machine.handle(STOP)
        look = m.LookByHand(0, recordings=False)
        assert machine.handle(look) == [m.GatherEvidence(by_hand=True, recordings=False)]
        assert machine.handle(m.EvidenceGathered(0)) == []

    def test_is_not_taken_without_ranks_or_of_another_round(self) -> None:
        assert n.Node().handle(m.LookByHand(-1, recordings=False)) == []
        assert running().handle(m.LookByHand(1, recordings=False)) == []


def test_there_is_nothing_to_look_at_before_ranks_run() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    assert machine.handle(m.Gather(0)) == [m.ReportEvidence(gathered=False)]
    assert machine.handle(m.Gather(1)) == []


def test_a_stop_does_not_wait_for_the_evidence_and_nothing_is_judged_after_it() -> None:
    machine = running()
    machine.handle(m.LimitPassed(1, "heartbeat"))
    assert m.SignalRanks((0, 1), STOP.signal) in machine.handle(STOP)
    assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence()]
    assert machine.handle(m.Gather(0)) == [m.ReportEvidence(gathered=False)]


def test_evidence_of_the_round_before_does_not_end_the_gathering_of_this_one() -> None:
    machine = running()
    machine.handle(m.LimitPassed(1, "heartbeat"))
    assert machine.handle(m.EvidenceGathered(-1)) == []
    assert machine.handle(m.EvidenceGathered(0)) == [m.ReportEvidence(), m.JudgeHang()]


def test_ranks_that_ignore_sigterm_are_killed_when_the_grace_is_over() -> None:
    machine = running()
    machine.handle(m.RankExited(0, 1))
    machine.handle(STOP)
    assert m.SignalTree(9) in machine.handle(m.TimerFired("grace", 0))


def test_a_later_order_leaves_less_time_never_more() -> None:
    machine = running()
    machine.handle(m.StopRound(0, 15.0, 15))
    assert m.SetTimer("grace", 2.0) in machine.handle(m.StopRound(0, 2.0, 15))
    assert not any(
        isinstance(each, m.SetTimer) for each in machine.handle(m.StopRound(0, 15.0, 15))
    )


def test_no_more_grace_after_the_second_interrupt() -> None:
    machine = running()
    machine.handle(m.StopRound(0, 1800.0, 2))
    assert m.SignalTree(9) in machine.handle(m.KillNow())
    assert machine.handle(m.KillNow()) == []


def test_processes_that_cannot_die_are_reported_not_waited_for() -> None:
    machine = running()
    machine.handle(STOP)
    machine.handle(m.TimerFired("grace", 0))
    assert machine.handle(m.TimerFired("unkillable", 0)) == [
        m.ReportStopped(all_ok=False, unkillable=True)
    ]
    assert machine.handle(m.StartRound(1, 2)) == [m.Spawn(1)]


def test_a_stop_during_the_start_waits_for_the_pids() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    assert machine.handle(STOP) == [m.CallOffSpawn()]
    assert m.SignalRanks((0, 1), 15) in machine.handle(m.WorkersSpawned())


def test_no_more_grace_after_a_second_interrupt_during_the_start() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    machine.handle(STOP)
    assert machine.handle(m.KillNow()) == []
    assert m.SignalTree(9) in machine.handle(m.WorkersSpawned())


def test_a_start_that_was_called_off_is_a_stop_and_no_failure() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    machine.handle(STOP)
    assert m.SignalTree(15) in machine.handle(m.SpawnFailed("called off"))
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=False, unkillable=False)]


def test_workers_that_cannot_be_started_are_a_failure_of_the_node() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    assert machine.handle(m.SpawnFailed("no memory")) == [m.ReportFailed("spawn", -1, "no memory")]
    assert m.SignalTree(15) in machine.handle(STOP)
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=False, unkillable=False)]


def test_timers_of_an_earlier_round_are_ignored() -> None:
    machine = running()
    machine.handle(STOP)
    assert machine.handle(m.TimerFired("grace", -1)) == []


def clearing() -> n.Node:
    """A node after a crash, when nothing is left of the round and another one is to follow."""
    machine = running(clearing_s=55.0)
    machine.handle(m.RankExited(0, 1))
    commands = machine.handle(m.StopRound(0, 2.0, 15, restart=True))
    assert commands[-1] == m.PrepareClearing(), "it starts while the ranks end"
    machine.handle(m.RankExited(1, -15))
    commands = machine.handle(m.TreeEmpty())
    assert commands == [m.SetTimer("clearing", 55.0), m.ClearNode(0)]
    return machine


def test_the_node_is_cleared_between_two_rounds() -> None:
    machine = clearing()
    assert machine.handle(m.NodeClear(1)) == []
    assert machine.handle(m.NodeClear(0)) == [m.ReportStopped(all_ok=False, unkillable=False)]
    assert machine.handle(m.NodeClear(0)) == []


def test_a_node_that_can_run_no_further_round_says_why() -> None:
    (report,) = clearing().handle(m.NodeClear(0, "GPU 3 is lost"))
    assert report == m.ReportStopped(all_ok=False, unkillable=False, problem="GPU 3 is lost")


@pytest.mark.parametrize(
    "event",
    [
        m.TimerFired("clearing", 0),
        m.KillNow(),
        m.NoRestart(),
        m.StopRound(0, 1800.0, 15),
    ],
)
def test_clearing_ends_when_it_takes_too_long_or_nobody_needs_it(event: m.Event) -> None:
    machine = clearing()
    assert machine.handle(event) == [m.ReportStopped(all_ok=False, unkillable=False)]
    assert machine.state is n.State.IDLE


def test_nothing_is_cleared_when_the_job_ends() -> None:
    machine = running(clearing_s=55.0)
    assert m.PrepareClearing() not in machine.handle(STOP)
    machine = running(clearing_s=55.0)
    machine.handle(m.StopRound(0, 2.0, 15, restart=True))
    machine.handle(m.NoRestart())
    machine.handle(m.RankExited(0, 1))
    machine.handle(m.RankExited(1, 1))
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=False, unkillable=False)]


def test_nothing_is_cleared_where_there_is_nothing_to_do() -> None:
    machine = running()
    machine.handle(m.StopRound(0, 2.0, 15, restart=True))
    machine.handle(m.RankExited(0, 1))
    machine.handle(m.RankExited(1, 1))
    assert machine.handle(m.TreeEmpty()) == [m.ReportStopped(all_ok=False, unkillable=False)]


def test_memory_of_processes_that_cannot_be_killed_is_waited_for_as_well() -> None:
    machine = running(slots=1, clearing_s=55.0)
    machine.handle(m.StopRound(0, 2.0, 15, restart=True))
    machine.handle(m.TimerFired("grace", 0))
    assert m.ClearNode(0) in machine.handle(m.TimerFired("unkillable", 0))
    commands = machine.handle(m.NodeClear(0))
    assert commands == [m.ReportStopped(all_ok=False, unkillable=True)]


def test_evidence_of_an_earlier_round_is_ignored() -> None:
    machine = running()
    machine.handle(m.LimitPassed(0, "x"))
    assert machine.handle(m.HangJudged(-1, (0,), "rank 0 hangs")) == []


EVENTS = st.one_of(
    st.builds(m.StartRound, st.integers(0, 4), st.just(2)),
    st.just(m.WorkersSpawned()),
    st.just(m.SpawnFailed("x")),
    st.builds(
        m.RankExited,
        st.integers(0, 1),
        st.sampled_from([0, 1, -9]),
        st.booleans(),
        st.booleans(),
        st.frozensets(st.integers(0, 1)),
    ),
    st.builds(m.RankErrored, st.integers(0, 1), st.just("x"), st.booleans()),
    st.builds(m.LimitPassed, st.integers(0, 1), st.just("x")),
    st.builds(m.Gather, st.integers(0, 2)),
    st.builds(m.EvidenceGathered, st.integers(0, 2)),
    st.builds(m.HangJudged, st.integers(0, 2), st.just((0,)), st.just("x")),
    st.builds(
        m.StopRound,
        st.integers(0, 4),
        st.just(1.0),
        st.just(15),
        restart=st.booleans(),
        agree=st.booleans(),
        failed=st.booleans(),
        spared=st.sampled_from([(), (0,), (0, 1)]),
    ),
    st.builds(m.Agreed, st.integers(0, 2), st.booleans()),
    st.builds(m.GoOn, st.integers(0, 2)),
    st.builds(m.LookByHand, st.integers(0, 2), st.booleans()),
    st.just(m.CrashUnclear()),
    st.just(m.NoRestart()),
    st.builds(m.NodeClear, st.integers(0, 4)),
    st.just(m.TreeEmpty()),
    st.builds(
        m.TimerFired,
        st.sampled_from(
            [
                "settle",
                "linger",
                "spared",
                "grace",
                "agree",
                "left",
                "unkillable",
                "clearing",
            ]
        ),
        st.integers(0, 4),
    ),
    st.just(m.KillNow()),
)


@given(st.lists(EVENTS, max_size=80))
def test_whatever_arrives(events: list[m.Event]) -> None:
    """At most one spawn, one failure report and one stopped report per round; never out of turn.

    Two exceptions: a hang may be called off; ranks that save together each report how they fail.
    """
    machine = n.Node(clearing_s=1.0)
    spawned: set[int] = set()
    failed: set[int] = set()
    stopped: set[int] = set()
    for event in events:
        if isinstance(event, m.GoOn) and machine.state is n.State.FAILED:
            failed.discard(event.round)
        together = machine.state is n.State.STOPPING
        for command in machine.handle(event):
            match command:
                case m.Spawn(round=number):
                    assert number not in spawned
                    assert spawned == stopped, "the last round has ended"
                    spawned.add(number)
                case m.ReportFailed():
                    assert together or machine.round not in failed
                    failed.add(machine.round)
                case m.ReportStopped():
                    assert machine.round in spawned
                    assert machine.round not in stopped
                    stopped.add(machine.round)


@given(st.lists(EVENTS, max_size=30))
def test_from_every_state_a_stop_leads_out(events: list[m.Event]) -> None:
    machine = n.Node(clearing_s=1.0)
    for event in events:
        machine.handle(event)
    if machine.state is n.State.IDLE:
        return
    was_clearing = machine.state is n.State.CLEARING  # then the stop ends the round
    machine.handle(m.StopRound(machine.round, 1.0, 15))
    machine.handle(m.WorkersSpawned())
    commands = []
    for timer in ("grace", "unkillable", "clearing"):
        commands += machine.handle(m.TimerFired(timer, machine.round))
    assert m.ReportStopped in kinds(commands) or was_clearing
    assert machine.state is n.State.IDLE


@given(st.lists(EVENTS, max_size=30))
def test_a_second_interrupt_leaves_no_grace_in_any_state(events: list[m.Event]) -> None:
    """Also if it comes before the order to stop, which a silent coordinator has yet to send."""
    machine = n.Node(clearing_s=1.0)
    for event in events:
        machine.handle(event)
    if machine.state is n.State.IDLE:
        machine.handle(m.StartRound(machine.round + 1, 2))
    machine.handle(m.KillNow())
    machine.handle(m.StopRound(machine.round, 1800.0, 15, restart=True))
    machine.handle(m.WorkersSpawned())
    assert machine.state in {n.State.KILLING, n.State.IDLE}
    machine.handle(m.TimerFired("unkillable", machine.round))
    assert machine.state is n.State.IDLE


def test_a_rank_that_announces_its_exception_while_a_hang_is_examined_is_told_to_end() -> None:
    machine = running(3)
    machine.handle(m.LimitPassed(0, "heartbeat"))
    assert m.SetTimer("linger", n.LINGER_S) in machine.handle(m.RankErrored(1, "x"))
    assert machine.handle(m.TimerFired("linger", 0)) == [m.SignalRanks((1,), 15)]


def test_one_that_announced_it_before_a_start_was_called_off_is_told_to_end() -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    machine.handle(m.RankErrored(0, "x"))
    machine.handle(m.TimerFired("linger", 0))  # nobody could be signalled yet
    machine.handle(STOP)
    commands = machine.handle(m.WorkersSpawned())
    assert m.SignalRanks((1,), 15) in commands
    assert m.SetTimer("linger", n.LINGER_S) in commands


def test_a_rank_that_raised_during_the_start_is_signalled_though_another_one_is_judged_first() -> (
    None
):
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    machine.handle(m.RankExited(0, 1))
    machine.handle(m.RankErrored(1, "x"))
    machine.handle(m.TimerFired("linger", 0))  # nobody could be signalled yet
    assert m.SetTimer("linger", n.LINGER_S) in machine.handle(m.WorkersSpawned())


OF_A_ROUND = st.one_of(
    st.just(m.WorkersSpawned()),
    st.builds(m.RankErrored, st.integers(0, 1), st.just("x"), st.booleans()),
    st.builds(m.LimitPassed, st.integers(0, 1), st.just("x")),
    st.just(m.HangJudged(0, (0,), "x")),
    EVENTS.filter(lambda event: not isinstance(event, m.TimerFired)),
    st.just("a timer that was set"),
)


def raised_in_their_time(events: list[m.Event | str]) -> set[int]:
    """Ranks that have raised once they were spared: they end by themselves."""
    spared: set[int] = set()
    raised = set()
    for event in events:
        if isinstance(event, m.StopRound):
            spared.update(event.spared)
        if isinstance(event, m.RankErrored) and event.local_rank in spared:
            raised.add(event.local_rank)
    return raised


@given(st.lists(OF_A_ROUND, max_size=12))
def test_every_living_rank_of_a_stopped_round_is_signalled(events: list[m.Event | str]) -> None:
    machine = n.Node()
    timers: list[str] = []
    told: set[int] = set()

    def take(event: m.Event) -> None:
        if isinstance(event, m.StartRound) and machine.state is n.State.IDLE:
            timers.clear()
            told.clear()
        for command in machine.handle(event):
            match command:
                case m.SetTimer(name=name):
                    timers[:] = [*(other for other in timers if other != name), name]
                case m.SignalRanks(local_ranks=ranks):
                    told.update(ranks)
                case m.StartAgain(local_rank=rank):
                    told.discard(rank)

    take(m.StartRound(0, 2))
    for event in events:
        if not isinstance(event, str):
            take(event)
        elif timers:
            take(m.TimerFired(timers.pop(0), machine.round))
    take(m.StopRound(machine.round, 30.0, 15))
    take(m.WorkersSpawned())
    for name in filter(timers.__contains__, ("spared", "linger")):
        take(m.TimerFired(name, machine.round))
    if machine.state is n.State.STOPPING:
        assert set(machine.alive) <= told | raised_in_their_time(events)


# --- stops that ranks agree on --------------------------------------------------------------------

AGREE = m.StopRound(0, grace_s=100.0, signal=15, agree=True)


def test_nobody_is_signalled_before_it_is_known_who_asks() -> None:
    machine = running()
    commands = machine.handle(AGREE)
    assert m.SignalRanks not in kinds(commands)
    assert m.SetTimer("agree", n.AGREE_S) in commands
    assert machine.handle(m.Agreed(0, ask=False)) == [m.SignalRanks((0, 1), 15)]
    assert machine.handle(m.TimerFired("agree", 0)) == []


def test_ranks_that_never_ask_are_signalled_some_time_after_another_one_has_stopped() -> None:
    machine = running(slots=3)
    machine.handle(AGREE)
    assert machine.handle(m.Agreed(0, ask=True)) == []
    assert machine.handle(m.TimerFired("agree", 0)) == []
    assert machine.handle(m.RankExited(1, 0)) == [m.SetTimer("left", n.AGREE_S)]
    assert machine.handle(m.TimerFired("left", 0)) == [m.SignalRanks((0, 2), 15, agree=True)]


def test_where_nothing_is_heard_ranks_that_never_ask_get_their_signal() -> None:
    machine = running()
    machine.handle(AGREE)
    assert machine.handle(m.TimerFired("agree", 0)) == [m.SignalRanks((0, 1), 15, agree=True)]


@pytest.mark.parametrize("ask", [False, True])
def test_it_may_be_known_before_the_processes_are(*, ask: bool) -> None:
    machine = n.Node()
    machine.handle(m.StartRound(0, 2))
    assert machine.handle(AGREE) == [], "ranks of other nodes may wait for these"
    assert machine.handle(m.Agreed(0, ask)) == ([] if ask else [m.CallOffSpawn()])
    signals = [each for each in machine.handle(m.WorkersSpawned()) if type(each) is m.SignalRanks]
    assert signals == ([] if ask else [m.SignalRanks((0, 1), 15)])


def test_a_later_stop_is_in_no_doubt() -> None:
    machine = running()
    machine.handle(AGREE)
    assert m.SignalRanks((0, 1), 15) in machine.handle(STOP)
    assert machine.handle(m.Agreed(1, ask=False)) == []


def test_a_rank_that_fails_while_all_stop_is_reported_once() -> None:
    machine = running(slots=3)
    machine.handle(AGREE)
    machine.handle(m.Agreed(0, ask=True))
    assert machine.handle(m.RankErrored(1, "raised OSError")) == [
        m.ReportFailed("crash", 1, "raised OSError"),
        LINGER,
    ]
    assert m.ReportFailed not in kinds(machine.handle(m.RankExited(1, -9)))
    assert m.ReportFailed("crash", 0, "killed by SIGKILL") in machine.handle(m.RankExited(0, -9))


def test_a_code_of_a_rank_that_has_stopped_is_no_failure() -> None:
    machine = running()
    machine.handle(AGREE)
    machine.handle(m.Agreed(0, ask=True))
    assert machine.handle(m.RankExited(0, 75)) == [m.SetTimer("left", n.AGREE_S)]


@pytest.mark.parametrize("ask", [True, False])
def test_ranks_that_were_to_save_and_have_not_ended_in_time_are_reported(ask: bool) -> None:
    machine = running(3)
    machine.handle(AGREE)
    machine.handle(m.Agreed(0, ask=ask))
    machine.handle(m.RankExited(1, 75))
    said, *kill = machine.handle(m.TimerFired("grace", 0))
    assert said == m.SayLate((0, 2), 100.0)
    assert m.SignalTree(9) in kill


def test_ranks_that_only_wait_for_one_that_has_failed_are_not_reported_late() -> None:
    machine = running(2)
    machine.handle(STOP)
    late = machine.handle(m.TimerFired("grace", 0))
    assert not [each for each in late if isinstance(each, m.SayLate)]
