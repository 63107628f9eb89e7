"""Options that should be the same on all nodes, and are not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.coordinator import protocol as p

_MOST_LINES = 20  # of one launcher: what all others have wrong is one line


class Differences:
    """Differences between one launcher and the others; each makes one line.

    If a coordinator alone leads, launchers may leave out its options.

    Args:
        own: options as they were given to this one, by name; "" = it was left out.
        alone: this is no launcher, but a coordinator alone.
    """

    def __init__(self, own: Mapping[str, str], *, alone: bool = False) -> None:
        self._own, self._alone = own, alone
        self._told: set[tuple[str, str]] = set()

    def of_follower(self, hello: p.Hello) -> list[str]:
        """Lines about options of a follower that differ from those of this one, which leads."""
        which = "this coordinator" if self._alone else "this one, which coordinates the job,"
        remedy = _remedy("" if self._alone else "this node")
        given = {name: text for name, text in hello.settings.items() if text or not self._alone}
        return [
            f"node {hello.node} was started {theirs}, {which} {own}: {remedy}"
            for theirs, own in self._new(given)
        ]

    def of_leader(self, welcome: p.Welcome) -> list[str]:
        """Lines about options of this node that differ from those of its leader."""
        node, given = f"node {welcome.leader}" if welcome.leader else "", welcome.settings
        which = f"{node}, which coordinates the job," if node else "the coordinator"
        if not node:
            given = {name: text for name, text in given.items() if self._own.get(name)}
        return [
            f"this node was started {own}, {which} {theirs}: {_remedy(node)}"
            for theirs, own in self._new(given)
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


def _remedy(node: str) -> str:
    """The value that holds: that of a node which leads, "" = of a coordinator alone."""
    if not node:
        return "that of the coordinator holds; give it the options for the whole job"
    return f"that of {node} holds; give all launchers the same options"
