"""Has the ranks of restarts find imported what the ranks of this round have imported.

A rank that is under way is asked (`worker.import_notes`), and a second template imports those
packages again that are on the list (`worker.known_imports`). Workers are forked from it once it
has. See docs/design/warm-imports.md.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from undaunted.base import process
from undaunted.base.cgroups import cpu_use
from undaunted.fault_tolerance.agent.parts import Part
from undaunted.fault_tolerance.worker import import_notes
from undaunted.fault_tolerance.worker.known_imports import unlisted
from undaunted.fault_tolerance.worker.messages import Learned, Ready
from undaunted.fault_tolerance.worker.witness import IMPORTS
from undaunted.journal.events import ImportsLearned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.fault_tolerance.agent.processes import Workers
    from undaunted.fault_tolerance.agent.recordings import Recordings
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.fault_tolerance.worker.import_notes import RankImports
    from undaunted.fault_tolerance.worker.spawner import Spawned, Spawner
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.area import PageArea

# The first step imports as well. Ranks that report no step are taken to make steps after all these;
# from then on the last is repeated.
_LOOKS_S = (3.0, 6.0, 12.0, 24.0, 48.0)
# Each starts with all imports; a package is left out with those that import it.
_MOST_TEMPLATES = 8
# Where a low priority leaves nothing to the ranks, so many CPUs have to be idle: where control
# groups limit the CPU time, or where a process may not take its usual priority again.
_IDLE_CPUS = 2
_STAT = Path("/proc/stat")


class ImportLearner(Part):
    """Learns until it has come to something or to nothing. Owns its task, not the template.

    Args:
        config: the run.
        area: the pages.
        recordings: asks the ranks.
        workers: their processes.
        spawner: has the templates.
        journal: gets what was learned.
    """

    def __init__(
        self,
        config: RunConfig,
        area: PageArea,
        recordings: Recordings,
        workers: Workers,
        spawner: Spawner,
        journal: JournalWriter,
    ) -> None:
        self._area = area
        self._recordings = recordings
        self._workers = workers
        self._spawner = spawner
        self._journal = journal
        self._preloaded = config.preload
        self._wanted = config.learn_imports == "on"
        self._task: asyncio.Task[None] | None = None

    def ranks_run(self, current: Round, spawned: Spawned) -> None:
        """Ask them soon what they have imported, if they come from a template."""
        if spawned.mode == "warm" and self._wanted and not self._spawner.has_learned:
            self.close()  # those of a round that was too short to ask
            self._task = asyncio.get_running_loop().create_task(self._learn(current))

    def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
        self._task = None

    async def _learn(self, current: Round) -> None:
        gives_way = process.may_lower_priority()
        answer = await self._ask(current, gives_way=gives_way)
        if answer is None:
            return  # those of the next round may
        self._wanted = False
        imports, left = answer
        if imports.packages:
            learned = Learned(
                groups=imports.groups,
                packages=imports.packages,
                own=imports.own,
                gives_way=gives_way,
            )
            names = {name.partition(".")[0] for group in imports.groups for name in group.modules}
            await self._have_imported(learned, left | unlisted(sorted(names), self._preloaded))

    async def _ask(
        self, current: Round, *, gives_way: bool
    ) -> tuple[RankImports, dict[str, str]] | None:
        """Return imports of a rank, and packages that another one imports otherwise; None = none.

        As soon as one is in its second step and CPUs are idle.
        """
        delays = itertools.chain(_LOOKS_S, itertools.repeat(_LOOKS_S[-1]))
        for look, delay in enumerate(delays, 1):
            before, began = _cpu_use(gives_way=gives_way), time.monotonic()
            await asyncio.sleep(delay)
            workers = self._workers.all
            if current.stopping or not workers:
                return None
            if not self._step() and look < len(_LOOKS_S):
                continue
            after, took_s = _cpu_use(gives_way=gives_way), time.monotonic() - began
            if _idle_cpus(before, after, took_s) < _IDLE_CPUS:
                continue
            ranks = (workers[0].pid, workers[-1].pid)
            answers = await self._recordings.ask_idly(ranks, IMPORTS)
            if answers:  # nobody else has asked just now
                one, other = (import_notes.decode(answers.get(pid) or b"") for pid in ranks)
                if one is None or other is None:
                    return None
                return one, disagreement(one, other)
        return None

    def _step(self) -> bool:
        """Whether some rank is in its second step."""
        pages = (self._area.snapshot(rank.local_rank) for rank in self._workers.all)
        return any(
            page.iteration is not None
            and page.first_iteration is not None
            and page.iteration > page.first_iteration
            for page in pages
        )

    async def _have_imported(self, learned: Learned, left: dict[str, str]) -> None:
        began_ns = time.monotonic_ns()
        ready: Ready | None = None
        problem = "none of their packages is on the list"
        for _ in range(_MOST_TEMPLATES):
            if not learned.packages.keys() - left.keys():
                break
            ready = await self._spawner.learn(replace(learned, left=sorted(left)))
            problem = "the template has ended" if ready is None else ready.problem
            if ready is None or not ready.left:
                break
            left = left | ready.left
            problem = f"workers could be forked from none of {_MOST_TEMPLATES} templates"
        self._wanted = not problem  # should this template be lost
        self._journal.record(
            ImportsLearned(
                modules=0 if problem or ready is None else ready.learned,
                packages=[] if problem else [name for name in learned.packages if name not in left],
                took_ns=time.monotonic_ns() - began_ns,
                left=left,
                problem=problem,
            )
        )


def _cpu_use(*, gives_way: bool) -> list[tuple[int, float]]:
    """Return CPUs and seconds used of all that the ranks have in common with us but priorities."""
    return cpu_use() if gives_way else [*cpu_use(), _node_use()]


def _node_use() -> tuple[int, float]:
    """Return how many CPUs this process may use, and for how long they were busy, seconds."""
    cpus, ticks = os.sched_getaffinity(0), 0
    for line in _STAT.read_text("ascii").splitlines():
        name, *times = line.split()
        if name.removeprefix("cpu").isdigit() and int(name[3:]) in cpus:
            ticks += sum(map(int, times[:3])) + sum(map(int, times[5:8]))  # idle, iowait: 3 and 4
    return len(cpus), ticks / os.sysconf("SC_CLK_TCK")


def _idle_cpus(
    before: Sequence[tuple[int, float]], after: Sequence[tuple[int, float]], seconds: float
) -> float:
    """Return how many CPUs of our control groups' limits nobody has used for a while."""
    if len(before) != len(after):
        return 0.0  # we were moved
    pairs = zip(before, after, strict=True)
    idle = (quota - (then - now) / max(seconds, 0.001) for (_, now), (quota, then) in pairs)
    return min(idle, default=math.inf)


def disagreement(one: RankImports, other: RankImports) -> dict[str, str]:
    """Return packages that two ranks have imported after different changes of variables."""
    environments = {name: group.environment for group in other.groups for name in group.modules}
    left: dict[str, str] = {}
    for group in one.groups:
        for name in group.modules:
            theirs = environments.get(name, group.environment)
            if theirs != group.environment:
                differ = sorted(
                    variable
                    for variable in theirs.keys() | group.environment.keys()
                    if theirs.get(variable) != group.environment.get(variable)
                )
                reason = f"before it, ranks set {', '.join(differ)} to different values"
                left.setdefault(name.partition(".")[0], reason)
    return left
