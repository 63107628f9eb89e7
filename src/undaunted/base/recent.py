"""The last events of a state machine, and the commands that it made of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST = 2000  # events
# Bytes of the commands of one event, as text: a leader may send the same to thousands of nodes.
MOST_COMMANDS = 256 * 1024


class Recent:
    """Keeps what went into a state machine and what came out of it.

    Args:
        made: what the machine was made of, so that another one like it can be made.

    Attributes:
        seen: how many events there were in all.
    """

    def __init__(self, made: Mapping[str, Any]) -> None:
        self._made = made
        self._kept: deque[tuple[int, Any, tuple[Any, ...]]] = deque(maxlen=MOST)
        self.seen = 0

    def note(self, now_ns: int, event: object, commands: Iterable[object]) -> None:
        """Keep an event of the moment ``now_ns``, and its commands. None of them may change."""
        self.seen += 1
        self._kept.append((now_ns, event, tuple(commands)))

    def copy(self) -> Recent:
        """Return what is kept now, for another thread to write it down."""
        other = Recent(self._made)
        other.seen, other._kept = self.seen, self._kept.copy()
        return other

    def lines(self, machine: str, most: int) -> list[bytes]:
        """Write it down: JSON, the first line about the machine, then one for each event.

        Args:
            machine: its name.
            most: bytes; the earliest events are left out if there are more.
        """
        found: list[bytes] = []
        for kept in reversed(self._kept):
            line = _line(machine, *kept)
            most -= len(line)
            if most < 0:
                break
            found.append(line)
        head = {"machine": machine, "seen": self.seen, "kept": len(found), "made": self._made}
        return [_json(head), *reversed(found)]


def all_lines(machines: Mapping[str, Recent], most: int) -> bytes:
    """Write several machines down, by name: one JSON list of `Recent.lines`, ``most`` bytes."""
    share = most // len(machines)
    return (
        b"[" + b",".join(line for n, one in machines.items() for line in one.lines(n, share)) + b"]"
    )


def _line(machine: str, now_ns: int, event: object, commands: tuple[object, ...]) -> bytes:
    """Write one event down. Piece by piece: the loop of the process has to run meanwhile."""
    told: list[msgspec.Raw] = []
    size = 0
    for command in commands:
        text = _json(plain(command))
        size += len(text)
        if size > MOST_COMMANDS:
            break
        told.append(msgspec.Raw(text))
    line = {"machine": machine, "t": now_ns, "event": plain(event), "commands": told}
    return _json({**line, "left_out": len(commands) - len(told)})


def plain(message: object) -> dict[str, Any]:
    """Return an event or command as JSON has it, with the name of its class."""
    return {"type": type(message).__name__, **msgspec.to_builtins(message, enc_hook=_name)}


def _json(line: object) -> bytes:
    return msgspec.json.encode(line, enc_hook=_name)


def _name(thing: object) -> str:
    """Functions are part of a configuration."""
    return str(getattr(thing, "__qualname__", type(thing).__name__))
