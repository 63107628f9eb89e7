"""Events and commands of the job policy on the wire, inside of reports and orders."""

from __future__ import annotations

import msgspec
import pytest

from undaunted.coordinator import protocol as p
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.messages import Iterations

EVENTS: list[m.NodeEvent] = [
    m.NodeFailed("b", 3, "rank 1: exit code 1", victim=True),
    m.HangSuspected("b", 3, "heartbeat"),
    m.NodeEvidence("b", 3, b"seen"),
    m.NodeTimes("b", 3, b"times"),
    m.RankLost("b", 3, "rank 1"),
    m.NodeFinished("b", 3, lost=1),
    m.NodeStopped("b", 3, unkillable=(7,), iterations=Iterations(0, 9, ""), misuse=False),
    m.NodeUnhealthy("b", 3, "no GPU"),
    m.ShutdownRequested("b", 3, "done", by="a person"),
    m.ExclusionRequested("b", 3, "bad NIC"),
    m.RestartOrdered("b", 3, "a person", save=True),
    m.ExclusionOrdered("b", 3, "c", "a person"),
    m.LimitsOrdered("b", 3, {"heartbeat": 600.0, "section:step": None}, "a person"),
    m.StopOrdered("b", 3, "a person", save=True),
    m.StopOrdered("b", 3, "a program", few="1 of 2 launchers is left"),
    m.Preempted("b", 15, "SIGTERM"),
]
STARTED = p.Started(version=4, prepared=3, replaceable=True)
STOPPED = p.Stopped(version=5, restarts_used=1, excluded={"c": "asked for"})
ORDERS: list[tuple[m.NodeCommand, p.Started | p.Stopped | None]] = [
    (m.Start("b", 3, 1, 2, 4, 4, 8, 5, "host-a", 7777), STARTED),
    (m.Stop("b", 3, "node a failed", 2.0), STOPPED),
    (m.Decided(3, "restart", "node a failed", 4), None),
    (m.Gather("b", 3), None),
    (m.Blamed(3, "a", "node a: rank 1", ("b",), (1,), "host_lag"), None),
    (m.Slow(3, "b", 4, "rank 4 is slow", False, 0.2, 0.1, ("gc",)), None),
    (m.Say("spare nodes: c"), None),
    (m.NewLimits({"heartbeat": None}, "a person"), None),
    (m.End("b", m.Outcome.PREEMPTED, "SIGTERM"), None),
]
DECODE = msgspec.msgpack.Decoder(p.Message).decode


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_of_a_node_can_be_reported(event: m.NodeEvent) -> None:
    report = p.Report(number=1, event=event)
    assert DECODE(msgspec.msgpack.encode(report)) == report


@pytest.mark.parametrize(
    ("command", "change"), ORDERS, ids=[type(command).__name__ for command, _ in ORDERS]
)
def test_every_command_for_a_node_can_be_ordered(
    command: m.NodeCommand, change: p.Started | p.Stopped | None
) -> None:
    order = p.Order(number=1, epoch=2, command=command, change=change)
    assert DECODE(msgspec.msgpack.encode(order)) == order


def test_how_reports_and_orders_are_written() -> None:
    """Who changes this raises `MAJOR`."""
    report = p.Report(number=1, event=m.NodeFailed("b", 3, "x"))
    assert msgspec.to_builtins(report) == {
        "type": "Report",
        "number": 1,
        "event": {"type": "NodeFailed", "node": "b", "round": 3, "detail": "x"},
    }
    stop = m.Stop("b", 3, "x", 2.0)
    assert msgspec.to_builtins(p.Order(number=1, epoch=2, command=stop, change=STOPPED)) == {
        "type": "Order",
        "number": 1,
        "epoch": 2,
        "command": {"type": "Stop", "node": "b", "round": 3, "reason": "x", "grace_s": 2.0},
        "change": {
            "type": "Stopped",
            "version": 5,
            "restarts_used": 1,
            "excluded": {"c": "asked for"},
        },
    }
    end = p.Order(number=1, epoch=2, command=m.End("b", m.Outcome.NO_RESTART, "x"))
    assert msgspec.to_builtins(end)["command"]["outcome"] == "no_restart"


@pytest.mark.parametrize(
    "message",
    [
        {"type": "Report", "number": 1, "event": {"type": "NodeLost", "node": "b", "reason": ""}},
        {"type": "Report", "number": 1, "event": {"type": "Unheard"}},
        {"type": "Order", "number": 1, "epoch": 1, "command": {"type": "Prepare", "round": 1}},
        {"type": "Order", "number": 1, "epoch": 1, "command": {"type": "Say", "text": 1}},
        {"type": "Order", "number": 1, "epoch": 1, "command": None},
    ],
)
def test_what_is_not_for_the_wire_is_no_message(message: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        DECODE(msgspec.msgpack.encode(message))
