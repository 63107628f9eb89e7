"""Who hangs, out of what all nodes have seen of their ranks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from undaunted.attribution import hang, ruling
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.coordinator.policy.messages import Place
from undaunted.coordinator.policy.verdict import MOST_EVIDENCE, Case, Ruling
from undaunted.progress.timeouts import Expired

LATE = Expired("heartbeat", "", 0, 1, 12.0, 10.0, "learned")


def waits(rank: int, node: str) -> RankObservation:
    return RankObservation(
        rank, node, 100 + rank, Standing.WAITING, "S", "main (t.py:3)", "all_reduce"
    )


def hangs(rank: int, node: str) -> RankObservation:
    return RankObservation(
        rank, node, 100 + rank, Standing.BUSY, "S", "load (t.py:9)", expired=LATE
    )


def case(evidence: dict[str, bytes], nodes: str = "ab") -> Case:
    places = tuple(Place(node, n, 2 * n, 2) for n, node in enumerate(nodes))
    return Case(3, places, evidence)


def test_the_culprit_of_another_node_and_its_victims() -> None:
    found = ruling.rule(
        case(
            {
                "a": ruling.encode([waits(0, "a"), waits(1, "a")]),
                "b": ruling.encode([waits(2, "b"), hangs(3, "b")]),
            }
        )
    )
    assert (found.node, found.ranks, found.victims) == ("b", (3,), ("a",))
    assert "rank 3 (node b, pid 103) hangs" in found.line
    assert "in load (t.py:9)" in found.line


def test_a_node_that_says_nothing_is_named_where_all_others_wait() -> None:
    of_a = ruling.encode([waits(0, "a"), waits(1, "a")])
    found = ruling.rule(case({"a": of_a, "b": b""}))
    assert (found.node, found.ranks) == ("b", ())
    assert "nothing is known of node b" in found.line
    assert "nothing is known" not in ruling.rule(case({"a": of_a}, "a")).line


@pytest.mark.parametrize("nothing", [b"", b"\xc1"])
def test_who_it_is_is_not_certain_as_long_as_a_node_says_nothing(nothing: bytes) -> None:
    known = {"a": ruling.encode([waits(0, "a"), waits(1, "a")])}
    known["b"] = ruling.encode([waits(2, "b"), hangs(3, "b")])
    assert ruling.rule(case(known)).certain
    found = ruling.rule(case({**known, "c": nothing}, "abc"))
    assert (found.ranks, found.certain) == ((3,), False)
    assert "nothing is known of node c" in found.line


def test_ranks_of_a_node_that_has_finished_are_what_the_others_wait_for() -> None:
    of_a = ruling.encode([waits(0, "a"), waits(1, "a")])
    finished = (Place("b", 1, 2, 2),)
    found = ruling.rule(Case(3, case({}, "a").places, {"a": of_a}, finished))
    assert (found.node, found.ranks, found.victims) == ("b", (2, 3), ("a",))
    assert (found.cause, found.certain) == ("unequal_work", True)
    assert "ranks 2-3 ended with 0; ranks 0-1 wait for them in all_reduce" in found.line
    busy = ruling.encode([waits(0, "a"), hangs(1, "a")])
    found = ruling.rule(Case(3, case({}, "a").places, {"a": busy}, finished))
    assert (found.node, found.ranks) == ("a", (1,))


def test_ranks_that_nobody_reads_are_not_to_blame() -> None:
    prints = replace(hangs(3, "b"), prints="standard output")
    known = {"a": ruling.encode([waits(0, "a"), waits(1, "a")])}
    found = ruling.rule(case({**known, "b": ruling.encode([waits(2, "b"), prints])}))
    assert (found.cause, found.ranks, found.victims) == ("output_unread", (), ())
    assert "nobody reads standard output" in found.line


def test_a_node_speaks_for_its_own_ranks_only() -> None:
    known = {"a": ruling.encode([waits(0, "a"), waits(1, "a"), hangs(3, "a"), hangs(-1, "a")])}
    known["b"] = ruling.encode([waits(2, "b"), waits(3, "b")])
    assert ruling.rule(case(known)).ranks == ()


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x93\x01", ruling.encode([hangs(3, "b")])])
def test_what_is_no_evidence_of_that_node_counts_as_none(garbage: bytes) -> None:
    assert ruling.rule(case({"a": garbage})) == Ruling()


def test_what_is_too_long_is_not_sent() -> None:
    many = [waits(rank, "a") for rank in range(4000)]
    assert ruling.encode(many) == b""
    assert 0 < len(ruling.encode(many[:64])) < MOST_EVIDENCE


def test_an_error_of_ours_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(hang, "judge", broken)
    found = ruling.rule(case({"a": ruling.encode([hangs(0, "a")])}))
    assert found == Ruling(problem="ZeroDivisionError: a bug")
