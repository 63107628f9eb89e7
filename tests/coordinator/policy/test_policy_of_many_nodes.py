"""What nodes that fail, join, leave or are excluded mean for a job of many nodes."""

from __future__ import annotations

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.formation import RETURN_S
from undaunted.coordinator.policy.policy import GRACE_ON_REQUEST_S, PolicyState


class TestExclusion:
    def excluded(self, **config: int) -> Driver:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, **config)
        job.feed(m.ExclusionRequested("a", 0, "bad GPU"))
        return job

    REASON = "a rank on node a asked for its node to be excluded: bad GPU"

    def test_goes_on_with_a_spare(self) -> None:
        job = self.excluded(max_restarts=1)
        stops = of(m.Stop, job.said)
        assert [stop.grace_s for stop in stops] == [GRACE_ON_REQUEST_S] * 2
        job.stop("a", "b")
        assert job.table == "c b"
        assert job.ends == {"a": m.End("a", m.Outcome.EXCLUDED, self.REASON)}
        assert job.policy.restarts_used == 1
        assert job.policy.roster.excluded == {"a": self.REASON}

    def test_is_for_good(self) -> None:
        job = self.excluded(max_restarts=1)
        job.stop("a", "b")
        job.lose("a")
        assert job.join("a") == [m.End("a", m.Outcome.EXCLUDED, self.REASON)]

    def test_without_budget_ends_the_job(self) -> None:
        job = self.excluded()
        job.stop("a", "b")
        assert set(job.outcomes.values()) == {"excluded"}
        assert job.ends["c"].reason == f"{self.REASON}; --max-restarts is 0"

    def test_of_too_many_ends_the_job_without_waiting(self) -> None:
        job = self.excluded(max_restarts=5)
        job.stop("a", "b")
        job.feed(m.ExclusionRequested("b", 1, ""))
        job.stop("b", "c")
        assert job.ends["c"].outcome is m.Outcome.EXCLUDED
        assert job.ends["c"].reason.endswith("2 of 3 nodes are excluded, 2 are needed")

    def test_does_not_end_a_job_that_has_more_spares_than_it_was_promised(self) -> None:
        job = running("a", min_nodes=1, max_restarts=1)
        job.join("b")
        job.feed(m.ExclusionRequested("a", 0, ""))
        job.stop("a")
        assert job.table == "b"

    def test_while_the_spare_is_lost_waits_for_the_spare(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=1)
        job.join("c")
        job.feed(m.ExclusionRequested("a", 0, ""))
        job.lose("c")
        job.stop("a", "b")
        assert job.outcomes == {"a": "excluded"}
        job.join("c")
        assert job.table == "c b"

    def test_nodes_that_were_replaced_long_ago_do_not_count(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=9)
        job.join("c")
        job.feed(m.NodeUnhealthy("a", 0, "no GPU"))
        job.stop("a", "b")
        assert job.table == "c b"
        job.lose("c")
        job.stop("b")
        assert not job.policy.ended, "another one may come, as c did"

    def test_an_unhealthy_node_may_come_back_with_a_new_agent(self) -> None:
        job = running("a", "b", min_nodes=2, max_nodes=3, max_restarts=2)
        job.fail("a")
        assert job.feed(m.NodeUnhealthy("a", 0, "no GPU")) == []
        job.stop("a", "b")
        assert job.outcomes == {"a": "excluded"}
        job.lose("a")
        job.join("a")
        assert job.table == "a b"

    def test_an_unhealthy_spare_is_told_at_once(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3)
        (end,) = job.feed(m.NodeUnhealthy("c", -1, "no GPU"))
        assert end == m.End("c", m.Outcome.EXCLUDED, "node c is unhealthy: no GPU")
        assert job.policy.running


class TestReturning:
    """A node was lost, is back, and its ranks are still being stopped."""

    def returning(self, *spares: str) -> Driver:
        job = running("a", "b", min_nodes=2, max_nodes=3, max_restarts=2)
        job.lose("b")
        job.join(*spares)
        job.feed(m.NodeReturns("b"))
        job.stop("a")
        return job

    def test_keeps_its_place_although_there_is_a_spare(self) -> None:
        job = self.returning("c")
        assert job.policy.state is PolicyState.FORMING
        job.join("b")
        assert job.table == "a b"

    def test_is_waited_for_so_long_and_no_longer(self) -> None:
        job = self.returning("c")
        assert job.timers["return"].delay_s == RETURN_S
        (line,) = job.fire("say")
        assert "b of the last round may be back in a moment (a, c)" in line.text
        job.fire("return")
        assert job.table == "a c"

    def test_or_until_it_is_lost_again(self) -> None:
        job = self.returning("c")
        job.lose("b")
        assert job.table == "a c"

    def test_is_no_candidate_if_it_is_excluded(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=2)
        job.feed(m.ExclusionRequested("b", 0, ""))
        job.lose("b")
        job.feed(m.NodeReturns("b"))
        job.stop("a")
        assert job.table == "a c"

    def test_is_waited_for_when_the_others_are_too_few_since_one_has_left(self) -> None:
        job = running("a", "b", "c", min_nodes=3, max_nodes=4, max_restarts=2)
        job.lose("b")
        job.feed(m.NodeReturns("b"))
        job.stop("a", "c")
        job.signal("a spare")
        assert not job.policy.ended
        job.join("b")
        assert job.table == "a b c"

    def test_that_took_no_part_is_not_waited_for(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=2)
        job.feed(m.NodeReturns("x"))
        job.fail("a")
        job.stop("a", "b")
        assert job.table == "a b"


