"""One row per rank: what its page shows now, or what the journal knew last. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from undaunted.base.process import ENDED
from undaunted.progress.snapshot import Phase
from undaunted.top.speed import Speed, mean_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.events import RankExited
    from undaunted.journal.launch import LaunchState
    from undaunted.progress.snapshot import PageSnapshot, SectionSnapshot
    from undaunted.top.pages import Look

_NS = 1_000_000_000
_PHASES = {
    Phase.EMPTY: "spawned",
    Phase.STARTING: "starting",
    Phase.INITIALIZED: "initialized",
    Phase.STEPPING: "stepping",
    Phase.SHUT_DOWN: "not watched",
    Phase.FAILED: "failed",
    Phase.LEAVING: "leaving",
}
_MILESTONES = {"first_line": "starting", "initialized": "initialized", "first_step": "stepping"}
_NOT_STARTED = "not started"
# CPU time is counted in hundredths of a second.
_LEAST_NS = 2 * _NS


class Rank(msgspec.Struct, kw_only=True):
    """The facts about one rank. Times are in seconds, None = not known.

    Attributes:
        rank: global rank.
        local_rank: its number on the node.
        node: name of the node.
        pid: of its process, 0 = not known.
        live: its page was read; otherwise this is what the journal knew last.
        phase: what it is doing.
        state: of its process, as in /proc/PID/stat; "" = none, or not known.
        watched: limits may apply to it now.
        section: the one that was entered last of those that are open, "" = none.
        section_s: since when it is open.
        section_longest_s: the longest time it ever took in this round.
        sections_s: how long each section took lately.
        iteration: the one it has begun last.
        step_s: time of a step, lately.
        mean_s: the mean of all its steps in this round.
        silent_s: since its last heartbeat; steps are heartbeats.
        limit_s: how long that may be.
        section_limit_s: how long the section may be open.
        still_s: since it has shown anything: a heartbeat, or a section entered or left.
        cpu: how much of a core its process has used since then, 1 = all of one.
        failures: how often it was blamed or lost in this launch.
        suspect: it seems to keep others waiting.
        slow: it takes longer than the others, by this part (0.3 = 30 %).
        note: one line about it.
    """

    rank: int
    local_rank: int
    node: str
    pid: int = 0
    live: bool = False
    phase: str = ""
    state: str = ""
    watched: bool = False
    section: str = ""
    section_s: float | None = None
    section_longest_s: float = 0.0
    sections_s: dict[str, float] = {}
    iteration: int | None = None
    step_s: float | None = None
    mean_s: float | None = None
    silent_s: float | None = None
    limit_s: float | None = None
    section_limit_s: float | None = None
    still_s: float | None = None
    cpu: float | None = None
    failures: int = 0
    suspect: bool = False
    slow: float | None = None
    note: str = ""


class Speeds:
    """The speed of each local rank, by process, and what that uses while it stands still."""

    def __init__(self) -> None:
        self._speeds: dict[int, tuple[tuple[int, int], Speed]] = {}
        self._stands: dict[int, tuple[tuple[int, int, int | None], int, float]] = {}

    def cpu(self, local_rank: int, look: Look, now_ns: int) -> float | None:
        """Return the part of a core used since the rank has shown anything.

        Counted from the first look after that; None until it is two seconds ago.
        """
        stand = (look.page.pid, look.page.pid_start, look.page.latest_ns)
        known = self._stands.get(local_rank)
        if known is None or known[0] != stand or not look.state:
            known = self._stands[local_rank] = (stand, now_ns, look.cpu_s)
        _, since_ns, before_s = known
        if now_ns - since_ns < _LEAST_NS:
            return None
        return max(0.0, look.cpu_s - before_s) / (now_ns - since_ns) * _NS

    def look(self, local_rank: int, page: PageSnapshot) -> Speed:
        """Take in a page; return the speed of the process whose page it is."""
        owner = (page.pid, page.pid_start)
        known = self._speeds.get(local_rank)
        if known is None or known[0] != owner:
            known = self._speeds[local_rank] = (owner, Speed())
        known[1].look(page)
        return known[1]


def rank_rows(
    launch: LaunchState, looks: Sequence[Look], speeds: Speeds, now_ns: int
) -> list[Rank]:
    """Return the ranks of a node in its present round.

    Args:
        launch: what the journal of the node tells.
        looks: by local rank; empty where pages cannot be read.
        speeds: of this node, from one look to the next.
        now_ns: CLOCK_MONOTONIC.
    """
    rows = []
    pids = launch.current.pids
    for local_rank, rank in enumerate(launch.current.ranks):
        row = Rank(rank=rank, local_rank=local_rank, node=launch.node)
        row.failures = launch.failures_of(rank)
        if local_rank < len(pids):
            row.pid = pids[local_rank]
        if local_rank < len(looks):
            _from_page(row, looks[local_rank], launch, speeds, now_ns)
        else:
            _from_journal(row, launch)
        if (exited := launch.current.exit_of(rank)) is not None:
            row.phase, row.watched = _exit(exited), False
        rows.append(row)
    return rows


def _from_page(row: Rank, look: Look, launch: LaunchState, speeds: Speeds, now_ns: int) -> None:
    page = look.page
    if page.problem:
        row.phase, row.note = "unreadable", page.problem
        return
    row.live = True
    row.phase, row.state = _PHASES[page.phase], look.state
    row.pid = page.pid or row.pid
    row.watched = (
        page.phase in (Phase.INITIALIZED, Phase.STEPPING)
        and launch.current.stage in ("running", "failed")
        and look.state not in ENDED
    )
    if page.phase is Phase.FAILED and page.error is not None:
        row.note = f"{page.error.type}: {page.error.message}"
    speed = speeds.look(row.local_rank, page)
    row.iteration = page.iteration
    row.step_s, row.mean_s = speed.recent_s(page), mean_s(page)
    row.sections_s = speed.sections_s()
    row.silent_s = _since(page.heartbeat_ns, now_ns)
    if row.silent_s is not None:
        row.limit_s = launch.limits.get("heartbeat")
    row.still_s = _since(page.latest_ns, now_ns)
    row.cpu = speeds.cpu(row.local_rank, look, now_ns)
    section = _innermost(page)
    if section is not None:
        row.section, row.section_s = section.name, _since(section.open_since_ns, now_ns)
        row.section_longest_s = section.max_ns / _NS
        row.section_limit_s = launch.limits.get(f"section:{section.name}")


def _from_journal(row: Rank, launch: LaunchState) -> None:
    current = launch.current
    passed = current.passed.get(row.rank)
    if passed is None:
        row.phase = "spawned" if current.pids else _NOT_STARTED
        return
    row.note = "last known" if launch.ended is None else ""
    row.phase = _MILESTONES.get(passed.name, passed.name)
    row.iteration = passed.iteration
    if current.iteration is not None and passed.name == "first_step":
        row.iteration = current.iteration.last_iteration


def _exit(exited: RankExited) -> str:
    return exited.signal or f"exit {exited.exit_code}"


def _innermost(page: PageSnapshot) -> SectionSnapshot | None:
    opened = [section for section in page.sections.values() if section.open_since_ns is not None]
    return max(opened, key=lambda section: section.open_since_ns or 0, default=None)


def _since(moment_ns: int | None, now_ns: int) -> float | None:
    """Seconds since then; a page of garbage may name any moment."""
    return None if moment_ns is None else max(0, now_ns - moment_ns) / _NS
