"""How rounds follow one another on many nodes: forming, preparing, losses, quorums, take-over."""

from __future__ import annotations

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.messages import Iterations
from undaunted.coordinator.policy.policy import STOP_MARGIN_S, JobPolicy, PolicyState


def remarks(job: Driver) -> list[str]:
    return [line.text for line in of(m.Say, job.said)]


class TestFirstRound:
    def test_begins_at_once_when_max_nodes_are_there(self) -> None:
        job = Driver(min_nodes=2, max_nodes=3, max_restarts=4)
        job.join("c", "b")
        starts = of(m.Start, job.join("a"))
        assert [(s.node, s.group_rank, s.first_rank, s.slots) for s in starts] == [
            ("a", 0, 0, 2),
            ("b", 1, 2, 2),
        ]
        (first, _) = starts
        assert (first.group_world_size, first.world_size, first.max_restarts) == (2, 4, 4)

    def test_waits_a_moment_for_more_than_it_needs(self) -> None:
        job = Driver(min_nodes=2, max_nodes=4, last_call_s=1.5)
        job.join("c", "b")
        assert job.timers["last_call"] == m.SetTimer("last_call", 0, 1.5)
        job.join("a")
        assert not job.policy.running
        job.fire("last_call")
        assert job.table == "a b"

    def test_nodes_that_are_too_many_wait_as_spares(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=4)
        job.join("f", "e")
        assert job.fire("joined") == [m.Say("spare nodes: e, f")]
        assert job.table == "a b c d"
        assert job.ends == {}

    def test_who_is_waited_for_is_said_now_and_then(self) -> None:
        job = Driver(min_nodes=4)
        job.join("c", "a", "b")
        assert job.timers["join"].delay_s == 900
        job.fire("say")
        job.fire("say")
        assert remarks(job) == [
            "waiting up to 14 min 50 s more: 3 of 4 nodes are here (a, b, c)",
            "waiting up to 13 min 50 s more: 3 of 4 nodes are here (a, b, c)",
        ]

    def test_ends_when_nodes_do_not_come(self) -> None:
        job = Driver(min_nodes=2, first_timeout_s=60)
        job.join("a")
        job.fire("join")
        reason = "nothing else came within 1 min 00 s: 1 of 2 nodes are here (a)"
        assert job.ends["a"].reason == reason
        assert job.outcomes == {"a": "too_few_nodes"}

    def test_begins_although_the_last_call_is_not_over_when_time_is_up(self) -> None:
        job = Driver(min_nodes=1, max_nodes=2)
        job.feed(m.QuorumLost("x"))
        job.join("a")
        job.feed(m.QuorumRegained())
        assert not job.policy.running
        job.fire("join")
        assert job.policy.running

    def test_duplicate_infrastructure_ranks_are_said(self) -> None:
        job = Driver(min_nodes=2)
        job.join("a", infra_rank=7)
        job.join("b", infra_rank=7)
        job.fire("say")
        assert "nodes a and b have the same infrastructure rank 7" in remarks(job)[0]
        job.lose("a")
        job.join("c", infra_rank=8)
        assert job.table == "b c"

    def test_a_node_lost_while_waiting_counts_no_more(self) -> None:
        job = Driver(min_nodes=2)
        job.join("a")
        job.lose("a")
        job.join("b")
        assert not job.policy.running
        job.join("a")
        assert job.table == "a b"


