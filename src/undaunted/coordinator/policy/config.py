"""The choices of the user for the whole job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.coordinator.policy.placement import Rules

if TYPE_CHECKING:
    from undaunted.coordinator.policy.messages import Place, Say, Slow
    from undaunted.coordinator.policy.verdict import Advise, Rule

# Of one round: takes the times that a node tells, and returns what is new, and what slow ranks cost
# now. Bounded, never raises.
Pace = Callable[[str, bytes], "Iterable[Slow | Say]"]


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The settings of the job policy.

    Attributes:
        min_nodes: a round needs so many nodes.
        max_nodes: counted from ``min_nodes`` on; so many more nodes may be excluded before the job
            ends, and take part if it is ``elastic`` or ``min_healthy``.
        elastic: nodes that join later are taken in by a restart.
        min_healthy: a round goes on while ``min_nodes`` of its nodes are healthy; otherwise the
            first failure stops it.
        segment: see `placement.Rules`.
        replacement_group_size: see `placement.Rules`.
        max_restarts: of the whole job.
        restart_intensity: at most so many restarts within so many seconds; None = no limit.
        max_no_progress_cycles: see `ProgressTracker`.
        min_progress_iterations: see `ProgressTracker`.
        stop_timeout_s: between SIGTERM and SIGKILL, None = by cause.
        term_timeout_s: the same when a launcher was told to stop.
        first_timeout_s: how long the first round may wait for enough nodes.
        join_timeout_s: the same for later rounds.
        last_call_s: how long the first round waits for more nodes than needed.
        pace: makes for each round the function that says who is slow, given its number and
            places; None = nobody is compared.
        rule: says who hangs after all nodes were looked at; None = they are not looked at.
        advise: says what is best done after a round that failed, by the history of the job; None =
            there is no history.
        act: do what is advised: leave nodes out, end the job; otherwise it is only said.
        slow_ranks: what is done about ranks that are slow for long: log = say so, exclude = go on
            without their node if it can be spared, stop = end the job.
        slow_ranks_after_s: how long.
        failure: how the last round of the job's start before this one failed; see `messages.Start`.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    elastic: bool = False
    min_healthy: bool = False
    segment: int = 0
    replacement_group_size: int = 0
    max_restarts: int = 0
    restart_intensity: tuple[int, float] | None = None
    max_no_progress_cycles: int = 3
    min_progress_iterations: int = 1
    stop_timeout_s: float | None = None
    term_timeout_s: float = 1800.0
    first_timeout_s: float = 900.0
    join_timeout_s: float = 300.0
    last_call_s: float = 1.0
    pace: Callable[[int, tuple[Place, ...]], Pace] | None = field(default=None, compare=False)
    rule: Rule | None = field(default=None, compare=False)
    advise: Advise | None = field(default=None, compare=False)
    act: bool = False
    slow_ranks: str = "log"
    slow_ranks_after_s: float = 300.0
    failure: str = ""

    @property
    def most_nodes(self) -> int:
        """MAX of ``--nnodes MIN:MAX``."""
        return max(self.min_nodes, self.max_nodes)

    @property
    def rules(self) -> Rules:
        """Return how nodes are placed."""
        most = self.most_nodes if self.elastic or self.min_healthy else self.min_nodes
        return Rules(self.min_nodes, most, self.segment, self.replacement_group_size)
