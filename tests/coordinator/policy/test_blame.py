"""Which of many reports is the cause."""

from __future__ import annotations

from undaunted.coordinator.policy.messages import Blamed
from undaunted.coordinator.policy.verdict import Blame, Cause, Ruling


def test_nothing_has_failed() -> None:
    assert Blame().verdict(0) is None


def test_the_first_report_that_is_not_of_a_victim() -> None:
    blame = Blame()
    blame.failed("a", "connection reset", victim=True)
    blame.lost("d", "node d is lost: silence")
    blame.failed("b", "signal 11")
    blame.failed("c", "exit code 1")
    assert blame.verdict(3) == Blamed(3, "b", "node b: signal 11", ("a",))


def test_a_lost_node_before_victims() -> None:
    blame = Blame()
    blame.failed("a", "connection reset", victim=True)
    blame.lost("d", "node d is lost: silence")
    blame.lost("e", "node e is lost: silence")
    line = "node d is lost: silence; so is node e"
    assert blame.verdict(0) == Blamed(0, "d", line, ("a",), lost=True)
    blame.lost("d", "node d is lost: again")
    blame.lost("f", "node f is lost: silence")
    assert blame.first_cause == Cause("d", "node d is lost: silence; so are nodes e, f")


def test_nodes_that_one_network_has_cut_off_are_not_victims_of_each_other() -> None:
    blame = Blame()
    blame.failed("b", "the coordinator is gone", victim=True, cut_off=True)
    blame.lost("d", "node d is lost: silence")
    blame.failed("c", "the coordinator is gone", victim=True, cut_off=True)
    blame.failed("a", "connection reset", victim=True)
    blame.judged("c", "killed by SIGTERM", victim=True)  # its ranks were stopped
    line = "node d is lost: silence; b, c had lost the coordinator as well"
    assert blame.verdict(0) == Blamed(0, "d", line, ("a",), lost=True)


def test_of_victims_the_first() -> None:
    blame = Blame()
    blame.failed("b", "connection reset", victim=True)
    blame.failed("a", "broken pipe", victim=True)
    assert blame.verdict(0) == Blamed(0, "b", "node b: connection reset", ("a",))


def test_ranks_that_left_are_named_where_all_that_failed_are_victims() -> None:
    blame = Blame(left={"b": (2,), "c": (4, 5)})
    blame.failed("b", "connection reset; rank 2 had ended with 0", victim=True)
    told = blame.verdict(0)
    assert told is not None
    assert told.line.endswith("rank 2 had ended with 0; ranks 4-5 of node c had ended with 0")
    assert blame.left_alone() == (2, 4, 5)
    blame.failed("a", "signal 11")
    assert blame.verdict(0) == Blamed(0, "a", "node a: signal 11", ("b",))
    assert blame.left_alone() == ()


def test_what_a_node_finds_out_later_counts() -> None:
    blame = Blame()
    blame.failed("a", "exit code 1")
    blame.failed("a", "said again")
    blame.judged("a", "", victim=True)  # nothing new
    assert blame.first_cause == Cause("a", "exit code 1")
    blame.judged("a", "lost its peer", victim=True)
    blame.judged("b", "rank 9 (node b) raised ValueError", victim=False)
    assert blame.verdict(0) == Blamed(0, "b", "rank 9 (node b) raised ValueError", ("a",))


def test_what_fails_after_healthy_nodes_have_gone_on() -> None:
    blame = Blame()
    blame.lost("f", "node f is lost: silence")
    blame.failed("a", "rank 0 hangs")
    blame.ruled(Ruling("rank 3 (node d) hangs", "d", (3,), "host_lag", ("a", "b", "c"), True))
    hang = blame.verdict(0)
    assert hang is not None
    blame.gone_on(["d"])
    blame.judged("d", "rank 3 (node d) hangs in load", victim=False)
    assert blame.verdict(0) == hang
    blame.failed("a", "connection reset", victim=True)
    assert blame.verdict(0) == hang
    blame.lost("c", "node c is lost: silence")
    assert blame.verdict(0) == Blamed(0, "c", "node c is lost: silence", ("a",), lost=True)
    blame.failed("b", "signal 11")
    assert blame.verdict(0) == Blamed(0, "b", "node b: signal 11", ("a",))


def test_a_leader_that_stood_still_is_not_lost() -> None:
    blame = Blame()
    line = "the agent of node a, or its machine, stood still for 20.0 s; node b is lost: silence"
    blame.lost("a", line, paused=True)
    blame.lost("a", line.replace("node b", "node c"), paused=True)
    assert blame.verdict(0) == Blamed(0, "a", line, paused=True)
    blame.failed("c", "signal 11")
    assert blame.verdict(0) == Blamed(0, "c", "node c: signal 11")


def test_a_cause_names_its_node_once() -> None:
    assert Cause("a", "signal 11").text == "node a: signal 11"
    assert Cause("a", "rank 1 (node a, pid 7) crashed").text == "rank 1 (node a, pid 7) crashed"
    assert Cause("", "no quorum").text == "no quorum"