class TestMinHealthy:
    def three(self, **config: int) -> Driver:
        job = Driver(min_nodes=2, max_nodes=3, min_healthy=True, **config)
        job.join("a", "b", "c")
        assert job.table == "a b c"
        return job

    def test_the_others_go_on(self) -> None:
        job = self.three()
        stop, line = job.fail("a")
        assert isinstance(stop, m.Stop)
        assert stop.node == "a"
        text = "node a: rank 0: exit code 1; 2 of 3 nodes go on"
        assert line == m.Say(text)
        assert job.stop("a") == []
        job.finish("b")
        job.finish("c")
        job.stop("b", "c", all_ok=True)
        assert job.outcomes == {"a": "finished", "b": "finished", "c": "finished"}
        assert job.ends["a"].reason == "every rank exited with 0 on 2 of 3 nodes"
        assert of(m.Blamed, job.said) == []

    def test_a_node_is_healthy_with_all_its_ranks_only(self) -> None:
        job = self.three(max_restarts=1)
        (line,) = job.feed(m.RankLost("a", 0, "rank 0: killed by SIGKILL"))
        assert isinstance(line, m.Say)
        assert "2 of 3 nodes" in line.text
        assert job.policy.running
        assert job.feed(m.RankLost("a", 0, "rank 1: killed by SIGKILL"))[0] == m.Say(
            line.text.replace("rank 0", "rank 1")
        )
        decided, *stops = job.feed(m.RankLost("b", 0, "rank 2: killed by SIGKILL"))
        assert isinstance(decided, m.Decided)
        assert decided.action == "restart"
        assert [stop.node for stop in of(m.Stop, stops)] == ["a", "b", "c"]
        (blamed, *_) = of(m.Blamed, job.stop("a", "b", "c"))
        assert blamed.node == "b"
        assert job.table == "a b c"

    def test_a_node_that_finishes_without_a_rank_has_finished(self) -> None:
        job = self.three()
        job.feed(m.RankLost("a", 0, "rank 0: killed by SIGKILL"))
        for node in "abc":
            job.finish(node)
        job.stop("a", "b", "c", all_ok=True)
        assert set(job.outcomes.values()) == {"finished"}

    def test_until_too_few_are_healthy(self) -> None:
        job = self.three(max_restarts=1)
        job.lose("a")
        assert job.policy.restarts_used == 0
        decided, *stops = job.fail("b")
        assert isinstance(decided, m.Decided)
        assert decided.action == "restart"
        assert [stop.node for stop in of(m.Stop, stops)] == ["b", "c"]
        job.join("a")
        job.stop("b", "c")
        assert job.table == "a b c"

    def test_with_as_many_as_are_there(self) -> None:
        job = self.three(max_restarts=1)
        job.lose("a")
        job.lose("b")
        job.join("b")
        job.stop("c")
        assert job.table == "c b"

    def test_a_node_that_finished_is_healthy(self) -> None:
        job = self.three()
        job.finish("a")
        job.fail("b")
        assert job.policy.running
        job.finish("c")
        assert of(m.Decided, job.said)[-1].reason == "every rank exited with 0 on 2 of 3 nodes"

    def test_an_excluded_node_is_let_go_while_the_others_go_on(self) -> None:
        job = self.three()
        job.feed(m.ExclusionRequested("b", 0, ""))
        (end,) = job.stop("b")
        assert isinstance(end, m.End)
        assert end.outcome is m.Outcome.EXCLUDED
        assert job.policy.running

    def test_a_failed_node_that_is_lost_as_well_changes_nothing(self) -> None:
        job = self.three()
        job.fail("a")
        assert job.lose("a") == []
        assert job.policy.running


