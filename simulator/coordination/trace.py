"""A run as text: one line per event, with a legend."""

from __future__ import annotations

from typing import Any

import msgspec

from simulator.coordination.ranks import NodeEvent, RankEnded
from simulator.virtual import messages as s
from undaunted.coordinator import protocol as p

LEGEND = """\
# seconds  who  what          (events as they are handled; who: node, coordinator or fault)
#   < M        the message M was received      * M  something happened on the node itself
#   ? M  = M   the question M was asked, the answer M came
#   +C -C      connection C stands, is gone    @ T  the timer T fired
#   . text     a remark of the process         ! a fault, or what an invariant says
# In messages: e = epoch, v = version of the ledger, r = round, # = number of an order or a report.
"""


def line(now: int, name: str, what: Any) -> str:
    """One event or remark as a line without its end."""
    return f"{now / 1e9:12.6f}  {name:<11}  {_text(name, what)}"


def _text(name: str, what: Any) -> str:
    match what:
        case str():
            return f"{'!' if name in {'fault', 'violation'} else '.'} {what}"
        case s.Received(connection=connection, message=message):
            return f"< {_message(message)}  ({connection})"
        case s.TimerFired(name=timer):
            return f"@ {timer}"
        case s.Asked(question=question, message=message):
            return f"? {_message(message)}  ({question})"
        case s.Answered(label=label, message=message):
            answer = "no answer" if message is None else _message(message)
            return f"= {answer}  ({label})"
        case s.Connected(label=label, connection=connection):
            return f"+{connection} {label}"
        case s.Accepted(connection=connection, address=address):
            return f"+{connection} from {address}"
        case s.Closed(connection=connection, reason=reason):
            return f"-{connection} {reason}"
        case s.ConnectFailed(label=label, reason=reason):
            return f"- {label}: {reason}"
        case s.Told(what=told):
            return _told(told)
    return f"* {type(what).__name__}"


def _told(what: Any) -> str:
    match what:
        case RankEnded(round=number, local_rank=rank, code=code):
            victim = ", since a peer is gone" if what.victim else ""
            return f"* r{number}: rank {rank} ends with {code}{victim}"
        case NodeEvent(round=number, event=event):
            return f"* r{number}: {event}"
    return f"* {type(what).__name__}"


def _message(message: Any) -> str:
    if not isinstance(message, msgspec.Struct):
        return str(message)
    words = [type(message).__name__]
    for name in message.__struct_fields__:
        value = getattr(message, name)
        match name, value:
            case "epoch", _:
                words.append(f"e{value}")
            case "round", _:
                words.append(f"r{value}")
            case "version", _:
                words.append(f"v{value}")
            case "number", _:
                words.append(f"#{value % p.ORDERS_PER_EPOCH}")
            case _, p.Ledger(run_id=run_id) if run_id:
                words.append(_ledger(value))
            case "node" | "leader" | "outcome" | "kind", str() if value:
                words.append(value)
            case "text" | "reason", str() if value:
                words.append(repr(value[:60]))
            case "running" | "lost" | "granted" | "final" | "victim" | "all_ok", True:
                words.append(name)
    return " ".join(words)


def _ledger(ledger: p.Ledger) -> str:
    pending = f" pending r{ledger.pending_round}" if ledger.pending else ""
    seats = ",".join(seat.node for seat in (ledger.pending or ledger.table)[:8])
    return f"[e{ledger.epoch} v{ledger.version} r{ledger.round}{pending}: {seats}]"
