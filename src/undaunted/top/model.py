"""The whole job at one moment: from the journals of its nodes and the pages of this one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.events import FailureDetected, RoundStarted, Verdict
from undaunted.journal.job.summary import FOR_ALL
from undaunted.journal.words import outcome_in_words
from undaunted.top.attention import look_closer
from undaunted.top.nodes import Node
from undaunted.top.notes import Note, merged, ring_note
from undaunted.top.ranks import Rank, rank_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.journal.events import Event
    from undaunted.journal.launch import LaunchState
    from undaunted.top.pages import Look

SCHEMA = 1
_NS = 1_000_000_000
_NOTES = 50

_STOPPED = (
    "the launcher was stopped by a signal: until it gets SIGCONT, crashes and hangs go unnoticed"
)
_FRONT_STOPPED = (
    "the process that you started was stopped (Ctrl-Z, SIGSTOP): the ranks train on and are "
    "watched; Ctrl-C and SIGTERM wait until it goes on (fg, SIGCONT)"
)


class LauncherProcess(msgspec.Struct, kw_only=True, frozen=True):
    """The facts about the process that writes a journal.

    Attributes:
        running: it runs; None = not known.
        stopped: by a signal, or by a debugger.
        front_stopped: the same of the process that the user started.
        looks: its pages, by local rank.
        problem: why there are none, "" = there are, or it does not run.
    """

    running: bool | None = None
    stopped: bool = False
    front_stopped: bool = False
    looks: Sequence[Look] = ()
    problem: str = ""


class Job(msgspec.Struct, kw_only=True):
    """One moment of a job.

    Attributes:
        schema: goes up when a key changes its meaning; keys may be added without.
        wall: when, Unix time in seconds.
        run_dir: the directory that was read.
        run_id: name of the run.
        argv: the user's program and its arguments.
        state: in a few words.
        style: ``green``, ``yellow``, ``red`` or "", for the state.
        round: number of the round, -1 before the first.
        round_s: since it began.
        running_s: since the launch began.
        restarts: how many of those that are allowed were used.
        max_restarts: how many are allowed, None = not known.
        inprocess_restarts: restarts inside of the processes.
        goodput: productive part of the time so far, 0 to 1; None = not known.
        world_size: ranks of the job, 0 = not known.
        nodes: names of the nodes whose journals are here.
        iteration: the highest that a rank has begun, None = none has.
        ranks: those of these nodes.
        notes: what has happened, newest last.
        problems: what cannot be read, and why.
    """

    schema: int = SCHEMA
    wall: float = 0.0
    run_dir: str = ""
    run_id: str = ""
    argv: list[str] = []
    state: str = ""
    style: str = ""
    round: int = -1
    round_s: float | None = None
    running_s: float | None = None
    restarts: int = 0
    max_restarts: int | None = None
    inprocess_restarts: int = 0
    goodput: float | None = None
    world_size: int = 0
    nodes: list[str] = []
    iteration: int | None = None
    ranks: list[Rank] = []
    notes: list[Note] = []
    problems: list[str] = []


class Model:
    """Takes in events and pages; says what the job looks like.

    Attributes:
        nodes: by journal.
    """

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self.nodes: dict[str, Node] = {}

    def take(self, journal: str, events: Sequence[Event]) -> None:
        """Take in the next events of a journal."""
        node = self.nodes.setdefault(journal, Node())
        for event in events:
            node.take(event)

    def job(
        self,
        processes: Mapping[str, LauncherProcess],
        *,
        now_ns: int,
        wall: float,
        problems: Sequence[str] = (),
    ) -> Job:
        """Return the job as it is now.

        Args:
            processes: by journal.
            now_ns: CLOCK_MONOTONIC.
            wall: Unix time in seconds.
            problems: what could not be read.
        """
        job = Job(wall=wall, run_dir=self._run_dir, problems=list(problems))
        notes: list[Note] = []
        productive = total = 0.0
        steps_known = False
        present = self._present(processes)
        found: list[tuple[LaunchState, list[Rank]]] = []
        for name, node in present:
            process, launch = processes.get(name, LauncherProcess()), node.launch
            rows = rank_rows(launch, process.looks, node.speeds, now_ns)
            found.append((launch, rows))
            job.nodes.append(launch.node or name)
            notes += node.notes()
            notes += _ring_notes(launch, process, now_ns, wall)
            if process.stopped:
                job.problems.append(f"{launch.node}: {_STOPPED}")
            elif process.front_stopped:
                job.problems.append(f"{launch.node}: {_FRONT_STOPPED}")
            if process.problem and launch.ended is None:
                told = f"{launch.node}: {process.problem}; shown is what was known last"
                job.problems.append(told)
            spent = node.productive(now_ns, list(process.looks) if process.running else None)
            if spent is not None:
                productive, total = productive + spent[0], total + spent[1]
                steps_known = True
        job.ranks = _of_this_round(found)
        nodes = [node.launch for _, node in present]
        _describe(job, nodes, processes, [name for name, _ in present], now_ns)
        job.goodput = productive / total if steps_known and total else None
        job.iteration = max(
            (r.iteration for r in job.ranks if r.iteration is not None), default=None
        )
        job.notes = merged(notes, _NOTES)
        slow = {rank: share for node in nodes for rank, share in node.slow.items()}
        job.problems += look_closer(job.ranks, slow)
        return job

    def _present(self, processes: Mapping[str, LauncherProcess]) -> list[tuple[str, Node]]:
        """The journals of the newest job: an older one may have had other nodes."""
        started = {name: job for name, node in self.nodes.items() if (job := node.launch.job)}
        if not started:
            return [(name, node) for name, node in self.nodes.items() if node.launch.opened]
        newest = max(started, key=lambda name: started[name].wall)
        run_id, wall = started[newest].run_id, started[newest].wall
        return [
            (name, self.nodes[name])
            for name, job in sorted(started.items())
            if job.run_id == run_id
            and (
                name == newest
                or not _over(self.nodes[name].launch, processes.get(name, LauncherProcess()), wall)
            )
        ]


def _over(launch: LaunchState, process: LauncherProcess, wall: float) -> bool:
    """Tell whether a launch was over before another one began."""
    if launch.ended is not None:
        return launch.ended.wall < wall
    return process.running is False and launch.last_wall < wall


def _of_this_round(found: Sequence[tuple[LaunchState, list[Rank]]]) -> list[Rank]:
    """Of each rank, the row of the node that had it last: others may have taken its place."""
    rows: dict[int, tuple[int, Rank]] = {}
    newest = max((node.number for node, _ in found), default=-1)
    world = max((_world_size(node) for node, _ in found if node.number == newest), default=0)
    for node, ranks in found:
        for row in ranks:
            known = rows.get(row.rank)
            in_world = node.number == newest or row.rank < world
            if in_world and (known is None or (known[0], known[1].live) < (node.number, row.live)):
                rows[row.rank] = (node.number, row)
    return [rows[rank][1] for rank in sorted(rows)]


def _world_size(launch: LaunchState) -> int:
    started = launch.current.first(RoundStarted)
    return started.world_size if started is not None else 0


def _describe(
    job: Job,
    nodes: Sequence[LaunchState],
    processes: Mapping[str, LauncherProcess],
    names: Sequence[str],
    now_ns: int,
) -> None:
    """Fill in what is of the whole job."""
    if not nodes:
        job.state = "no launcher has written a journal that can be read"
        return
    first = min(nodes, key=lambda node: node.job.wall if node.job else 0.0)
    newest = max(nodes, key=lambda node: node.number)
    running = [processes.get(name, LauncherProcess()).running for name in names]
    known = {node.node: runs for node, runs in zip(nodes, running, strict=True)}
    over = _is_over(nodes, running)
    job.state, job.style = _state(nodes, running, newest)
    if first.job is not None:
        job.run_id, job.argv = first.job.run_id, first.job.argv
        job.max_restarts = first.job.max_restarts
        job.running_s = _span(
            first.job.t, first.job.wall, first, known[first.node], over, now_ns, job.wall
        )
    job.round, job.world_size = newest.number, _world_size(newest)
    left = [node.decision.restarts_left for node in nodes if node.decision is not None]
    job.restarts = max(0, (job.max_restarts or 0) - min(left)) if left else 0
    job.inprocess_restarts = max(node.inprocess_restarts for node in nodes)
    if newest.number >= 0:
        job.round_s = _span(
            newest.current.began_ns, 0.0, newest, known[newest.node], over, now_ns, job.wall
        )


def _span(
    began_ns: int,
    began_wall: float,
    node: LaunchState,
    runs: bool | None,
    over: bool,
    now_ns: int,
    wall: float,
) -> float:
    """Seconds from a moment of a node until now; until its last event where the job is over."""
    if over:
        return max(0, node.last_ns - began_ns) / _NS
    if runs is not None:  # of this boot of this machine, even if it is gone
        return max(0, now_ns - began_ns) / _NS
    # Of another machine: its clock is not ours, so as much as its journal tells, and since then.
    began_wall = began_wall or node.last_wall - (node.last_ns - began_ns) / _NS
    return max(0.0, wall - began_wall)


def _is_over(nodes: Sequence[LaunchState], running: Sequence[bool | None]) -> bool:
    """Tell whether no launcher goes on, or one has seen the end of the job."""
    gone = [
        node.ended is not None or runs is False for node, runs in zip(nodes, running, strict=True)
    ]
    return all(gone) or any(node.ended and node.ended.outcome in FOR_ALL for node in nodes)


def _state(
    nodes: Sequence[LaunchState], running: Sequence[bool | None], newest: LaunchState
) -> tuple[str, str]:
    ended = [node.ended for node in nodes if node.ended is not None]
    of_job = [end for end in ended if end.outcome in FOR_ALL]  # whatever became of other launchers
    if of_job or (ended and len(ended) == len(nodes)):
        end = max(of_job or ended, key=lambda each: (not each.alone, each.wall))
        code = f", exit code {end.exit_code}"
        return outcome_in_words(end.outcome, end.reason) + code, "red" if end.exit_code else "green"
    alive = [
        node
        for node, runs in zip(nodes, running, strict=True)
        if node.ended is None and runs is not False
    ]
    if not alive:
        return "killed: the launcher is gone and recorded no end", "red"
    number = newest.number
    failed = [
        node.current
        for node in alive
        if node.number == number
        and (node.current.first(FailureDetected) or node.current.first(Verdict))
    ]
    if failed:
        doing = "examined" if failed[0].stage == "failed" else "stopped"
        return f"a failure in round {number} is being {doing}", "red"
    if any(node.current.restarts_inside for node in alive):
        return "restarting inside the processes", "yellow"
    stage = newest.current.stage
    if stage == "running":
        return f"round {number} is running", "green"
    if stage in ("stopping", "stopped"):
        return f"round {number} is {'being ' if stage == 'stopping' else ''}stopped", "yellow"
    return (f"round {number} is starting" if number >= 0 else "starting"), "yellow"


def _ring_notes(
    launch: LaunchState, process: LauncherProcess, now_ns: int, wall: float
) -> list[Note]:
    """What ranks have put into their pages: the launcher reads that only now and then."""
    notes, ranks = [], launch.current.ranks
    for local_rank, look in enumerate(process.looks[: len(ranks)]):
        for event in look.events:
            when = wall - (now_ns - event.at_ns) / _NS
            rank = ranks[local_rank]
            note = ring_note(rank, event.name, event.text, wall=when, node=launch.node)
            if note is not None:
                notes.append(note)
    return notes
