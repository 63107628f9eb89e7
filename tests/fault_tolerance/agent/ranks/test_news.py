"""What ranks put into their pages reaches the journal and the node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from undaunted.fault_tolerance.agent.ranks.news import News
from undaunted.progress.snapshot import Phase


class Told:
    """Scribe, rounds and node in one."""

    def __init__(self) -> None:
        self.errors: list[tuple[int, str]] = []
        self.fired: list[str] = []
        self.ring: list[tuple[int, int]] = []

    def errored(self, local_rank: int, detail: str) -> None:
        self.errors.append((local_rank, detail))

    def milestones(self, current: Any, local_rank: int, page: Any) -> None:
        pass

    def fault_fired(self, fault: str) -> None:
        self.fired.append(fault)

    def ring_events(self, rank: int, events: list[Any], lost: int) -> None:
        self.ring.append((rank, lost))


CURRENT: Any = SimpleNamespace(rank=lambda local_rank: 4 + local_rank, faults={}, announced=False)


def news(told: Told) -> News:
    return News(cast("Any", told), cast("Any", told), told.errored)


@pytest.mark.parametrize(
    ("kind", "message", "said"),
    [
        ("ValueError", "x", "raised ValueError"),
        ("SystemExit", "3", "exits with 3"),
        ("SystemExit", "", "exits with 1"),
        ("SystemExit", "no config given", "raised SystemExit"),
    ],
)
def test_an_exception_is_told_to_the_node(kind: str, message: str, said: str) -> None:
    told = Told()
    error = SimpleNamespace(type=kind, message=message)
    page: Any = SimpleNamespace(phase=Phase.FAILED, error=error)
    news(told).page(CURRENT, 1, page)
    assert told.errors == [(1, said)]


def test_a_rank_that_goes_on_is_no_event() -> None:
    told = Told()
    page: Any = SimpleNamespace(phase=Phase.STEPPING, error=None)
    news(told).page(CURRENT, 1, page)
    assert told.errors == []


def test_a_fault_that_happened_is_not_repeated() -> None:
    told = Told()
    ring: Any = [SimpleNamespace(name="fault", text="f1"), SimpleNamespace(name="x", text="y")]
    news(told).ring(CURRENT, 1, ring, 2)
    assert (told.fired, told.ring, CURRENT.faults) == (["f1"], [(5, 2)], {1: "f1"})


def test_a_checkpoint_that_is_announced_is_known_of_the_round() -> None:
    current: Any = SimpleNamespace(rank=lambda local_rank: local_rank, faults={}, announced=False)
    for name, announced in (("other", False), ("checkpoint", True), ("other", True)):
        events: Any = [SimpleNamespace(name=name, text="saved step=3")]
        news(Told()).ring(current, 0, events, 0)
        assert current.announced is announced
