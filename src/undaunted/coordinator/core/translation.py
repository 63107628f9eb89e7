"""Events and commands of the job policy as messages on the wire, and back."""

from __future__ import annotations

from undaunted.coordinator import protocol as p
from undaunted.coordinator.core import messages as m
from undaunted.coordinator.core.progress import Iterations

_OUTCOMES = {outcome.label: outcome for outcome in m.Outcome}


def report(event: m.Event) -> p.Report:
    """What a node tells the policy; the follower gives it a number.

    Raises:
        TypeError: no node says that.
    """
    match event:
        case m.NodeFailed():
            return _report("failed", event.round, event.detail, victim=event.victim)
        case m.RankLost():
            return _report("rank_lost", event.round, event.detail)
        case m.NodeFinished():
            return p.Report(number=0, kind="finished", round=event.round, lost=event.lost)
        case m.NodeStopped():
            seen = event.iterations
            return p.Report(
                number=0,
                kind="stopped",
                round=event.round,
                text=event.verdict,
                victim=event.victim,
                all_ok=event.all_ok,
                unkillable=event.unkillable,
                first=seen.first,
                last=seen.last,
                problem=seen.problem,
                misuse=event.misuse,
            )
        case m.NodeUnhealthy():
            return _report("unhealthy", event.round, event.reason)
        case m.ShutdownRequested():
            return _report("shutdown", event.round, event.description)
        case m.ExclusionRequested():
            return _report("exclude", event.round, event.description)
        case m.Preempted():
            return _report("preempted", -1, event.signal_name, signal=event.signal)
    raise TypeError(f"{event} is not for the wire")


def _report(
    kind: str, number: int, text: str = "", *, victim: bool = False, signal: int = 0
) -> p.Report:
    return p.Report(number=0, kind=kind, round=number, text=text, victim=victim, signal=signal)


def event(node: str, report: p.Report) -> m.Event | None:
    """What a node has told; None = of a kind that only a later build has."""
    number, text = report.round, report.text
    match report.kind:
        case "failed":
            return m.NodeFailed(node, number, text, victim=report.victim)
        case "rank_lost":
            return m.RankLost(node, number, text)
        case "finished":
            return m.NodeFinished(node, number, report.lost)
        case "stopped":
            return _stopped(node, report)
        case "unhealthy":
            return m.NodeUnhealthy(node, number, text)
        case "shutdown":
            return m.ShutdownRequested(node, number, text)
        case "exclude":
            return m.ExclusionRequested(node, number, text)
        case "preempted":
            return m.Preempted(node, report.signal, text)
    return None


def _stopped(node: str, report: p.Report) -> m.NodeStopped:
    return m.NodeStopped(
        node,
        report.round,
        all_ok=report.all_ok,
        unkillable=report.unkillable,
        iterations=Iterations(report.first, report.last, report.problem),
        verdict=report.text,
        victim=report.victim,
        misuse=report.misuse,
    )


def order(
    command: m.Start | m.Stop | m.End,
    epoch: int,
    ledger: p.Ledger,
    started: int = 0,
    *,
    replaceable: bool = False,
) -> p.Order:
    """What the policy commands a node, in the name of the leader of ``epoch``.

    ``started`` is the version of the ledger whose table was started.
    """
    match command:
        case m.Start():
            return p.StartOrder(
                number=0,
                epoch=epoch,
                version=ledger.version,
                prepared=started,
                round=command.round,
                casting_vote=ledger.casting_vote,
                seat=command.group_rank,
                max_restarts=command.max_restarts,
                master_addr=command.master_addr,
                master_port=command.master_port,
                replaceable=replaceable,
            )
        case m.Stop():
            return p.StopOrder(
                number=0,
                epoch=epoch,
                version=ledger.version,
                round=command.round,
                reason=command.reason,
                grace_s=command.grace_s,
                restarts_used=ledger.restarts_used,
                excluded=ledger.excluded,
                signal=command.signal,
            )
        case m.End(outcome=outcome, reason=reason):
            return p.EndOrder(number=0, epoch=epoch, outcome=outcome.label, reason=reason)


def note(command: m.Decided | m.Blamed | m.Remark, epoch: int, last_round: int) -> p.Note:
    """What all nodes are to know; ``last_round`` is the one that was started last."""
    match command:
        case m.Decided(round=number, action=action, reason=reason, restarts_left=left):
            return p.Note(
                number=0,
                epoch=epoch,
                kind="decided",
                round=number,
                text=reason,
                action=action,
                restarts_left=left,
            )
        case m.Blamed(round=number, node=node, line=line, victims=victims):
            return p.Note(
                number=0,
                epoch=epoch,
                kind="blamed",
                round=number,
                text=line,
                node=node,
                victims=victims,
            )
        case m.Remark(text=text):
            return p.Note(number=0, epoch=epoch, kind="remark", round=last_round, text=text)


def command(node: str, order: p.Order) -> m.Command | None:
    """What an order asks of ``node``; None = nothing, or of a kind that only a later build has."""
    match order:
        case p.StartOrder():
            return _start(node, order)
        case p.StopOrder():
            return m.Stop(node, order.round, order.reason, order.grace_s, order.signal)
        case p.EndOrder() if order.outcome in _OUTCOMES:
            return m.End(node, _OUTCOMES[order.outcome], order.reason)
        case p.EndOrder():
            return m.End(node, m.Outcome.FAILED, order.reason)
        case p.Note(kind="decided"):
            return m.Decided(order.round, order.action, order.text, order.restarts_left)
        case p.Note(kind="blamed"):
            return m.Blamed(order.round, order.node, order.text, order.victims)
        case p.Note(kind="remark"):
            return m.Remark(order.text)
    return None


def _start(node: str, order: p.StartOrder) -> m.Start:
    table = order.ledger.table
    seat = next(each for each in table if each.node == node)
    return m.Start(
        node=node,
        round=order.ledger.round,
        group_rank=seat.group_rank,
        group_world_size=len(table),
        first_rank=seat.first_rank,
        slots=seat.slots,
        world_size=sum(each.slots for each in table),
        max_restarts=order.max_restarts,
        master_addr=order.master_addr,
        master_port=order.master_port,
        epoch=order.epoch,
    )
