"""Times of ranks go to a function that the shell hands in; what it says goes to all nodes.

Only where the user has chosen so, something is done about ranks that are slow for long.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.policy.driving import Driver, of, running
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.round import MOST_EXCLUDED
from undaunted.coordinator.policy.verdict import Ruling

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW = m.Slow(0, "b", 3, "rank 3 is slow")


class Compares:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, tuple[m.Place, ...]]] = []
        self.told: list[tuple[str, bytes]] = []

    def of_round(self, number: int, places: tuple[m.Place, ...]) -> Callable[..., list[m.Slow]]:
        self.rounds.append((number, places))
        return self.take

    def take(self, node: str, times: bytes) -> list[m.Slow]:
        self.told.append((node, times))
        return [SLOW] if times == b"slow" else []


def job(compares: Compares | None) -> Driver:
    pace = None if compares is None else compares.of_round
    return Driver(running("a", "b", min_nodes=2, max_restarts=3, pace=pace).policy)


def test_what_is_found_is_told_to_all() -> None:
    compares = Compares()
    one = job(compares)
    assert one.feed(m.NodeTimes("a", 0, b"1")) == []
    assert one.feed(m.NodeTimes("b", 0, b"slow")) == [SLOW]
    ((number, places),) = compares.rounds
    assert number == 0
    assert [place.node for place in places] == ["a", "b"]
    assert compares.told == [("a", b"1"), ("b", b"slow")]
    assert one.policy.running, "nothing is stopped for it"


def test_each_round_is_compared_anew() -> None:
    compares = Compares()
    one = job(compares)
    one.feed(m.NodeTimes("a", 0, b"1"))
    one.feed(m.NodeFailed("a", 0, "rank 0"))
    assert one.feed(m.NodeTimes("b", 0, b"slow")) == [], "it is being stopped"
    one.feed(m.NodeStopped("a", 0), m.NodeStopped("b", 0))
    assert one.feed(m.NodeTimes("b", 0, b"slow")) == [], "of a round that is over"
    one.feed(m.NodeTimes("a", 1, b"2"))
    assert [number for number, _ in compares.rounds] == [0, 1]


def test_strangers_and_jobs_that_compare_nothing() -> None:
    compares = Compares()
    assert job(compares).feed(m.NodeTimes("c", 0, b"slow")) == []
    assert compares.told == []
    assert job(None).feed(m.NodeTimes("a", 0, b"slow")) == []


# --- what is done about it --------------------------------------------------------------------


def of_round(number: int, places: tuple[m.Place, ...]) -> Callable[..., list[m.Slow]]:
    """Nodes say how much of the time their first rank costs; 0 = as fast as others again."""
    first = {place.node: place.first_rank for place in places}
    known: dict[str, bool] = {}

    def told(node: str, times: bytes) -> list[m.Slow]:
        if not times:
            return []
        lost = float(times)
        line = "it is slow" if bool(lost) != known.get(node, False) else ""
        known[node] = bool(lost)
        return [m.Slow(number, node, first[node], line, not lost, lost, lost)]

    return told


def acting(*names: str, do: str = "exclude", **config: Any) -> Driver:
    config = {"min_nodes": 3, "pace": of_round, "slow_ranks": do, **config}
    return running(*names, slow_ranks_after_s=60.0, **config)


def tell(one: Driver, node: str, times: bytes = b"") -> list[m.Command]:
    return one.feed(m.NodeTimes(node, one.policy.round, times))


def slow_for_long(one: Driver, node: str, lost: bytes = b"0.2") -> list[m.Command]:
    tell(one, node, lost)
    assert one.timers["slow"].delay_s == 60.0
    assert one.fire("slow") == []
    assert tell(one, node) == [], "it may save a checkpoint, or hang"
    return tell(one, node, lost)


def stops(one: Driver, commands: list[m.Command]) -> None:
    """All nodes are told so, gently, and have stopped."""
    nodes = {stop.node for stop in of(m.Stop, commands)}
    assert nodes == set(one.table.split())
    if one.policy.last.stopping is not None:
        nobody_asks = [m.RanksAsked(node, one.policy.round, -1, asks=False) for node in nodes]
        commands = one.feed(*nobody_asks)
    assert {stop.grace_s for stop in of(m.Stop, commands)} == {15.0}
    one.stop(*sorted(nodes))


def test_a_spare_takes_the_place_of_a_slow_node() -> None:
    one = acting("a", "b", "c", "d")
    commands = slow_for_long(one, "b")
    (decided,) = of(m.Decided, commands)
    assert (decided.action, decided.restarts_left) == ("restart", 0), "it uses no restart"
    assert "node b" in decided.reason
    stops(one, commands)
    assert one.policy.running
    assert one.table == "a d c"
    assert one.outcomes == {"b": "excluded"}
    assert of(m.Blamed, one.said) == [], "nothing has failed"


def test_an_elastic_job_goes_on_with_fewer_nodes() -> None:
    one = acting("a", "b", "c", min_nodes=2, max_nodes=3, elastic=True)
    stops(one, slow_for_long(one, "b", b"0.4"))
    assert one.policy.running
    assert one.table == "a c"


def test_an_elastic_job_does_not_give_more_than_it_gets() -> None:
    """A third of the ranks would be missing, for a fifth of the time."""
    one = acting("a", "b", "c", min_nodes=2, max_nodes=3, elastic=True)
    (said,) = slow_for_long(one, "b")
    assert isinstance(said, m.Say)
    one.join("d")
    assert one.policy.running
    assert one.policy.roster.excluded == {}


def test_a_job_that_needs_the_node_goes_on_with_it() -> None:
    one = acting("a", "b", "c")
    (said,) = slow_for_long(one, "b")
    assert isinstance(said, m.Say)
    assert tell(one, "b", b"0.2") == [], "said once"
    assert one.policy.running
    assert one.policy.roster.excluded == {}
    one.join("d")
    stops(one, tell(one, "b", b"0.2"))
    assert one.table == "a d c", "a spare one has come"


@pytest.mark.parametrize("elastic", [{}, {"min_nodes": 2, "max_nodes": 3, "elastic": True}])
def test_a_node_is_kept_if_its_spare_has_gone_by_now(elastic: dict[str, Any]) -> None:
    one = acting("a", "b", "c", "d", **elastic)
    slow_for_long(one, "b")
    one.lose("d")
    one.stop("a", "b", "c")
    assert one.policy.running
    assert one.table == "a b c"
    assert one.policy.roster.excluded == {}


def test_stop_ends_the_job_gently() -> None:
    one = acting("a", "b", "c", do="stop")
    stops(one, slow_for_long(one, "b"))
    assert one.outcomes == dict.fromkeys("abc", "no_restart")


@pytest.mark.parametrize("times", [b"0.09", b"0"])
def test_what_costs_little_or_is_over_ends_nothing(times: bytes) -> None:
    one = acting("a", "b", "c", "d")
    tell(one, "b", times)
    assert "slow" not in one.timers
    tell(one, "b", b"0.2")
    tell(one, "b", times)
    assert one.fire("slow") == []
    assert tell(one, "b") == []
    assert one.policy.running


def test_the_time_begins_anew_when_another_rank_becomes_slow() -> None:
    one = acting("a", "b", "c", "d")
    tell(one, "b", b"0.2")
    one.timers.pop("slow")
    tell(one, "c", b"0.3")
    assert "slow" in one.timers


def test_slow_ranks_on_several_nodes_are_not_the_fault_of_one() -> None:
    one = acting("a", "b", "c", "d")
    tell(one, "b", b"0.2")
    tell(one, "c", b"0.3")
    one.fire("slow")
    assert tell(one, "b") == tell(one, "c") == []


def test_nothing_is_done_while_the_rank_does_not_step() -> None:
    one = acting("a", "b", "c", "d")
    tell(one, "b", b"0.2")
    one.fire("slow")
    assert tell(one, "a") == tell(one, "b") == [], "it may save a checkpoint, or hang"
    assert of(m.Stop, tell(one, "b", b"0.2"))


def test_what_it_costs_now_counts() -> None:
    one = acting("a", "b", "c", "d")
    tell(one, "b", b"0.09")
    assert "slow" not in one.timers
    tell(one, "b", b"0.2")
    one.fire("slow")
    assert tell(one, "b", b"0.09") == []
    tell(one, "b", b"0.2")
    assert "slow" in one.timers, "it begins anew"
    assert one.policy.running


def test_a_rank_that_was_slow_elsewhere_is_known_to_the_next_leader() -> None:
    one = acting("a", "b", "c", "d", "e")
    stops(one, slow_for_long(one, "b"))
    assert one.policy.slow_before == (2,)
    other = acting("a", "d", "c", "e")
    other.policy.slow_before = one.policy.slow_before
    other.policy.roster.excluded.clear()
    (said,) = slow_for_long(other, other.table.split()[1])
    assert isinstance(said, m.Say)


def test_who_hangs_comes_before_who_is_slow() -> None:
    one = acting("a", "b", "c", "d", rule=lambda _: Ruling())
    tell(one, "b", b"0.2")
    one.fire("slow")
    one.feed(m.HangSuspected("a", 0))
    assert tell(one, "b") == []


def test_a_rank_that_is_slow_on_every_node_costs_one_node() -> None:
    """Rank 2 writes logs, for example."""
    one = acting("a", "b", "c", "d", "e")
    stops(one, slow_for_long(one, "b"))
    assert one.table == "a d c"
    (said,) = slow_for_long(one, "d")
    assert isinstance(said, m.Say)
    assert list(one.policy.roster.excluded) == ["b"]


def test_few_nodes_of_a_job_are_left_out() -> None:
    names = [f"n{number}" for number in range(10)]
    one = acting(*names, min_nodes=5)
    for node in names[:MOST_EXCLUDED]:
        stops(one, slow_for_long(one, node))
    (said,) = slow_for_long(one, names[MOST_EXCLUDED])
    assert isinstance(said, m.Say)
    assert list(one.policy.roster.excluded) == names[:MOST_EXCLUDED]


def test_nothing_is_done_unless_it_was_chosen() -> None:
    one = acting("a", "b", "c", "d", do="log")
    assert len(tell(one, "b", b"0.2")) == 1
    assert "slow" not in one.timers


def test_whoever_is_slow_a_job_goes_on_with_enough_nodes() -> None:
    left_out = 0
    for seed in range(200):
        rng = Random(seed)
        few, names = rng.randint(2, 4), [f"n{number}" for number in range(rng.randint(4, 9))]
        elastic = {"elastic": True, "max_nodes": len(names)} if rng.random() < 0.5 else {}
        one = acting(*names, min_nodes=few, **elastic)
        for _ in range(40):
            before = set(one.policy.roster.excluded)
            node = rng.choice(one.table.split())
            commands = tell(one, node, rng.choice([b"", b"", b"0", b"0.05", b"0.2", b"0.5"]))
            if "slow" in one.timers and rng.random() < 0.3:
                one.fire("slow")
            if of(m.Stop, commands):
                stops(one, commands)
                assert before < set(one.policy.roster.excluded), "no round ends for nothing"
            assert one.policy.running
            assert len(one.table.split()) >= few
            assert len(one.policy.roster.excluded.keys() - before) <= 1
        left_out += len(one.policy.roster.excluded)
        assert len(one.policy.roster.excluded) <= MOST_EXCLUDED
    assert left_out > 20, "or nothing was tried"