class TestPreparing:
    def preparing(self, *names: str, **config: int) -> Driver:
        job = Driver(**config)
        job.accepts = False
        job.join(*names)
        return job

    def test_a_node_lost_meanwhile_is_replaced(self) -> None:
        job = self.preparing("a", "b", "c", min_nodes=2, max_nodes=3)
        assert of(m.Prepare, job.said)
        (prepare,) = job.lose("b")
        assert isinstance(prepare, m.Prepare)
        assert [place.node for place in prepare.places] == ["a", "c"]
        job.accept()
        assert job.table == "a c"
        assert job.policy.restarts_used == 0

    def test_or_waited_for(self) -> None:
        job = self.preparing("a", "b", min_nodes=2)
        assert job.lose("b") == []
        assert job.accept() == [], "of a table that holds no more"
        assert of(m.Prepare, job.join("d"))

    def test_a_spare_lost_meanwhile_changes_nothing(self) -> None:
        job = self.preparing("a", "b", "c", min_nodes=2, max_nodes=3)
        assert job.lose("c") == []
        assert len(of(m.Start, job.accept())) == 2

    def test_a_node_that_turns_out_unhealthy_is_replaced_and_told(self) -> None:
        job = self.preparing("a", "b", "c", min_nodes=2, max_nodes=3)
        end, prepare = job.feed(m.NodeUnhealthy("a", -1, "no GPU"))
        assert end == m.End("a", m.Outcome.EXCLUDED, "node a is unhealthy: no GPU")
        assert isinstance(prepare, m.Prepare)

    def test_has_a_limit(self) -> None:
        job = self.preparing("a", min_nodes=1)
        assert job.timers["prepare"].delay_s == 300
        job.fire("prepare")
        assert "could not be started within 5 min 00 s" in job.ends["a"].reason

    def test_who_does_not_confirm_the_table_is_excluded_and_named(self) -> None:
        job = self.preparing("a", "b", "c", min_nodes=2, max_nodes=3)
        timer = job.timers["prepare"]
        end, prepare = job.feed(m.TimerFired("prepare", timer.round, silent=("b",)))
        assert isinstance(end, m.End)
        assert (end.node, end.outcome) == ("b", m.Outcome.EXCLUDED)
        assert end.reason.startswith("node b has not confirmed the table of round 0")
        assert [place.node for place in prepare.places] == ["a", "c"]

    def test_where_too_few_confirm_it_the_job_ends_and_names_them(self) -> None:
        job = self.preparing("a", "b", min_nodes=2)
        job.feed(m.TimerFired("prepare", 0, silent=("b",)))
        assert "node b has not confirmed" in job.ends["a"].reason

    def test_one_of_the_last_round_that_is_back_meanwhile_keeps_its_place(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=3, max_nodes=4, max_restarts=1)
        job.accepts = False
        job.lose("c")
        job.stop("a", "b")
        job.join("c")
        assert not of(m.Start, job.accept()), "a table with it is made"
        job.accept()
        assert job.table == "a b c"

    def test_a_newcomer_puts_nothing_off(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=3, max_nodes=5, max_restarts=1)
        job.accepts = False
        job.lose("c")
        job.stop("a", "b")
        job.join("e")
        job.accept()
        assert job.table == "a b d"

    def test_a_node_lost_after_another_one_has_left_is_waited_for(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=3, max_nodes=4, max_restarts=1)
        job.accepts = False
        job.fail("a")
        job.signal("d")
        job.stop("a", "b", "c")
        assert job.policy.preparing, "enough are left"
        job.lose("c")
        assert job.outcomes == {"d": "preempted"}
        job.join("c")
        job.accept()
        assert job.table == "a b c"


