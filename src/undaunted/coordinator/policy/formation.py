"""The next round comes about: nodes that are here, missing ones, and the lines meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.coordinator.policy import placement
from undaunted.coordinator.policy.messages import Command, Place, Prepare, Say, SetTimer
from undaunted.coordinator.policy.placement import name_some

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from undaunted.coordinator.policy.config import PolicyConfig
    from undaunted.coordinator.policy.messages import NodeInfo


@dataclass(slots=True)
class Roster:
    """Nodes by name.

    Attributes:
        here: nodes that are there, whether they take part, wait or are about to go.
        leaving: why nodes that are there go as soon as nothing runs on them.
        excluded: why nodes may never come back.
        unhealthy: why nodes may come back only with a new agent. A node that is one of the two is
            barred: it takes part in no round.
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
        """Return why the node takes part in no round, "" if it may."""
        return self.excluded.get(node) or self.unhealthy.get(node, "")

    @property
    def all_barred(self) -> set[str]:
        """Nodes that take part in no round."""
        return self.excluded.keys() | self.unhealthy.keys()

    @property
    def last_barred(self) -> str:
        """Return why the last of them does not."""
        return next(reversed([*self.excluded.values(), *self.unhealthy.values()]), "")

    def candidates(self) -> list[NodeInfo]:
        """Nodes that may take part in the next round."""
        return [
            info
            for name, info in self.here.items()
            if name not in self.leaving and not self.barred(name)
        ]


# When to say which nodes the job waits for.
SAY_FIRST_S = 10.0
SAY_EVERY_S = 60.0
# Nodes that were lost keep their places for so long where they are expected: they are back and stop
# their ranks, or the leader itself was cut off.
RETURN_S = 10.0


@dataclass(slots=True)
class Formation:
    """Chooses the nodes of the next round.

    Attributes:
        config: the job's.
        roster: who is there.
        chosen: places of the round that is being prepared, by node; empty = none is.
        problem: why no round can be prepared.
    """

    config: PolicyConfig
    roster: Roster = field(default_factory=Roster)
    chosen: dict[str, Place] = field(default_factory=dict)
    problem: str = ""
    _last_call: bool | None = None  # True = running, False = over
    _held: bool = False  # the problem is not who is here
    _awaits_return: bool = False
    _waited_s: float | None = None  # until that was said last; None = nobody waits

    def attempt(self, number: int, seats: Mapping[str, int], *, held: str = "") -> list[Command]:
        """Prepare round ``number`` if enough nodes are there, otherwise wait for more.

        Args:
            number: of the round.
            seats: group ranks of the last round, by node.
            held: why no round may be prepared, "" = it may.
        """
        self.chosen = {}
        self._held = bool(held)
        here, needed = len(self.roster.here), self.config.min_nodes
        self.problem = held or (f"{here} of {needed} nodes are here" if here < needed else "")
        returning = [] if held else self.returning(seats)
        timers: list[Command] = []
        if returning and not self._awaits_return:
            self._awaits_return, timers = True, [SetTimer("return", number, RETURN_S)]
        if not self.problem and self._last_call and self._more_may_come(number):
            return []
        found: placement.Placement | str = self.problem or self.choose(seats)
        if isinstance(found, str):
            self.problem = found
            return [*timers, *self._wait(number)]
        if self._more_may_come(number):
            self._last_call = True
            return [SetTimer("last_call", number, self.config.last_call_s)]
        if returning:
            self.problem = f"{name_some(returning)} of the last round may be back in a moment"
            return [*timers, *self._wait(number)]
        self._last_call, self._awaits_return, self._waited_s = False, False, None
        self.chosen = {place.node: place for place in found.places}
        return [
            Prepare(number, found.places),
            SetTimer("prepare", number, self.config.join_timeout_s),
        ]

    def choose(
        self, seats: Mapping[str, int], without: Collection[str] = ()
    ) -> placement.Placement | str:
        """Place the nodes that may take part, or say why that does not go."""
        known = [info for info in self.roster.candidates() if info.name not in without]
        return placement.choose(known, seats, self.config.rules)

    def last_call_over(self) -> None:
        """The first round waits for no more nodes than it needs."""
        self._last_call = False

    def returning(self, seats: Mapping[str, int]) -> list[str]:
        """Nodes of the last round that were lost and are expected to join again."""
        roster = self.roster
        return [node for node in seats if node in roster.returning and not roster.barred(node)]

    def return_over(self) -> None:
        """Nodes that were lost have had long enough to come back and to stop their ranks."""
        self._awaits_return = False
        self.roster.returning.clear()

    def limit_s(self, number: int) -> float:
        """Return how long round ``number`` may wait for enough nodes."""
        return self.config.join_timeout_s if number else self.config.first_timeout_s

    def say(self, number: int) -> list[Command]:
        """Say what the job waits for, and when that will be said again."""
        first = not self._waited_s
        self._waited_s = (self._waited_s or 0) + (SAY_FIRST_S if first else SAY_EVERY_S)
        again = SetTimer("say", number, SAY_EVERY_S)
        if not self.problem:
            return [again]
        left = format_duration(max(0.0, self.limit_s(number) - self._waited_s))
        return [Say(f"waiting up to {left} more: {self.describe()}"), again]

    def describe(self) -> str:
        """Say what is missing, and who is here."""
        if self._held or not self.roster.here:
            return self.problem
        return f"{self.problem} ({name_some(self.roster.here)})"

    def _more_may_come(self, number: int) -> bool:
        here = len(self.roster.here)
        return number == 0 and self._last_call is not False and here < self.config.most_nodes

    def _wait(self, number: int) -> list[Command]:
        if self._waited_s is not None:
            return []
        self._waited_s = 0.0
        return [
            SetTimer("join", number, self.limit_s(number)),
            SetTimer("say", number, SAY_FIRST_S),
        ]
