"""The verdict on a round that goes wrong: who is to blame, and what is best done next. Pure.

**Examination**: a limit was passed on a node, so all nodes are looked at before anything is
stopped. What they have seen is opaque here; a function that the shell hands in makes a `Ruling` of
it.

**Blame**: what brought the round to its end, out of what the nodes report. What was ruled after all
nodes had been looked at comes before all that they say of themselves. The first report that is not
of a victim is the first cause. Where all who failed are victims, as far as they can tell, a node
that is lost is the cause; otherwise the first victim has to do. Healthy nodes may go on after a
ruling. What fails after that is the cause of the end; but if only victims do, they are victims of
the hang that was ruled about.

**Advice**: what is best done next, by all rounds that failed. The job's history is opaque here: the
policy keeps it, its leader writes it down, and a function that the shell hands in reads it and adds
each round to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.base.text import name_ranks
from undaunted.coordinator.policy.messages import Blamed
from undaunted.coordinator.policy.placement import name_some

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from undaunted.coordinator.policy.messages import Advised, Place

# Longer evidence counts as none.
MOST_EVIDENCE = 64 * 1024
# How long evidence of all nodes is waited for: a node takes 1.6 s at most.
EVIDENCE_S = 1.8


@dataclass(frozen=True, slots=True)
class Case:
    """The knowledge of a round in which a limit was passed.

    Attributes:
        round: its number.
        places: which ranks are where, of nodes that work or have been looked at.
        evidence: what each node has seen of its ranks; b"" = nothing.
        finished: which ranks were on nodes where all have ended with 0.
    """

    round: int
    places: tuple[Place, ...]
    evidence: Mapping[str, bytes]
    finished: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Ruling:
    """The ranks and nodes that are to blame.

    Attributes:
        line: all of it, for people; "" = no answer.
        node: where it happened; "" = on no node in particular.
        ranks: to blame.
        cause: its name in `attribution.findings`, "" = none of these.
        victims: nodes whose ranks only wait.
        certain: whether ``ranks`` are to blame for sure, not just most likely.
        problem: why there is no answer, if something is wrong with the function.
    """

    line: str = ""
    node: str = ""
    ranks: tuple[int, ...] = ()
    cause: str = ""
    victims: tuple[str, ...] = ()
    certain: bool = False
    problem: str = ""


# Pure, bounded, and does not raise.
Rule = Callable[[Case], Ruling]


@dataclass(slots=True)
class Examination:
    """Collects what nodes have seen, until all that were asked have answered.

    Attributes:
        asked: nodes that worked when it began.
        suspects: nodes that have passed a limit, the first one first.
        evidence: see `Case`.
        failed: suspects that have reported their failure, the first one first.
        over: the time is up.
    """

    asked: Collection[str]
    suspects: dict[str, None] = field(default_factory=dict)
    evidence: dict[str, bytes] = field(default_factory=dict)
    failed: dict[str, None] = field(default_factory=dict)
    over: bool = False

    def answered(self, node: str, evidence: bytes) -> None:
        """A node has been looked at."""
        self.evidence[node] = evidence if len(evidence) <= MOST_EVIDENCE else b""

    def complete(self, working: Collection[str]) -> bool:
        """Return whether a suspect has failed, and nobody is waited for any more."""
        waited_for = (node for node in self.asked if node not in self.evidence)
        return bool(self.failed) and (self.over or not any(node in working for node in waited_for))


# --- blame ----------------------------------------------------------------------------------------

_MOST_LEFT = 4  # nodes that are named
_MOST_RANKS = 64


@dataclass(frozen=True, slots=True)
class Cause:
    """The event, and its node; "" = no node in particular.

    ``victim``: as far as that node can tell, only because of another one. ``cut_off``: it has lost
    the leader. ``paused``: the leader on that node stood still, and others were lost.
    """

    node: str
    line: str
    victim: bool = field(default=False, compare=False)
    cut_off: bool = field(default=False, compare=False)
    paused: bool = field(default=False, compare=False)

    @property
    def text(self) -> str:
        """The line, with the node."""
        named = not self.node or f"node {self.node}" in self.line
        return self.line if named else f"node {self.node}: {self.line}"


@dataclass(slots=True)
class Blame:
    """Collects the reports about one round.

    Attributes:
        findings: what nodes have found out about their failures, as in `NodeStopped`.
        reports: words of nodes about their own failures, the first one first.
        left: ranks of each node that have ended with 0.
    """

    findings: dict[str, bytes] = field(default_factory=dict)
    reports: dict[str, Cause] = field(default_factory=dict)
    left: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _lost: list[Cause] = field(default_factory=list)
    _ruling: Ruling | None = None
    _gone_on: bool = False  # after the ruling
    _without: set[str] = field(default_factory=set)  # nodes that have failed before that
    _lost_before: int = 0  # of ``_lost``
    _told: Blamed | None = None

    def ruled(self, ruling: Ruling) -> None:
        """All nodes were looked at.

        The first answer of a round holds: if nodes that have gone on hang again, it may be for the
        same reason, unless another node is to blame for sure.
        """
        another, self._gone_on = self._gone_on and ruling.certain, False
        if ruling.line and (self._ruling is None or another):
            self._ruling = ruling

    def gone_on(self, without: Iterable[str]) -> None:
        """Healthy nodes go on after the ruling, which explains all that was reported before."""
        self._gone_on = True
        self.reports.clear()
        self._without.update(without)
        self._lost_before = len(self._lost)

    def failed(self, node: str, line: str, *, victim: bool = False, cut_off: bool = False) -> None:
        """A node reports a failure; later ones about itself change nothing."""
        if node not in self._without:
            self.reports.setdefault(node, Cause(node, line, victim, cut_off))

    def judged(self, node: str, verdict: str, *, victim: bool, finding: bytes = b"") -> None:
        """A node has found out what its failure was; "" = it has not."""
        if verdict:
            self.findings[node] = finding
            if node not in self._without:
                known = self.reports.get(node)
                cut_off = victim and known is not None and known.cut_off
                self.reports[node] = Cause(node, verdict, victim, cut_off)

    def lost(self, node: str, line: str, *, paused: bool = False) -> None:
        """A node, or with "" several, cannot be reached; or it is ``paused``, and others cannot."""
        self._lost.append(Cause(node, line, paused=paused))

    @property
    def losses(self) -> dict[str, str]:
        """Nodes that cannot be reached, or stood still, and why."""
        return {cause.node: cause.line for cause in self._lost}

    @property
    def first_cause(self) -> Cause | None:
        """None = nothing has failed."""
        if self._ruling is not None and not self._gone_on:
            return self._ruled
        culprits = [cause for cause in self.reports.values() if not cause.victim]
        lost = self._lost[self._lost_before :]
        losses = [_together(lost)] if lost else []
        ruled = [] if self._ruled is None else [self._ruled]
        return next(iter([*culprits, *losses, *ruled, *self.reports.values()]), None)

    @property
    def _ruled(self) -> Cause | None:
        return None if self._ruling is None else Cause(self._ruling.node, self._ruling.line)

    def verdict(self, round_number: int) -> Blamed | None:
        """The first cause and its victims, for all nodes; None = nothing has failed."""
        cause = self.first_cause
        if cause is None:
            return None
        if (ruling := self._ruling) is not None and cause == self._ruled:
            about = (ruling.victims, ruling.ranks, ruling.cause, ruling.certain)
            return Blamed(round_number, cause.node, cause.text, *about)
        failed = [each for each in self.reports.values() if each.node != cause.node]
        others = tuple(each.node for each in failed if each.victim and not each.cut_off)
        text = cause.text
        # One network has cut them off: none of them is a victim of another one.
        if alike := [each.node for each in failed if each.cut_off and each.node not in self.losses]:
            text += f"; {name_some(alike)} had lost the coordinator as well"
        if cause.victim:  # its own node has said so of its own ranks
            elsewhere = {node: ranks for node, ranks in self.left.items() if node != cause.node}
            text += "".join(
                f"; {name_ranks(ranks)} of node {node} had ended with 0"
                for node, ranks in sorted(elsewhere.items())[:_MOST_LEFT]
            )
        reported = any(each is cause for each in self.reports.values())
        lost = not reported and not cause.paused
        return Blamed(round_number, cause.node, text, others, lost=lost, paused=cause.paused)

    def left_alone(self) -> tuple[int, ...]:
        """The ranks that have ended with 0 where all that failed have only lost a peer."""
        cause = self.first_cause
        if cause is None or not cause.victim or self._ruling is not None:
            return ()
        return tuple(sorted(rank for ranks in self.left.values() for rank in ranks))[:_MOST_RANKS]

    def news(self, round_number: int) -> list[Blamed]:
        """The verdict, unless it is what was said before."""
        verdict = self.verdict(round_number)
        if verdict is None or verdict == self._told:
            return []
        self._told = verdict
        return [verdict]


def _together(lost: list[Cause]) -> Cause:
    """The first of them, with the names of the others."""
    first = lost[0]
    others = {each.node for each in lost} - {first.node, ""}
    if not first.node or not others:
        return first
    are = "are nodes" if len(others) > 1 else "is node"
    text = f"{first.line}; so {are} {name_some(others)}"
    return Cause(first.node, text, paused=first.paused)


# --- advice ---------------------------------------------------------------------------------------

# Causes of which the advice to end the job is always followed: no restart makes a checkpoint, or a
# module that nobody has installed.
ALWAYS_ENDS = frozenset({"state_not_saved", "missing_file"})
# A longer one is not kept.
MOST_HISTORY = 16 * 1024


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round that is over.

    Attributes:
        round: its number.
        nodes: that took part.
        spare: how many nodes the job can go on without; those that are here count.
        iteration: the highest one that was begun, None = none or not known.
        blamed: what ended it, None = it did not fail.
        lost: the node that is blamed cannot be reached any more.
        findings: what nodes have found out about their own failures.
        left: ranks that had ended with 0, if all that failed have only lost a peer.
        first: the iteration it began with, None = none or not known.
    """

    round: int
    nodes: tuple[str, ...]
    spare: int
    iteration: int | None
    blamed: Blamed | None
    lost: bool
    findings: Mapping[str, bytes]
    left: tuple[int, ...] = ()
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """The action, and the history from now on.

    Attributes:
        advised: for all nodes; None = the round did not fail.
        history: with this round.
        problem: what is wrong with the history that was known, or with the function.
        failure: for the ranks of the next round, how this one failed; opaque.
        repeats: how often the job has failed so, with no progress in between; 0 = not known.
    """

    advised: Advised | None
    history: bytes
    problem: str = ""
    failure: str = ""
    repeats: int = 0


# Takes the history and what happened. Pure, bounded, and does not raise.
Advise = Callable[[bytes, Attempt], Advice]
