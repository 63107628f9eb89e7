"""A limit was passed: all nodes are looked at, then one answer is given for the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.verdict import (
    MOST_EVIDENCE,
    Advice,
    Attempt,
    Case,
    Examination,
    Ruling,
)

ON_B = Ruling("rank 3 (node b) hangs: in load", "b", (3,), "host_lag", ("a",))


class Judge:
    """A rule that keeps what it was asked."""

    def __init__(self, ruling: Ruling = ON_B) -> None:
        self.ruling = ruling
        self.asked: list[Case] = []

    def __call__(self, case: Case) -> Ruling:
        self.asked.append(case)
        return self.ruling


class Job(Driver):
    gone_on = 0  # how often nodes have been told to

    def suspect(self, *names: str) -> list[m.Command]:
        about = {"round": self.policy.round, "gone_on": self.gone_on}
        return self.feed(*[m.HangSuspected(name, **about) for name in names])

    def hang(self, *names: str) -> list[m.Command]:
        """They have judged their own ranks."""
        about = {"round": self.policy.round, "detail": "hangs", "gone_on": self.gone_on}
        return self.feed(*[m.NodeFailed(name, hang=True, **about) for name in names])

    def show(self, *names: str, evidence: bytes = b"seen") -> list[m.Command]:
        return self.feed(*[m.NodeEvidence(name, self.policy.round, evidence) for name in names])


def job(judge: Judge | None, *names: str, **config: Any) -> Job:
    known = running(*names, min_nodes=len(names), max_restarts=3, rule=judge, **config)
    return Job(known.policy)


def test_all_others_are_asked_and_nothing_is_stopped() -> None:
    one = job(Judge(), "a", "b", "c")
    commands = one.suspect("a")
    assert commands == [m.Gather("b", 0), m.Gather("c", 0)]
    assert one.timers["evidence"].delay_s < 2
    assert one.suspect("b") == [], "it looks already"
    assert one.show("a") == []
    assert one.fail("a", "rank 0 hangs", victim=True) == []
    assert one.policy.running


def test_the_round_is_stopped_for_what_was_ruled_once_all_have_answered() -> None:
    judge = Judge()
    one = job(judge, "a", "b")
    one.suspect("a")
    one.show("a", evidence=b"of a")
    one.fail("a", "rank 0 waits", victim=True)
    commands = one.show("b", evidence=b"of b")
    (case,) = judge.asked
    assert case.evidence == {"a": b"of a", "b": b"of b"}
    assert [place.node for place in case.places] == ["a", "b"]
    assert commands[0] == m.Blamed(0, "b", ON_B.line, ("a",), (3,), "host_lag", certain=False)
    (decided,) = of(m.Decided, commands)
    assert decided.reason == ON_B.line
    assert [(stop.node, stop.reason) for stop in of(m.Stop, commands)] == [
        ("a", ON_B.line),
        ("b", ON_B.line),
    ]
    assert of(m.Blamed, one.stop("a", "b", verdict="rank 0 waits", victim=True)) == []
    assert one.policy.last.examination is None


def test_the_end_of_the_job_has_that_reason_too() -> None:
    one = job(Judge(), "a", "b")
    one.policy.restarts_used = 3
    one.suspect("a")
    one.fail("a", "rank 0 waits", victim=True)
    one.show("a", "b")
    one.stop("a", "b", verdict="a crash that followed")
    assert one.ends["a"].reason.startswith(ON_B.line)


def test_whoever_does_not_answer_is_waited_for_until_the_timer() -> None:
    judge = Judge()
    one = job(judge, "a", "b")
    one.suspect("a")
    one.show("a")
    one.fail("a", "rank 0 hangs")
    commands = one.fire("evidence")
    assert of(m.Stop, commands)
    assert judge.asked[0].evidence == {"a": b"seen"}


def test_nodes_that_went_before_are_no_part_of_the_case_unless_they_were_looked_at() -> None:
    judge = Judge()
    about = {"min_nodes": 1, "max_nodes": 4, "min_healthy": True, "rule": judge}
    one = Job(running("a", "b", "c", "d", **about).policy)
    one.fail("d")
    one.suspect("a")
    one.show("a", "b")
    one.fail("b")
    one.hang("a")
    one.lose("c")
    assert [place.node for place in judge.asked[0].places] == ["a", "b"]


def test_a_suspect_that_is_late_is_ruled_about_when_it_reports() -> None:
    judge = Judge()
    one = job(judge, "a", "b")
    one.suspect("a")
    one.show("b")
    assert one.fire("evidence") == []
    one.show("a")
    assert of(m.Blamed, one.fail("a", "rank 0 hangs"))
    assert judge.asked[0].evidence.keys() == {"a", "b"}


def test_one_that_goes_on_after_all_changes_nothing() -> None:
    one = job(Judge(), "a", "b")
    one.suspect("a")
    one.show("a", "b")
    assert one.fire("evidence") == []
    assert one.finish("a") == []
    assert of(m.Decided, one.finish("b"))[0].reason.startswith("every rank")
    assert of(m.Blamed, one.said) == []


def test_the_next_suspicion_is_a_new_examination() -> None:
    one = job(Judge(), "a", "b", "c")
    one.suspect("a")
    one.show("a", "b", "c")
    one.fire("evidence")
    assert one.suspect("b") == [m.Gather("c", 0)]
    assert one.policy.last.examination is not None
    assert one.policy.last.examination.evidence == {}


def test_without_an_answer_it_is_as_if_nobody_had_been_asked() -> None:
    one = job(Judge(Ruling()), "a", "b")
    one.suspect("a")
    one.fail("a", "rank 0 hangs")
    commands = one.show("a", "b")
    assert of(m.Blamed, commands) == []
    assert of(m.Stop, commands)[0].reason == "node a: rank 0 hangs"
    (blamed,) = of(m.Blamed, one.stop("a", "b"))
    assert (blamed.node, blamed.ranks) == ("a", ())


def test_without_a_rule_nobody_is_asked() -> None:
    one = job(None, "a", "b")
    assert one.suspect("a") == []
    assert of(m.Stop, one.fail("a", "rank 0 hangs"))


def test_a_single_node_is_ruled_about_at_once() -> None:
    one = job(Judge(), "b")
    assert one.suspect("b") == []
    assert one.show("b") == []
    commands = one.fail("b", "rank 3 hangs")
    assert of(m.Blamed, commands)
    assert of(m.Stop, commands)[0].reason == ON_B.line


class TestOtherThingsEndTheWait:
    """Only the failure of a suspect is held back."""

    def held(self, judge: Judge | None = None) -> Job:
        one = job(judge or Judge(), "a", "b", "c")
        one.suspect("a")
        one.show("a")
        one.fail("a", "rank 0 hangs")
        assert one.policy.running
        return one

    def test_a_crash(self) -> None:
        assert of(m.Stop, self.held().fail("b"))

    def test_a_loss(self) -> None:
        assert of(m.Stop, self.held().lose("b"))

    def test_the_loss_of_the_suspect(self) -> None:
        assert of(m.Stop, self.held().lose("a"))

    def test_a_preemption(self) -> None:
        assert of(m.Stop, self.held().signal("c"))

    def test_that_there_is_no_quorum(self) -> None:
        one = self.held()
        assert of(m.Stop, one.feed(m.QuorumLost("nobody answers")))
        assert one.policy.last.examination is None

    def test_the_others_finish_which_is_not_the_end_of_the_job(self) -> None:
        one = self.held()
        assert of(m.Decided, one.finish("b")) == []
        (decided,) = of(m.Decided, one.finish("c"))
        assert decided.action == "restart"
        assert of(m.Blamed, one.said)

    def test_a_node_that_stops_has_nothing_to_show(self) -> None:
        judge = Judge()
        one = self.held(judge)
        one.show("b")
        assert of(m.Stop, one.stop("c"))

    def test_when_the_timer_comes_later_nothing_happens(self) -> None:
        one = self.held()
        one.fail("b")
        assert one.fire("evidence") == []


def test_healthy_nodes_go_on_after_the_answer() -> None:
    known = running("a", "b", "c", min_nodes=1, max_nodes=3, min_healthy=True, rule=Judge())
    one = Job(known.policy)
    one.suspect("a")
    one.show("a", "b")
    one.fail("a", "rank 0 hangs")
    commands = one.show("c")
    assert [stop.node for stop in of(m.Stop, commands)] == ["a"]
    assert one.policy.running
    one.suspect("b")
    one.show("b", "c")
    one.fail("b", "rank 2 hangs")
    assert len(of(m.Blamed, one.said)) == 1, "once in a round"


class TestWithMinHealthy:
    """Only the nodes to blame fail; their victims go on."""

    ON_C = Ruling("rank 4 (node c) hangs: in load", "c", (4,), "host_lag", ("a", "b"), certain=True)

    def job(self, ruling: Ruling = ON_C, *, min_nodes: int = 2, **config: Any) -> Job:
        chosen = {"max_nodes": 3, "min_healthy": True, "max_restarts": 3, "rule": Judge(ruling)}
        known = running("a", "b", "c", slots=2, min_nodes=min_nodes, **{**chosen, **config})
        return Job(known.policy)

    def hang(self, one: Job, *names: str) -> list[m.Command]:
        one.suspect(*names)
        one.show("a", "b", "c")
        return one.hang(*names)

    def test_victims_that_have_passed_a_limit_go_on(self) -> None:
        one = self.job()
        self.hang(one, "a", "b", "c")
        assert of(m.Decided, one.said) == []
        assert [stop.node for stop in of(m.Stop, one.said)] == ["c"]
        assert of(m.GoOn, one.said) == [m.GoOn("a", 0), m.GoOn("b", 0)]
        assert one.policy.last.members.healthy == 2
        one.stop("c")
        assert one.policy.running

    def test_a_culprit_within_its_limits_is_stopped_too(self) -> None:
        one = self.job()
        commands = self.hang(one, "b")
        assert [stop.node for stop in of(m.Stop, commands)] == ["c"]
        assert of(m.GoOn, commands) == [m.GoOn("a", 0), m.GoOn("b", 0)], "limits count anew for all"
        assert one.hang("c") == [], "it is being stopped"

    def test_a_limit_that_was_passed_before_a_victim_heard_that_it_goes_on_counts_no_more(
        self,
    ) -> None:
        one = self.job()
        self.hang(one, "c")
        assert one.suspect("a") == []
        assert one.show("a") == []
        assert one.hang("a") == []
        assert one.policy.last.members.healthy == 2

    def test_the_next_hang_of_a_victim_is_looked_at(self) -> None:
        one = self.job()
        self.hang(one, "c")
        one.gone_on = 1
        assert one.suspect("a") == [m.Gather("b", 0)]

    def test_a_crash_of_a_victim_is_a_failure(self) -> None:
        one = self.job()
        self.hang(one, "c")
        assert of(m.Decided, one.fail("a", "rank 0: exit code 1"))[0].action == "restart"

    def test_what_happens_later_is_to_blame_for_the_end_of_the_round(self) -> None:
        attempts: list[Attempt] = []

        def advise(_history: bytes, attempt: Attempt) -> Advice:
            attempts.append(attempt)
            return Advice(None, b"")

        one = self.job(advise=advise, max_restarts=0)
        self.hang(one, "a", "b", "c")
        one.stop("c", verdict="rank 4 (node c) hangs: in load")
        one.fail("b", "rank 2: exit code 1")
        one.stop("a", verdict="rank 0 lost its peer", victim=True)
        one.stop("b", verdict="rank 2 raised ValueError")
        assert [blamed.node for blamed in of(m.Blamed, one.said)] == ["c", "b"]
        assert attempts[0].blamed is not None
        assert (attempts[0].blamed.node, attempts[0].blamed.ranks) == ("b", ())
        assert "rank 2 raised ValueError" in one.ends["a"].reason

    def test_victims_that_fail_later_are_victims_of_that_hang(self) -> None:
        one = self.job()
        self.hang(one, "a", "b", "c")
        one.stop("c")
        one.fail("b", "rank 2 lost its peer", victim=True)
        one.stop("a", "b")
        assert [blamed.node for blamed in of(m.Blamed, one.said)] == ["c"]
        assert one.policy.round == 1

    def test_victims_that_hang_once_more_are_victims_of_that_hang(self) -> None:
        ruling = Ruling("rank 2 (node b) most likely hangs", "b", (2,), "", ("a",))
        judge = Judge(self.ON_C)
        one = self.job(rule=judge)
        self.hang(one, "a", "b", "c")
        judge.ruling, one.gone_on = ruling, 1
        self.hang(one, "a", "b")
        assert m.Say(ruling.line) in one.said, "people see why the round ends"
        one.stop("a", "b", "c")
        assert [blamed.node for blamed in of(m.Blamed, one.said)] == ["c"]

    def test_another_hang_for_which_a_node_is_to_blame_for_sure(self) -> None:
        ruling = Ruling("rank 2 (node b) hangs", "b", (2,), "", ("a",), certain=True)
        judge = Judge(self.ON_C)
        one = self.job(rule=judge)
        self.hang(one, "a", "b", "c")
        judge.ruling, one.gone_on = ruling, 1
        self.hang(one, "a", "b")
        one.stop("a", "b", "c")
        assert [blamed.node for blamed in of(m.Blamed, one.said)] == ["c", "b"]

    def test_a_node_that_is_being_stopped_is_no_witness_of_the_next_hang(self) -> None:
        judge = Judge(self.ON_C)
        one = self.job(rule=judge)
        self.hang(one, "a", "b", "c")
        one.gone_on = 1
        one.suspect("a")
        one.show("c", evidence=b"of the hang before")
        one.show("a", "b")
        one.hang("a")
        assert judge.asked[1].evidence.keys() == {"a", "b"}

    def test_all_are_restarted_if_too_few_are_left(self) -> None:
        one = self.job(min_nodes=3)
        commands = self.hang(one, "a", "b", "c")
        assert {stop.node for stop in of(m.Stop, one.said)} == {"a", "b", "c"}
        assert of(m.GoOn, commands) == []

    def test_whoever_has_passed_a_limit_fails_if_the_answer_is_not_certain(self) -> None:
        for ruling in (replace(self.ON_C, certain=False), Ruling()):
            one = self.job(ruling)
            commands = self.hang(one, "a", "b")
            assert of(m.GoOn, one.said) == []
            assert of(m.Decided, commands)[0].action == "restart"

    def test_both_of_two_that_are_to_blame_are_stopped(self) -> None:
        ruling = replace(self.ON_C, ranks=(4, 2), victims=("a",))
        one = self.job(ruling, min_nodes=1)
        self.hang(one, "a", "b", "c")
        assert {stop.node for stop in of(m.Stop, one.said)} == {"b", "c"}


def test_evidence_that_is_too_long_counts_as_none() -> None:
    one = Examination(("a",))
    one.answered("a", b"x" * (MOST_EVIDENCE + 1))
    assert one.evidence == {"a": b""}


def test_evidence_nobody_has_asked_for_is_dropped() -> None:
    one = job(Judge(), "a", "b")
    assert one.show("a") == []
    assert one.policy.last.examination is None