class TestLoss:
    def test_a_lost_node_is_replaced_by_a_spare(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=1)
        decided, *stops = job.lose("a")
        reason = "node a is lost: silence"
        assert decided == m.Decided(0, "restart", reason, restarts_left=0)
        assert stops == [m.Stop("b", 0, reason, 2.0, failed=True)]
        job.stop("b")
        assert job.table == "c b", "the survivor keeps its rank"
        (goes_on,) = [said.text for said in of(m.Say, job.said) if "goes on" in said.text]
        assert "c in the place of a" in goes_on
        assert of(m.Blamed, job.said) == [m.Blamed(0, "a", reason, lost=True)]

    def test_a_lost_node_has_not_said_how_far_its_ranks_came(self) -> None:
        limits = {"max_restarts": 3, "max_no_progress_cycles": 1}
        job = running("a", "b", min_nodes=1, max_nodes=2, **limits)
        job.lose("a")
        assert not [line for line in remarks(job) if "progress" in line]
        assert job.table == "b"
        job.fail("b")
        job.stop("b")
        assert [line for line in remarks(job) if "undaunted.step" in line]

    def test_a_round_whose_nodes_are_lost_is_none_without_progress(self) -> None:
        limits = {"max_restarts": 3, "max_no_progress_cycles": 1}
        job = running("a", "b", min_nodes=1, max_nodes=1, **limits)
        job.fail("a")
        job.stop("a", iterations=Iterations(None, 40))
        job.lose(job.table)
        assert not job.ends

    def test_without_a_spare_the_job_waits(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.lose("b")
        job.stop("a")
        assert job.timers["join"] == m.SetTimer("join", 1, 300)
        job.join("b")
        assert job.table == "a b"
        assert job.policy.round == 1

    def test_and_ends_with_the_cause(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.lose("b")
        job.stop("a")
        decided, end = job.fire("join")
        reason = (
            "nothing else came within 5 min 00 s: 1 of 2 nodes are here (a); round 0 had been "
            "stopped because of this: node b is lost: silence"
        )
        assert decided == m.Decided(0, "end", reason, restarts_left=1)
        assert end == m.End("a", m.Outcome.TOO_FEW_NODES, reason)

    def test_two_failures_in_a_row_use_two_restarts(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=2, max_nodes=4, max_restarts=2)
        job.lose("a")
        job.stop("b")
        job.fail("c")
        job.stop("c", "b")
        assert (job.policy.round, job.policy.restarts_used) == (2, 2)
        job.lose("b")
        job.stop("c")
        assert job.outcomes == {"c": "failed", "d": "failed"}
        assert job.ends["d"].reason == "node b is lost: silence; no restart is left of 2"

    def test_while_the_round_is_stopped_uses_no_other_restart(self) -> None:
        job = running("a", "b", "c", min_nodes=3, max_restarts=1)
        job.fail("a")
        job.stop("a", "b")
        assert job.lose("c") == [m.Blamed(0, "a", "node a: rank 0: exit code 1")]
        job.join("d")
        assert job.table == "a b d"

    def test_of_everybody_lets_the_job_wait(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.lose("a")
        job.lose("b")
        job.join("c", "d")
        assert job.table == "c d"

    def test_a_connection_that_is_back_at_once_is_preferred_to_spares(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=1)
        job.lose("b")
        job.join("b")
        job.stop("a")
        assert job.table == "a b"

    def test_reports_of_a_lost_node_tell_only_who_is_to_blame(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.lose("b")
        assert job.fail("b", "rank 2: signal 9") == []
        assert job.stop("b", verdict="rank 2 (node b, pid 7) was killed") == []
        blamed, *_ = job.stop("a")
        assert blamed == m.Blamed(0, "b", "rank 2 (node b, pid 7) was killed")

    def test_a_node_that_never_reports_that_it_stopped_is_given_up(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=1)
        job.fail("a")
        assert job.timers["stop"] == m.SetTimer("stop", 0, 2.0 + STOP_MARGIN_S)
        job.stop("a")
        job.fire("stop")
        assert job.table == "a c"
        assert job.outcomes == {"b": "excluded"}


class TestBlame:
    def test_the_first_cause_ends_the_job_with_its_words(self) -> None:
        job = running("a", "b", min_nodes=2)
        job.fail("a", "rank 0: exit code 1", victim=True)
        job.fail("b", "rank 2: signal 11")
        job.stop("a", "b")
        assert job.ends["a"].reason == "node b: rank 2: signal 11; --max-restarts is 0"
        assert of(m.Blamed, job.said) == [
            m.Blamed(0, "b", "node b: rank 2: signal 11", victims=("a",))
        ]

    def test_a_crash_that_was_seen_after_the_stop_goes_before_its_victim(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.fail("a", "rank 0: raised RuntimeError")
        job.stop("b", verdict="rank 3 (node b, pid 7) was killed by SIGSEGV")
        blamed, *_ = job.stop("a", verdict="rank 0 (node a) failed: reset by peer", victim=True)
        assert blamed == m.Blamed(0, "b", "rank 3 (node b, pid 7) was killed by SIGSEGV", ("a",))

    def test_unseen_crashes_are_asked_for_where_something_has_failed(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.fail("a")
        assert all(stop.failed for stop in of(m.Stop, job.said))
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.feed(m.ExclusionRequested("a", 0, "GPU 3"))
        job.feed(m.ShutdownRequested("a", 0, "done"))
        assert not any(stop.failed for stop in of(m.Stop, job.said))

    def test_the_reason_names_the_node(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.fail("b", "rank 2: signal 11")
        assert {stop.reason for stop in of(m.Stop, job.said)} == {"node b: rank 2: signal 11"}


class TestQuorum:
    def test_without_one_nothing_runs_and_nothing_starts(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=1)
        job.feed(m.QuorumLost("only a is heard of"))
        assert len(of(m.Stop, job.said)) == 2
        job.stop("a", "b")
        assert job.policy.round == 0
        job.fire("say")
        assert remarks(job)[0].endswith("more: the job cannot go on: only a is heard of")
        job.feed(m.QuorumRegained())
        assert job.policy.round == 1

    def test_without_one_the_job_does_not_end_for_the_others(self) -> None:
        job = running("a", "b", min_nodes=2)
        job.fail("a")
        job.feed(m.QuorumLost("x"))
        job.stop("a", "b")
        assert job.ends == {}
        job.feed(m.QuorumRegained())
        assert set(job.outcomes.values()) == {"failed"}

    def test_without_one_nodes_may_leave(self) -> None:
        job = running("a", "b", min_nodes=2)
        job.feed(m.QuorumLost("x"))
        job.signal("a")
        job.stop("a", "b")
        assert job.outcomes == {"a": "preempted"}
        job.signal("b")
        assert job.outcomes == {"a": "preempted", "b": "preempted"}
        assert not job.policy.ended, "others may go on with it"

    def test_who_was_lost_with_it_is_waited_for_when_it_is_back(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=3, max_nodes=4, max_restarts=1)
        job.lose("b", "c")
        job.feed(m.QuorumLost("x"))
        job.stop("a")
        job.join("e", "b")
        assert job.policy.state is PolicyState.FORMING
        assert "return" not in job.timers
        job.feed(m.QuorumRegained())
        assert job.policy.state is PolicyState.FORMING
        job.join("c")
        assert job.table == "a b c"

    def test_but_not_for_ever(self) -> None:
        job = running("a", "b", "c", "d", min_nodes=3, max_nodes=4, max_restarts=1)
        job.lose("b", "c")
        job.feed(m.QuorumLost("x"))
        job.stop("a")
        job.join("b")
        job.feed(m.QuorumRegained())
        job.fire("return")
        assert job.table == "a b d"

    def test_for_too_long_ends_it(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.feed(m.QuorumLost("x"))
        job.stop("a", "b")
        job.fire("join")
        assert "cannot go on: x" in job.ends["a"].reason

    def test_who_was_lost_is_the_cause_and_not_who_noticed_it_first(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_restarts=1)
        job.feed(m.NodeFailed("a", 0, "rank 0: connection reset", victim=True))
        job.lose("b", "c")
        job.feed(m.QuorumLost("x"))
        job.stop("a")
        job.fire("join")
        said = "round 0 had been stopped because of this: node b is lost"
        assert said in job.ends["a"].reason

    def test_finished_is_finished(self) -> None:
        job = running("a", "b", min_nodes=2)
        job.finish("a", "b")
        job.feed(m.QuorumLost("x"))
        job.stop("a", "b", all_ok=True)
        assert set(job.outcomes.values()) == {"finished"}

    def test_lost_while_preparing(self) -> None:
        job = Driver(min_nodes=1)
        job.accepts = False
        job.join("a")
        job.feed(m.QuorumLost("x"))
        assert job.accept() == []
        job.accepts = True
        job.feed(m.QuorumRegained())
        assert job.policy.running


class TestRestored:
    def policy(self, names: str = "abc", **about: object) -> Driver:
        nodes = [m.NodeInfo(name, 2) for name in names]
        config = PolicyConfig(min_nodes=3, max_restarts=5)
        memory = m.Memory(restarts_used=3, **about)  # type: ignore[arg-type]
        return Driver(JobPolicy.restored(config, round=4, nodes=nodes, memory=memory))

    def test_a_take_over_restarts_without_the_old_leaders_node(self) -> None:
        job = self.policy()
        assert job.policy.running
        assert job.table == "a b c"
        job.join("s")
        decided, *stops = job.lose("a")
        assert decided == m.Decided(4, "restart", "node a is lost: silence", restarts_left=1)
        assert [stop.node for stop in of(m.Stop, stops)] == ["b", "c"]
        starts = of(m.Start, job.stop("b", "c"))
        assert job.table == "s b c"
        assert {start.round for start in starts} == {5}

    def test_healthy_nodes_are_left_alone(self) -> None:
        job = self.policy()
        assert job.join("a", "b", "c") == []
        job.finish("a", "b", "c")
        job.stop("a", "b", "c", all_ok=True)
        assert set(job.outcomes.values()) == {"finished"}

    def test_what_was_learned_goes_on(self) -> None:
        stalled = ("round 2 reached 7", "round 3 reached 7")
        job = self.policy(reached=7, stalled=stalled, excluded={"x": "bad"})
        assert job.policy.tracker.known == (7, stalled)
        assert job.policy.roster.excluded == {"x": "bad"}
        assert job.join("x") == [m.End("x", m.Outcome.EXCLUDED, "bad")]
        job.fail("a")
        job.stop("a", "b", "c", iterations=Iterations(7, 7))
        assert job.outcomes == {"x": "excluded"} | dict.fromkeys("abc", "no_restart")
        assert "was at iteration 7, then round 2 reached 7, round 3" in job.ends["a"].reason

    def test_without_nodes_it_waits_for_some(self) -> None:
        job = self.policy("")
        job.join("a", "b", "c")
        assert job.policy.round == 5


def test_without_a_quorum_ranks_get_little_time_whatever_was_asked_for_and_whatever_they_had():
    """Others may start a round as soon as it is over."""
    driver = running("a", "b", "c", min_nodes=3, max_restarts=3, stop_timeout_s=60.0)
    stops = of(m.Stop, driver.feed(m.QuorumLost("1 of 3")))
    assert {each.node: each.grace_s for each in stops} == dict.fromkeys("abc", 2.0)
    driver = running("a", "b", "c", min_nodes=3, max_restarts=3, stop_timeout_s=60.0)
    driver.fail("a")
    driver.stop("a")
    stops = of(m.Stop, driver.feed(m.QuorumLost("1 of 3")))
    assert {each.node: each.grace_s for each in stops} == dict.fromkeys("bc", 2.0)