class TestElastic:
    def test_takes_in_who_joins_by_a_restart_that_does_not_count(self) -> None:
        job = running("a", "b", min_nodes=2, max_nodes=4, elastic=True)
        job.join("c", "d")
        decided, *stops = job.fire("joined")
        reason = "nodes have joined: the job grows from 2 to 4 nodes"
        assert decided == m.Decided(0, "restart", reason, restarts_left=0)
        assert {stop.agree for stop in of(m.Stop, stops)} == {"restart"}
        nobody_asks = [m.RanksAsked(node, 0, -1, asks=False) for node in ("a", "b")]
        assert {stop.grace_s for stop in of(m.Stop, job.feed(*nobody_asks))} == {GRACE_ON_REQUEST_S}
        job.stop("a", "b")
        assert job.table == "a b c d"
        assert job.policy.restarts_used == 0

    def test_shrinks_when_a_node_is_lost(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, elastic=True, max_restarts=1)
        job.lose("a")
        job.stop("b", "c")
        assert job.table == "c b"

    def test_does_not_grow_beyond_max(self) -> None:
        job = running("a", "b", min_nodes=1, max_nodes=2, elastic=True)
        job.join("c")
        assert job.fire("joined") == [m.Say("spare nodes: c")]

    def test_does_not_disturb_a_round_that_is_about_to_end(self) -> None:
        job = running("a", "b", min_nodes=2, max_nodes=3, elastic=True)
        job.join("c")
        job.finish("a")
        assert job.fire("joined") == [m.Say("spare nodes: c")]

    def test_notices_who_came_while_the_table_was_prepared(self) -> None:
        job = Driver(min_nodes=1, max_nodes=2, elastic=True)
        job.accepts = False
        job.join("a")
        job.fire("last_call")
        job.join("b")
        job.accept()
        assert job.fire("joined")


class TestLeaving:
    def test_one_node_leaves_and_a_spare_takes_its_place(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, term_timeout_s=60)
        decided, *stops = job.signal("a")
        reason = "the launcher on node a received SIGTERM"
        assert decided == m.Decided(0, "restart", reason, restarts_left=0)
        assert [(stop.node, stop.grace_s) for stop in of(m.Stop, stops)] == [("a", 60), ("b", 60)]
        job.stop("a", "b")
        assert job.table == "c b"
        assert job.ends == {"a": m.End("a", m.Outcome.PREEMPTED, reason)}
        assert job.policy.restarts_used == 0

    def test_all_nodes_leave(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=3)
        job.signal("a")
        assert job.signal("b") == []
        job.stop("a", "b")
        assert job.outcomes == {"a": "preempted", "b": "preempted"}

    def test_too_few_stay(self) -> None:
        job = running("a", "b", min_nodes=2, max_restarts=3)
        decided, *_ = job.signal("a")
        assert isinstance(decided, m.Decided)
        assert decided.action == "end"
        job.stop("a", "b")
        assert job.outcomes == {"a": "preempted", "b": "preempted"}

    def test_a_node_that_comes_after_the_end_was_decided_changes_nothing(self) -> None:
        job = running("a", "b", min_nodes=2, max_nodes=3)
        decided, *stops = job.signal("a")
        assert isinstance(decided, m.Decided)
        assert decided.action == "end"
        assert {stop.agree for stop in of(m.Stop, stops)} == {"preempted"}
        job.join("c")
        job.stop("a", "b")
        assert job.policy.round == 0
        assert job.outcomes == {"a": "preempted", "b": "preempted", "c": "preempted"}

    def test_nor_does_it_that_the_node_which_leaves_is_lost_meanwhile(self) -> None:
        job = running("a", "b", min_nodes=2, max_nodes=3)
        job.signal("a")
        job.lose("a")
        job.join("c")
        job.stop("b")
        assert job.policy.round == 0
        reason = "the launcher on node a received SIGTERM"
        assert job.ends["b"].reason.startswith(reason)
        assert job.outcomes == {"b": "preempted", "c": "preempted"}

    def test_a_node_that_comes_after_a_restart_was_decided_takes_part(self) -> None:
        job = running("a", "b", min_nodes=2, max_nodes=3, max_restarts=1)
        job.fail("b")
        job.signal("a")
        job.join("c")
        job.stop("a", "b")
        assert job.outcomes == {"a": "preempted"}
        assert job.table == "c b"

    def test_every_rank_had_done_its_work(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3)
        job.signal("a")
        job.stop("a", "b", all_ok=True)
        assert set(job.outcomes.values()) == {"finished"}

    def test_a_spare_leaves(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3)
        (end,) = job.signal("c")
        assert end == m.End("c", m.Outcome.PREEMPTED, "the launcher on node c received SIGTERM")
        assert job.policy.running

    def test_a_node_leaves_while_others_are_waited_for(self) -> None:
        job = running("a", "b", "c", min_nodes=3, max_restarts=1)
        job.lose("a")
        job.stop("b", "c")
        job.signal("b")
        assert job.outcomes == {"b": "preempted", "c": "preempted"}

    def test_a_spare_that_left_long_ago_is_no_reason_to_give_up(self) -> None:
        job = running("a", "b", "c", min_nodes=2, max_nodes=3, max_restarts=1)
        job.signal("c")
        job.lose("a")
        job.stop("b")
        assert not job.policy.ended

    def test_or_before_the_first_round(self) -> None:
        job = Driver(min_nodes=2)
        job.join("a")
        job.feed(m.Preempted("stranger", 15, "SIGTERM"))
        assert job.outcomes == {"stranger": "preempted"}
        job.join("b")
        assert job.table == "a b"
