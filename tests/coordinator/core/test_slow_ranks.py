"""Times of ranks go to a function that the shell hands in; what it says goes to all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.coordinator.core.driving import Driver, running
from undaunted.coordinator.core import messages as m

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
