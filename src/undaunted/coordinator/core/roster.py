"""Who is known to the job: nodes that are there, those that leave, and those that may not come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator.core.placement import name_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.coordinator.core.messages import NodeInfo

_NAMED = 8


@dataclass(slots=True)
class Roster:
    """Nodes by name.

    Attributes:
        here: nodes that are there, whether they take part, wait or are about to go.
        leaving: why nodes that are there go as soon as nothing runs on them.
        excluded: why nodes may never come back.
        unhealthy: why nodes may come back only with a new agent.
        lost: nodes that were lost and are not back.
        returning: those of them that are expected to join again in a moment.
        seen: every node that has ever been there.
    """

    here: dict[str, NodeInfo] = field(default_factory=dict)
    leaving: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    unhealthy: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    returning: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)

    def join(self, info: NodeInfo) -> None:
        """An agent of the node is there; it has passed its health checks."""
        self.here[info.name] = info
        self.seen.add(info.name)
        self.lost.discard(info.name)
        self.returning.discard(info.name)
        self.unhealthy.pop(info.name, None)

    def go(self, node: str) -> None:
        """The node is not there any more."""
        self.here.pop(node, None)
        self.leaving.pop(node, None)
        self.returning.discard(node)

    def lose(self, node: str, *, returns: bool = False) -> None:
        """Nobody hears of the node any more."""
        known = node in self.here
        self.go(node)
        if known:
            self.lost.add(node)
        if known and returns:
            self.returning.add(node)

    def barred(self, node: str) -> str:
        """Why the node takes part in no round, "" if it may."""
        return self.excluded.get(node) or self.unhealthy.get(node, "")

    @property
    def all_barred(self) -> set[str]:
        """Nodes that take part in no round."""
        return self.excluded.keys() | self.unhealthy.keys()

    @property
    def last_barred(self) -> str:
        """Why the last of them does not."""
        return next(reversed([*self.excluded.values(), *self.unhealthy.values()]), "")

    def candidates(self) -> list[NodeInfo]:
        """Nodes that may take part in the next round."""
        return [
            info
            for name, info in self.here.items()
            if name not in self.leaving and not self.barred(name)
        ]


def name_some(nodes: Iterable[str]) -> str:
    """List node names for a person, the first ones if there are many."""
    names = sorted(nodes, key=name_key)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
