"""The last events of a state machine, and the commands that it made of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST = 2000  # events


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

    def lines(self, machine: str) -> Iterator[bytes]:
        """Write all of it down: JSON, the first line about the machine, then one for each event."""
        head = {"machine": machine, "seen": self.seen, "kept": len(self._kept)}
        yield _json({**head, "made": self._made})
        for now_ns, event, commands in self._kept:
            told = [plain(command) for command in commands]
            yield _json({"machine": machine, "t": now_ns, "event": plain(event), "commands": told})


def plain(message: object) -> dict[str, Any]:
    """Return an event or command as JSON has it, with the name of its class."""
    return {"type": type(message).__name__, **msgspec.to_builtins(message, enc_hook=_name)}


def _json(line: object) -> bytes:
    return msgspec.json.encode(line, enc_hook=_name)


def _name(thing: object) -> str:
    """Functions are part of a configuration."""
    return str(getattr(thing, "__qualname__", type(thing).__name__))
