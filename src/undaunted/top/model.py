"""The whole job at one moment: from the journals of its nodes and the pages of this one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.journal.outcome import FOR_ALL
from undaunted.top.attention import look_closer
from undaunted.top.nodes import Node
from undaunted.top.notes import Note, merged, ring_note
from undaunted.top.ranks import Rank, Speeds, rank_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.journal.events import Event
    from undaunted.top.pages import Look

SCHEMA = 1
_NS = 1_000_000_000
_NOTES = 50
# Where the time went is counted anew this often, and with each event.
_ACCOUNT_NS = 5 * _NS


_STOPPED = (
    "the launcher was stopped by a signal: until it gets SIGCONT, crashes and hangs go unnoticed"
)


class Launch(msgspec.Struct, kw_only=True, frozen=True):
    """What is known of the process that writes a journal.

    Attributes:
        running: it runs; None = not known.
        stopped: by a signal, or by a debugger.
        looks: its pages, by local rank.
        problem: why there are none, "" = there are, or it does not run.
    """

    running: bool | None = None
    stopped: bool = False
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


class _Known:
    """One journal: what it has told, and what is remembered from one look to the next."""

    def __init__(self) -> None:
        self.node = Node()
        self.speeds = Speeds()
        self.counted: tuple[float, int] | None = None  # productive and all time, nanoseconds
        self.count_again_ns = 0


class Model:
    """Takes in events and pages; says what the job looks like."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._known: dict[str, _Known] = {}

    @property
    def nodes(self) -> dict[str, Node]:
        """What each journal has told."""
        return {name: known.node for name, known in self._known.items()}

    def take(self, journal: str, events: Sequence[Event]) -> None:
        """Take in the next events of a journal."""
        known = self._known.setdefault(journal, _Known())
        for event in events:
            known.node.take(event)
        if events:
            known.count_again_ns = 0

    def job(
        self,
        launches: Mapping[str, Launch],
        *,
        now_ns: int,
        wall: float,
        problems: Sequence[str] = (),
    ) -> Job:
        """Return the job as it is now.

        Args:
            launches: by journal.
            now_ns: CLOCK_MONOTONIC.
            wall: Unix time in seconds.
            problems: what could not be read.
        """
        job = Job(wall=wall, run_dir=self._run_dir, problems=list(problems))
        notes: list[Note] = []
        productive = total = 0.0
        steps_known = False
        present = self._present(launches)
        found: list[tuple[Node, list[Rank]]] = []
        for name, known in present:
            launch = launches.get(name, Launch())
            node = known.node
            rows = rank_rows(node, launch.looks, known.speeds, now_ns)
            found.append((node, rows))
            job.nodes.append(node.name or name)
            notes += node.notes()
            notes += _ring_notes(node, launch, now_ns, wall)
            if launch.stopped:
                job.problems.append(f"{node.name}: {_STOPPED}")
            if launch.problem and node.ended is None:
                job.problems.append(f"{node.name}: {launch.problem}; shown is what was known last")
            counted = _count(known, rows, launch, now_ns)
            if counted is not None:
                productive, total = productive + counted[0], total + counted[1]
                steps_known = True
        job.ranks = _of_this_round(found)
        nodes = [known.node for _, known in present]
        _describe(job, nodes, launches, [name for name, _ in present], now_ns)
        job.goodput = productive / total if steps_known and total else None
        job.iteration = max(
            (r.iteration for r in job.ranks if r.iteration is not None), default=None
        )
        job.notes = merged(notes, _NOTES)
        job.problems += look_closer(job.ranks)
        return job

    def _present(self, launches: Mapping[str, Launch]) -> list[tuple[str, _Known]]:
        """The journals of the newest job: an older one may have had other nodes."""
        started = {
            name: known.node.job.wall for name, known in self._known.items() if known.node.job
        }
        if not started:
            return [(name, known) for name, known in self._known.items() if known.node.opened]
        newest = max(started, key=lambda name: started[name])
        job = self._known[newest].node.job
        assert job is not None
        return [
            (name, known)
            for name, known in sorted(self._known.items())
            if known.node.job
            and known.node.job.run_id == job.run_id
            and (name == newest or not _over(known.node, launches.get(name, Launch()), job.wall))
        ]


def _over(node: Node, launch: Launch, wall: float) -> bool:
    """Tell whether a launch was over before another one began."""
    if node.ended is not None:
        return node.ended.wall < wall
    return launch.running is False and node.last_wall < wall


def _of_this_round(found: Sequence[tuple[Node, list[Rank]]]) -> list[Rank]:
    """Of each rank, the row of the node that had it last: others may have taken its place."""
    rows: dict[int, tuple[int, Rank]] = {}
    newest = max((node.round for node, _ in found), default=-1)
    world = max((node.world_size for node, _ in found if node.round == newest), default=0)
    for node, ranks in found:
        for row in ranks:
            known = rows.get(row.rank)
            in_world = node.round == newest or row.rank < world
            if in_world and (known is None or (known[0], known[1].live) < (node.round, row.live)):
                rows[row.rank] = (node.round, row)
    return [rows[rank][1] for rank in sorted(rows)]


