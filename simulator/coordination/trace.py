"""A run as text: one line per event, with a legend."""

from __future__ import annotations

from typing import Any

import msgspec

from simulator.coordination.cluster import NodeEvent, RankEnded
from simulator.virtual import messages as s
from undaunted.coordinator import protocol as p
from undaunted.coordinator.policy import messages as m

LEGEND = """\
# seconds  who  what          (events as they are handled; who: node, coordinator or fault)
#   < M        the message M was received      * M  something happened on the node itself
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


_FIRST_LETTERS = {"epoch": "e", "round": "r", "version": "v"}
_TEXTS = {"text", "reason", "detail", "line", "verdict"}
_FLAGS = {"running", "lost", "granted", "final", "victim", "all_ok"}


def _message(message: Any) -> str:
    if not isinstance(message, msgspec.Struct):
        return str(message)
    words = [type(message).__name__]
    for name in message.__struct_fields__:
        value = getattr(message, name)
        match value:
            case 0 if name == "epoch":
                pass
            case int() if name in _FIRST_LETTERS:
                words.append(f"{_FIRST_LETTERS[name]}{value}")
            case int() if name == "number":
                words.append(f"#{value % p.ORDERS_PER_EPOCH}")
            case p.Ledger(run_id=run_id):
                words += [_ledger(value)] if run_id else []
            case msgspec.Struct() if name in {"event", "command"}:
                words.append(_message(value))
            case m.Outcome():
                words.append(value.value)
            case str() if value and name in {"node", "leader", "action"}:
                words.append(value)
            case str() if value and name in _TEXTS:
                words.append(repr(value[:60]))
            case True if name in _FLAGS:
                words.append(name)
    return " ".join(words)


def _ledger(ledger: p.Ledger) -> str:
    pending = f" pending r{ledger.pending_round}" if ledger.pending else ""
    seats = ",".join(seat.node for seat in (ledger.pending or ledger.table)[:8])
    return f"[e{ledger.epoch} v{ledger.version} r{ledger.round}{pending}: {seats}]"
