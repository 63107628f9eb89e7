"""What the node's state machine hears, and what it commands; see `core.node`."""

from __future__ import annotations

from dataclasses import dataclass

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRound:
    """The coordinator wants round ``round`` started with ``slots`` local ranks."""

    round: int
    slots: int


@dataclass(frozen=True, slots=True)
class WorkersSpawned:
    """Every local rank is a process now."""


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The local ranks could not be started."""

    reason: str


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank's process ended; ``code`` is its exit code, or minus the signal's number.

    ``spared``: if that is a failure it is none of the round: others go on with the function that
    they have called together. ``again``: a process in its place could join them. ``absent``: local
    ranks that have been started again and have not joined the others, as far as they live.
    """

    local_rank: int
    code: int
    spared: bool = False
    again: bool = False
    absent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RankErrored:
    """A rank recorded an unhandled exception; it is about to die. ``spared``: see `RankExited`."""

    local_rank: int
    detail: str
    spared: bool = False


@dataclass(frozen=True, slots=True)
class LimitPassed:
    """A rank passed a limit."""

    local_rank: int
    detail: str


@dataclass(frozen=True, slots=True)
class CrashUnclear:
    """So far only ranks have failed that lost a peer; judge again when more is known."""


@dataclass(frozen=True, slots=True)
class HangJudged:
    """Evidence of ``round`` has been gathered and judged: ``culprits`` are local ranks."""

    round: int
    culprits: tuple[int, ...]
    line: str


@dataclass(frozen=True, slots=True)
class StopRound:
    """The coordinator wants the round ended: ``signal`` now, SIGKILL after ``grace_s``.

    ``restart``: another round is to follow.
    """

    round: int
    grace_s: float
    signal: int
    restart: bool = False


@dataclass(frozen=True, slots=True)
class NoRestart:
    """Whatever was planned: no round follows, since the launcher was told to stop."""


@dataclass(frozen=True, slots=True)
class NodeClear:
    """What `ClearNode` asked for is done. ``problem``: why this node can run no round, "" = fit."""

    round: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TreeEmpty:
    """No process of the round is left."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer set by `SetTimer` ran out. ``round`` is the round it was set in."""

    name: str
    round: int


@dataclass(frozen=True, slots=True)
class KillNow:
    """The user insists (second Ctrl-C): no more grace."""


Event = (
    StartRound
    | WorkersSpawned
    | SpawnFailed
    | RankExited
    | RankErrored
    | LimitPassed
    | CrashUnclear
    | HangJudged
    | StopRound
    | NoRestart
    | NodeClear
    | TreeEmpty
    | TimerFired
    | KillNow
)


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the workers of the round; answer with WorkersSpawned or SpawnFailed."""

    round: int


@dataclass(frozen=True, slots=True)
class CallOffSpawn:
    """Nobody needs the workers any more: wait no longer than processes exist already.

    Answer to `Spawn` all the same.
    """


@dataclass(frozen=True, slots=True)
class Watch:
    """Hold the ranks to their limits, or stop doing so."""

    on: bool


@dataclass(frozen=True, slots=True)
class GoOnWithout:
    """A rank is lost, and the round goes on."""

    local_rank: int
    detail: str


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start a process in the place of a lost rank; if there is none to be had, `RankExited`."""

    local_rank: int


@dataclass(frozen=True, slots=True)
class GatherEvidence:
    """Collect stacks and process states, judge, answer with HangJudged."""


@dataclass(frozen=True, slots=True)
class JudgeCrash:
    """Say which rank crashed first and why.

    Unless it is the ``final`` time, answer CrashUnclear instead if only victims have been seen.
    """

    final: bool = True


@dataclass(frozen=True, slots=True)
class SignalRanks:
    """Send ``signal`` to these ranks."""

    local_ranks: tuple[int, ...]
    signal: int


@dataclass(frozen=True, slots=True)
class SignalTree:
    """Send ``signal`` to every process of the round; answer TreeEmpty once none is left."""

    signal: int


@dataclass(frozen=True, slots=True)
class PrepareClearing:
    """`ClearNode` may follow: start what takes a while to start."""


@dataclass(frozen=True, slots=True)
class ClearNode:
    """Make sure that the next round finds the node as it should be; answer with NodeClear."""

    round: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Answer with TimerFired(name) after ``delay_s``; replaces a timer of that name."""

    name: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class ReportFailed:
    """Tell the coordinator. ``kind`` is crash, hang or spawn."""

    kind: str
    local_rank: int
    detail: str


@dataclass(frozen=True, slots=True)
class ReportFinished:
    """Tell the coordinator that every rank exited with 0, but for ``lost`` ones."""

    lost: int = 0


@dataclass(frozen=True, slots=True)
class ReportStopped:
    """Tell the coordinator that the round is over on this node.

    ``problem``: why this node can run no further round, "" = it can.
    """

    all_ok: bool
    unkillable: bool
    problem: str = ""


Command = (
    Spawn
    | CallOffSpawn
    | Watch
    | GoOnWithout
    | StartAgain
    | GatherEvidence
    | JudgeCrash
    | SignalRanks
    | SignalTree
    | PrepareClearing
    | ClearNode
    | SetTimer
    | ReportFailed
    | ReportFinished
    | ReportStopped
)
