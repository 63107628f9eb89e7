"""What brought a round to its end, out of what the nodes report.

The first report that is not of a victim is the first cause. Where all who failed are victims, as
far as they can tell, a node that is lost is the cause; otherwise the first victim has to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from undaunted.coordinator.core.formation import name_some
from undaunted.coordinator.core.messages import Blamed


@dataclass(frozen=True, slots=True)
class Cause:
    """What happened, and on which node; "" = on no node in particular."""

    node: str
    line: str

    @property
    def text(self) -> str:
        """The line, with the node."""
        named = not self.node or f"node {self.node}" in self.line
        return self.line if named else f"node {self.node}: {self.line}"


@dataclass(frozen=True, slots=True)
class _Report:
    cause: Cause
    victim: bool


@dataclass(slots=True)
class Blame:
    """Collects the reports about one round."""

    _reports: dict[str, _Report] = field(default_factory=dict)  # by node, first report first
    _lost: list[Cause] = field(default_factory=list)

    def failed(self, node: str, line: str, *, victim: bool = False) -> None:
        """A node reports a failure; later ones about itself change nothing."""
        self._reports.setdefault(node, _Report(Cause(node, line), victim))

    def judged(self, node: str, verdict: str, *, victim: bool) -> None:
        """A node has found out what its failure was; "" = it has not."""
        if verdict:
            self._reports[node] = _Report(Cause(node, verdict), victim)

    def lost(self, node: str, line: str) -> None:
        """A node, or with "" several, cannot be reached."""
        self._lost.append(Cause(node, line))

    @property
    def first_cause(self) -> Cause | None:
        """None = nothing has failed."""
        culprits = [report.cause for report in self._reports.values() if not report.victim]
        victims = [report.cause for report in self._reports.values() if report.victim]
        losses = [_together(self._lost)] if self._lost else []
        return next(iter([*culprits, *losses, *victims]), None)

    def verdict(self, round_number: int) -> Blamed | None:
        """The first cause and its victims, for all nodes; None = nothing has failed."""
        cause = self.first_cause
        if cause is None:
            return None
        victims = [node for node, report in self._reports.items() if report.victim]
        others = tuple(node for node in victims if node != cause.node)
        return Blamed(round_number, cause.node, cause.text, others)


def _together(lost: list[Cause]) -> Cause:
    """The first of them, with the names of the others."""
    first = lost[0]
    others = {each.node for each in lost} - {first.node, ""}
    if not first.node or not others:
        return first
    are = "are nodes" if len(others) > 1 else "is node"
    return Cause(first.node, f"{first.line}; so {are} {name_some(others)}")
