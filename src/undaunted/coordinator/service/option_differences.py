"""Options that should be the same on all nodes, and are not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.coordinator import protocol as p

_MOST_LINES = 20  # of one launcher: what all others have wrong is one line


class Differences:
    """Differences between one launcher and the others; each is said once.

    Args:
        own: options as they were given to this one, by name; "" = it was left out.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = own
        self._told: set[tuple[str, str]] = set()

    def of_follower(self, hello: p.Hello) -> list[str]:
        """Lines about options of a follower that differ from those of this node, which leads."""
        return [
            f"node {hello.node} was started {theirs}, this one, which coordinates the job, {own}: "
            "that of this node holds; give all launchers the same options"
            for theirs, own in self._new(hello.settings)
        ]

    def of_leader(self, welcome: p.Welcome) -> list[str]:
        """Lines about options of this node that differ from those of its leader."""
        node = f"node {welcome.leader}" if welcome.leader else "the coordinator"
        which = ", which coordinates the job," if welcome.leader else ""
        return [
            f"this node was started {own}, {node}{which} {theirs}: that of {node} holds; give all "
            "launchers the same options"
            for theirs, own in self._new(welcome.settings)
        ]

    def _new(self, others: Mapping[str, str]) -> list[tuple[str, str]]:
        """Options that differ and were not said yet: of the other launcher, of this one."""
        found = []
        for name, own in self._own.items():
            theirs = others.get(name, own)
            known = (name, theirs) in self._told or len(self._told) >= _MOST_LINES
            if theirs != own and not known:
                self._told.add((name, theirs))
                found.append((_with(name, theirs), _with(name, own)))
        return found


def _with(name: str, value: str) -> str:
    return f"with {name} {value}" if value else f"without {name}"