def _describe(
    job: Job,
    nodes: Sequence[Node],
    launches: Mapping[str, Launch],
    names: Sequence[str],
    now_ns: int,
) -> None:
    """Fill in what is of the whole job."""
    if not nodes:
        job.state = "no launcher has written a journal that can be read"
        return
    first = min(nodes, key=lambda node: node.job.wall if node.job else 0.0)
    newest = max(nodes, key=lambda node: node.round)
    running = [launches.get(name, Launch()).running for name in names]
    known = {node.name: runs for node, runs in zip(nodes, running, strict=True)}
    over = _is_over(nodes, running)
    job.state, job.style = _state(nodes, running, newest)
    if first.job is not None:
        job.run_id, job.argv = first.job.run_id, first.job.argv
        job.max_restarts = first.job.max_restarts
        job.running_s = _span(
            first.job.t, first.job.wall, first, known[first.name], over, now_ns, job.wall
        )
    job.round, job.world_size = newest.round, newest.world_size
    left = [node.restarts_left for node in nodes if node.restarts_left is not None]
    job.restarts = max(0, (job.max_restarts or 0) - min(left)) if left else 0
    job.inprocess_restarts = max(node.inprocess for node in nodes)
    if newest.began_ns:
        job.round_s = _span(
            newest.began_ns, 0.0, newest, known[newest.name], over, now_ns, job.wall
        )


def _span(
    began_ns: int,
    began_wall: float,
    node: Node,
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


def _is_over(nodes: Sequence[Node], running: Sequence[bool | None]) -> bool:
    """Tell whether no launcher goes on, or one has seen the end of the job."""
    gone = [
        node.ended is not None or runs is False for node, runs in zip(nodes, running, strict=True)
    ]
    return all(gone) or any(node.ended and node.ended.outcome in FOR_ALL for node in nodes)


def _state(nodes: Sequence[Node], running: Sequence[bool | None], newest: Node) -> tuple[str, str]:
    ended = [node.ended for node in nodes if node.ended is not None]
    of_job = [end for end in ended if end.outcome in FOR_ALL]  # whatever became of other launchers
    if of_job or (ended and len(ended) == len(nodes)):
        end = max(of_job or ended, key=lambda each: (not each.alone, each.wall))
        code = f", exit code {end.exit_code}"
        return end.outcome.replace("_", " ") + code, "red" if end.exit_code else "green"
    alive = [
        node
        for node, runs in zip(nodes, running, strict=True)
        if node.ended is None and runs is not False
    ]
    if not alive:
        return "killed: the launcher is gone and recorded no end", "red"
    failed = [node for node in alive if node.failure and node.round == newest.round]
    if failed:
        doing = "examined" if failed[0].stage == "failed" else "stopped"
        return f"a failure in round {newest.round} is being {doing}", "red"
    if any(node.inprocess_now for node in alive):
        return "restarting inside the processes", "yellow"
    stage = newest.stage
    if stage == "running":
        return f"round {newest.round} is running", "green"
    if stage in ("stopping", "stopped"):
        return f"round {newest.round} is {'being ' if stage == 'stopping' else ''}stopped", "yellow"
    return (f"round {newest.round} is starting" if newest.round >= 0 else "starting"), "yellow"


def _ring_notes(node: Node, launch: Launch, now_ns: int, wall: float) -> list[Note]:
    """What ranks have put into their pages: the launcher reads that only now and then."""
    notes = []
    for local_rank, look in enumerate(launch.looks[: len(node.ranks)]):
        for event in look.events:
            when = wall - (now_ns - event.at_ns) / _NS
            rank = node.ranks[local_rank]
            note = ring_note(rank, event.name, event.text, wall=when, node=node.name)
            if note is not None:
                notes.append(note)
    return notes


def _count(
    known: _Known, rows: Sequence[Rank], launch: Launch, now_ns: int
) -> tuple[float, int] | None:
    """Return productive and all time of a node's ranks, None if that cannot be told."""
    if now_ns < known.count_again_ns:
        return known.counted
    known.count_again_ns = now_ns + _ACCOUNT_NS
    live = launch.running is True
    reached = _reached(launch) if live else None
    account = known.node.account(now_ns if live else None, reached)
    share = max(1, len(rows))
    whole = account.total.total_ns * share
    known.counted = None
    if account.steps_known and whole:
        known.counted = (account.total.productive_ns * share, whole)
    return known.counted


def _reached(launch: Launch) -> tuple[int, int, int] | None:
    pages = [look.page for look in launch.looks]
    first = [page.first_iteration for page in pages if page.first_iteration is not None]
    last = [
        (page.iteration, page.iteration_ns)
        for page in pages
        if page.iteration is not None and page.iteration_ns is not None
    ]
    if not first or not last:
        return None
    return min(first), *max(last)
