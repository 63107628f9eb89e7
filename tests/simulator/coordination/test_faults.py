from __future__ import annotations

from simulator.coordination.faults import KINDS, Fault, plan
from simulator.coordination.setup import Setup

SETUP = Setup(6, 2)
EVERY = tuple(KINDS)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(SETUP, 3, EVERY, 20) == plan(SETUP, 3, EVERY, 20)
    assert plan(SETUP, 3, EVERY, 20) != plan(SETUP, 4, EVERY, 20)


def test_only_what_was_asked_for_happens_in_order_of_time() -> None:
    faults = plan(SETUP, 1, ("pause", "reset"), 30)
    assert {fault.kind for fault in faults} == {"pause", "reset"}
    assert [fault.at_ns for fault in faults] == sorted(fault.at_ns for fault in faults)
    assert len(faults) == 30


def test_every_kind_happens_sooner_or_later() -> None:
    assert {fault.kind for seed in range(40) for fault in plan(SETUP, seed, EVERY, 20)} == set(
        KINDS
    )


def test_no_more_nodes_are_lost_for_good_than_there_are_spares() -> None:
    for seed in range(200):
        faults = plan(SETUP, seed, EVERY, 40)
        gone = [
            fault
            for fault in faults
            if fault.kind in {"exclude", "leave"}
            or (fault.kind in {"kill", "power"} and not fault.lasts_ns)
        ]
        assert len(gone) <= SETUP.spares, seed


def test_a_fault_reads_as_a_line() -> None:
    assert str(Fault(0, "power", ("n001",), 2_500_000_000, "n009")) == (
        "power n001 for 2.5 s, then n009"
    )
    assert str(Fault(0, "coordinator")) == "coordinator the leader"
    many = tuple(f"n{number:03}" for number in range(20))
    assert str(Fault(0, "partition", many)).endswith("n006,n007,...")
