"""The node's life cycle: each fault in each state ends in a stopped round, never in silence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.core import node as n


def running(slots: int = 2, **options: int) -> n.Node:
    machine = n.Node(**options)
    assert machine.handle(n.StartRound(0, slots)) == [n.Spawn(0)]
    machine.handle(n.WorkersSpawned())
    return machine


def kinds(commands: list[n.Command]) -> list[type]:
    return [type(command) for command in commands]


STOP = n.StopRound(0, grace_s=2.0, signal=15)


def test_workers_are_watched_once_they_exist() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    assert machine.handle(n.WorkersSpawned()) == [n.Watch(on=True)]


def test_all_ranks_exit_with_0() -> None:
    machine = running()
    assert machine.handle(n.RankExited(0, 0)) == []
    assert machine.handle(n.RankExited(1, 0)) == [n.Watch(on=False), n.ReportFinished()]
    assert n.SignalTree(15) in machine.handle(STOP)  # what they left behind may end in peace
    assert machine.handle(n.TreeEmpty()) == [n.ReportStopped(all_ok=True, unkillable=False)]


def test_a_crash_is_reported_at_once_and_judged_when_the_others_have_ended() -> None:
    machine = running(slots=3)
    commands = machine.handle(n.RankExited(1, -11))
    assert n.ReportFailed("crash", 1, "signal 11") in commands
    assert n.JudgeCrash not in kinds(commands)
    assert n.SignalRanks((0, 2), 15) in machine.handle(STOP)
    assert machine.handle(n.RankExited(0, -15)) == []
    commands = machine.handle(n.RankExited(2, -15))
    assert kinds(commands) == [n.JudgeCrash, n.SetTimer, n.SignalTree]
    assert machine.handle(n.TreeEmpty()) == [n.ReportStopped(all_ok=False, unkillable=False)]


def test_a_crash_is_judged_before_long_even_if_nobody_else_ends() -> None:
    machine = running()
    machine.handle(n.RankExited(0, 1))
    machine.handle(STOP)
    assert machine.handle(n.TimerFired("settle", 0)) == [n.JudgeCrash(final=False)]
    assert machine.handle(n.TimerFired("settle", 0)) == []


def test_a_crash_of_which_only_victims_are_known_is_judged_again_at_the_end() -> None:
    machine = running()
    machine.handle(n.RankErrored(0, "connection closed by peer"))
    machine.handle(STOP)
    machine.handle(n.TimerFired("settle", 0))
    machine.handle(n.CrashUnclear())
    machine.handle(n.RankExited(0, 1))
    assert n.JudgeCrash(final=True) in machine.handle(n.RankExited(1, -9))


def test_a_recorded_exception_counts_before_the_process_is_dead() -> None:
    machine = running()
    commands = machine.handle(n.RankErrored(0, "rank 0 raised ValueError"))
    assert n.ReportFailed("crash", 0, "rank 0 raised ValueError") in commands
    assert machine.handle(n.RankExited(0, 1)) == []


def test_a_rank_that_announced_its_exception_may_end_by_itself_for_a_while() -> None:
    machine = running()
    assert n.SetTimer("linger", n.LINGER_S) in machine.handle(n.RankErrored(0, "x"))
    assert n.SignalRanks((1,), 15) in machine.handle(STOP)
    assert machine.handle(n.RankErrored(0, "again")) == []
    assert machine.handle(n.TimerFired("linger", 0)) == [n.SignalRanks((0,), 15)]


def test_an_exit_seen_while_the_others_are_being_started_counts() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    assert machine.handle(n.RankExited(1, 3)) == []
    assert n.ReportFailed("crash", 1, "exit code 3") in machine.handle(n.WorkersSpawned())


def test_an_exception_announced_while_the_others_are_being_started_counts() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    machine.handle(n.RankErrored(0, "x"))
    commands = machine.handle(n.WorkersSpawned())
    assert n.ReportFailed("crash", 0, "x") in commands
    assert n.SignalRanks((1,), 15) in machine.handle(STOP)
    assert machine.handle(n.TimerFired("linger", 0)) == [n.SignalRanks((0,), 15)]


def test_a_rank_that_fails_after_it_was_told_to_end_has_the_whole_grace() -> None:
    machine = running()
    machine.handle(n.StopRound(0, grace_s=1800.0, signal=15))
    assert machine.handle(n.RankErrored(0, "SystemExit")) == []
    assert machine.state is n.State.STOPPING
    assert machine.handle(n.TimerFired("linger", 0)) == [n.SignalRanks((), 15)]


def test_ranks_that_end_well_while_they_are_examined_have_finished() -> None:
    machine = running()
    machine.handle(n.LimitPassed(0, "x"))
    machine.handle(n.RankExited(0, 0))
    machine.handle(n.RankExited(1, 0))
    assert machine.handle(n.HangJudged((0,), "rank 0 hangs")) == [n.ReportFinished()]


def test_a_hang_gathers_evidence_before_anything_is_killed() -> None:
    machine = running()
    commands = machine.handle(n.LimitPassed(1, "heartbeat"))
    assert commands == [n.Watch(on=False), n.GatherEvidence()]
    assert machine.handle(n.LimitPassed(0, "heartbeat")) == []
    commands = machine.handle(n.HangJudged((1,), "rank 1 hangs"))
    assert commands == [n.SignalRanks((1,), 9), n.ReportFailed("hang", 1, "rank 1 hangs")]


def test_the_termination_signal_of_hung_ranks_can_be_chosen() -> None:
    machine = running(rank_termination_signal=6)
    machine.handle(n.LimitPassed(1, "heartbeat"))
    assert n.SignalRanks((1,), 6) in machine.handle(n.HangJudged((1,), ""))


def test_a_culprit_that_died_while_it_was_examined_is_not_signalled() -> None:
    machine = running()
    machine.handle(n.LimitPassed(1, "heartbeat"))
    assert machine.handle(n.RankExited(1, -6)) == []
    assert n.SignalRanks((), 9) in machine.handle(n.HangJudged((1,), ""))


def test_ranks_that_ignore_sigterm_are_killed_when_the_grace_is_over() -> None:
    machine = running()
    machine.handle(n.RankExited(0, 1))
    machine.handle(STOP)
    assert n.SignalTree(9) in machine.handle(n.TimerFired("grace", 0))


def test_no_more_grace_after_the_second_interrupt() -> None:
    machine = running()
    machine.handle(n.StopRound(0, 1800.0, 2))
    assert n.SignalTree(9) in machine.handle(n.KillNow())
    assert machine.handle(n.KillNow()) == []


def test_processes_that_cannot_die_are_reported_not_waited_for() -> None:
    machine = running()
    machine.handle(STOP)
    machine.handle(n.TimerFired("grace", 0))
    assert machine.handle(n.TimerFired("unkillable", 0)) == [
        n.ReportStopped(all_ok=False, unkillable=True)
    ]
    assert machine.handle(n.StartRound(1, 2)) == [n.Spawn(1)]


def test_a_stop_during_the_start_waits_for_the_pids() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    assert machine.handle(STOP) == [n.CallOffSpawn()]
    assert n.SignalRanks((0, 1), 15) in machine.handle(n.WorkersSpawned())


def test_no_more_grace_after_a_second_interrupt_during_the_start() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    machine.handle(STOP)
    assert machine.handle(n.KillNow()) == []
    assert n.SetTimer("grace", 0.0) in machine.handle(n.WorkersSpawned())


def test_a_start_that_was_called_off_is_a_stop_and_no_failure() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    machine.handle(STOP)
    assert n.SignalTree(15) in machine.handle(n.SpawnFailed("called off"))
    assert machine.handle(n.TreeEmpty()) == [n.ReportStopped(all_ok=False, unkillable=False)]


def test_workers_that_cannot_be_started_are_a_failure_of_the_node() -> None:
    machine = n.Node()
    machine.handle(n.StartRound(0, 2))
    assert machine.handle(n.SpawnFailed("no memory")) == [n.ReportFailed("spawn", -1, "no memory")]
    assert n.SignalTree(15) in machine.handle(STOP)
    assert machine.handle(n.TreeEmpty()) == [n.ReportStopped(all_ok=False, unkillable=False)]


def test_timers_of_an_earlier_round_are_ignored() -> None:
    machine = running()
    machine.handle(STOP)
    assert machine.handle(n.TimerFired("grace", -1)) == []


EVENTS = st.one_of(
    st.builds(n.StartRound, st.integers(0, 4), st.just(2)),
    st.just(n.WorkersSpawned()),
    st.just(n.SpawnFailed("x")),
    st.builds(n.RankExited, st.integers(0, 1), st.sampled_from([0, 1, -9])),
    st.builds(n.RankErrored, st.integers(0, 1), st.just("x")),
    st.builds(n.LimitPassed, st.integers(0, 1), st.just("x")),
    st.builds(n.HangJudged, st.just((0,)), st.just("x")),
    st.builds(n.StopRound, st.integers(0, 4), st.just(1.0), st.just(15)),
    st.just(n.TreeEmpty()),
    st.builds(n.TimerFired, st.sampled_from(["settle", "grace", "unkillable"]), st.integers(0, 4)),
    st.just(n.KillNow()),
)


@given(st.lists(EVENTS, max_size=80))
def test_whatever_arrives(events: list[n.Event]) -> None:
    """At most one spawn, one failure report and one stopped report per round; never out of turn."""
    machine = n.Node()
    spawned: set[int] = set()
    failed: set[int] = set()
    stopped: set[int] = set()
    for event in events:
        for command in machine.handle(event):
            match command:
                case n.Spawn(round=number):
                    assert number not in spawned
                    assert spawned == stopped, "the last round has ended"
                    spawned.add(number)
                case n.ReportFailed():
                    assert machine.round not in failed
                    failed.add(machine.round)
                case n.ReportStopped():
                    assert machine.round in spawned
                    assert machine.round not in stopped
                    stopped.add(machine.round)


@given(st.lists(EVENTS, max_size=30))
def test_from_every_state_a_stop_leads_out(events: list[n.Event]) -> None:
    machine = n.Node()
    for event in events:
        machine.handle(event)
    if machine.state is n.State.IDLE:
        return
    machine.handle(n.StopRound(machine.round, 1.0, 15))
    machine.handle(n.WorkersSpawned())
    machine.handle(n.TimerFired("grace", machine.round))
    commands = machine.handle(n.TimerFired("unkillable", machine.round))
    assert n.ReportStopped in kinds(commands)
    assert machine.state is n.State.IDLE
