"""What the policy makes of advice: it is said, done where that is wanted, and never lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.messages import Iterations
from undaunted.coordinator.policy.verdict import MOST_HISTORY, Advice, Attempt


@dataclass
class Adviser:
    """Adds one letter per round to the history, and always gives the same advice."""

    action: str = "restart"
    nodes: tuple[str, ...] = ()
    problem: str = ""
    seen: list[Attempt] = field(default_factory=list)

    def __call__(self, history: bytes, attempt: Attempt) -> Advice:
        self.seen.append(attempt)
        advised = None
        if attempt.blamed is not None:
            advised = m.Advised(attempt.round, self.action, "because", self.nodes)
        return Advice(advised, history + b"x", self.problem)


def job(adviser: Adviser, *names: str, **config: Any) -> Driver:
    return running(*names, min_nodes=2, max_restarts=5, advise=adviser, **config)


def fail(known: Driver, node: str = "a", **more: Any) -> list[m.Command]:
    """One round fails; return what follows its end."""
    known.fail(node)
    known.stop(*[each for each in known.policy.last.members.seats if each != node])
    return known.stop(node, **more)


def test_what_is_known_of_the_round_is_handed_over() -> None:
    adviser = Adviser()
    known = job(adviser, "a", "b", "c")
    fail(known, "b", verdict="rank 2 failed", finding=b"found", iterations=Iterations(1, 7))
    (attempt,) = adviser.seen
    assert (attempt.round, attempt.nodes, attempt.spare, attempt.iteration) == (0, ("a", "b"), 1, 7)
    assert attempt.blamed is not None
    assert attempt.blamed.node == "b"
    assert attempt.findings == {"b": b"found"}
    assert not attempt.lost


def test_a_node_that_was_lost_is_said_to_be() -> None:
    adviser = Adviser()
    known = job(adviser, "a", "b", "c")
    known.lose("b")
    known.stop("a")
    assert adviser.seen[0].lost


def test_advice_is_said_after_the_round_and_changes_nothing_by_itself() -> None:
    for action in ("restart", "exclude", "stop", "gremlins"):
        said = fail(job(Adviser(action, ("b",)), "a", "b", "c"))
        (advised,) = of(m.Advised, said)
        assert (advised.round, advised.action, advised.done) == (0, action, False)
        assert {start.node for start in of(m.Start, said)} == {"a", "b"}


def test_a_stop_ends_the_job_where_that_is_wanted() -> None:
    known = job(Adviser("stop"), "a", "b", act=True)
    (advised,) = of(m.Advised, fail(known))
    assert advised.done
    assert known.outcomes == {"a": "no_restart", "b": "no_restart"}
    assert known.ends["a"].outcome.exit_code == 93
    assert known.ends["a"].reason == "because"
    assert known.policy.restarts_used == 0
    assert of(m.Decided, known.said)[-1].action == "end"


def test_a_node_is_left_out_where_the_job_can_spare_it() -> None:
    known = job(Adviser("exclude", ("b",)), "a", "b", "c", act=True)
    said = fail(known, "b")
    assert [advised.done for advised in of(m.Advised, said)] == [True]
    assert {start.node for start in of(m.Start, said)} == {"a", "c"}
    assert known.ends["b"].outcome is m.Outcome.EXCLUDED
    (end,) = known.join("b")
    assert isinstance(end, m.End)
    assert end.outcome is m.Outcome.EXCLUDED


def test_a_node_that_cannot_be_spared_stays() -> None:
    known = job(Adviser("exclude", ("b",)), "a", "b", act=True)
    said = fail(known, "b")
    assert [advised.done for advised in of(m.Advised, said)] == [False]
    assert {start.node for start in of(m.Start, said)} == {"a", "b"}
    assert known.policy.roster.excluded == {}


@pytest.mark.parametrize("action", ["restart", "gremlins", ""])
def test_what_is_no_known_action_is_a_restart(action: str) -> None:
    said = fail(job(Adviser(action, ("b",)), "a", "b", "c", act=True))
    assert {start.node for start in of(m.Start, said)} == {"a", "b"}


def test_the_end_that_comes_anyway_stays_as_it_is() -> None:
    """A budget that is used up, and a scheduler that takes a node, go before advice."""
    known = job(Adviser("stop"), "a", "b", act=True)
    known.policy.restarts_used = 5
    (advised,) = of(m.Advised, fail(known))
    assert not advised.done
    assert known.outcomes == {"a": "failed", "b": "failed"}

    known = job(Adviser("stop"), "a", "b", act=True)
    known.fail("a")
    known.signal("b")
    known.stop("a", "b")
    assert known.outcomes == {"a": "preempted", "b": "preempted"}


def test_a_round_that_did_not_fail_is_noted_without_advice() -> None:
    adviser = Adviser("stop")
    known = job(adviser, "a", "b", "c", act=True)
    known.signal("b")
    known.stop("a", "b")
    assert [attempt.blamed for attempt in adviser.seen] == [None]
    assert known.policy.history == b"x"
    assert not of(m.Advised, known.said)
    known.finish("a", "c")
    known.stop("a", "c", all_ok=True)
    assert len(adviser.seen) == 1


def test_without_a_quorum_nothing_is_noted_or_done() -> None:
    adviser = Adviser("stop")
    known = job(adviser, "a", "b", act=True)
    known.feed(m.QuorumLost("nobody answers"))
    known.stop("a", "b")
    assert adviser.seen == []


def test_a_problem_is_said() -> None:
    said = fail(job(Adviser(problem="it is garbled"), "a", "b"))
    assert any("it is garbled" in each.text for each in of(m.Say, said))


def test_a_history_that_is_too_long_is_not_kept() -> None:
    known = job(Adviser(), "a", "b")
    known.policy.history = b"x" * MOST_HISTORY
    fail(known)
    assert known.policy.history == b""
