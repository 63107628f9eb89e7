"""Has the ranks of restarts find imported what the ranks of this round have imported.

A rank that is under way is asked (`worker.import_notes`), and a second template imports the same
(`worker.warm_imports`), from which workers are forked once it has. See docs/design/warm-imports.md.
What had to be left out is kept in the run directory, for the same packages in the same versions.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from undaunted import __version__
from undaunted.base.cgroups import cpu_use
from undaunted.base.deadline import within
from undaunted.fault_tolerance.agent.parts import Part
from undaunted.fault_tolerance.worker import import_notes
from undaunted.fault_tolerance.worker.messages import Learned, RankValue, Ready
from undaunted.fault_tolerance.worker.numerics import TEMPLATE_ENVIRONMENT
from undaunted.fault_tolerance.worker.witness import IMPORTS
from undaunted.journal.events import ImportsLearned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.fault_tolerance.agent.processes import Workers
    from undaunted.fault_tolerance.agent.recordings import Recordings
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.fault_tolerance.worker.import_notes import RankImports
    from undaunted.fault_tolerance.worker.spawner import Spawned, Spawner
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.area import PageArea

# The first step imports as well. One that is not known of, or takes long, is waited for that long.
_LOOKS_S = (3.0, 6.0, 12.0, 24.0, 48.0)
# Each starts with all imports; a package is left out with those that import it.
_MOST_TEMPLATES = 8
# Where control groups limit the CPU time a low priority leaves nothing to the ranks: so many CPUs
# have to be idle.
_IDLE_CPUS = 2
_READ_S = 1.0
_MOST_BYTES = 1 << 20
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


class _File(msgspec.Struct, frozen=True):
    """What was found for packages of these versions. ``left``: what is not imported, and why."""

    key: str = ""
    left: dict[str, str] = {}
    rank_values: list[RankValue] = []


class ImportLearner(Part):
    """Learns until it has come to something or to nothing. Owns its task, not the template.

    Args:
        config: the run.
        environment: what the environments of all ranks have in common.
        area: the pages.
        recordings: asks the ranks.
        workers: their processes.
        spawner: has the templates.
        journal: gets what was learned.
    """

    def __init__(
        self,
        config: RunConfig,
        environment: Mapping[str, str],
        area: PageArea,
        recordings: Recordings,
        workers: Workers,
        spawner: Spawner,
        journal: JournalWriter,
    ) -> None:
        self._environment = environment
        self._area = area
        self._recordings = recordings
        self._workers = workers
        self._spawner = spawner
        self._journal = journal
        self._python = config.python
        self._path = Path(config.run_dir, f"learned-imports-{config.node}.json")
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
        told = await self._ask(current)
        if told is None:
            return  # those of the next round may
        self._wanted = False
        imports, left = told
        environments = rank_variables(self._environment, current.specs[-1].env)
        learned = Learned(
            groups=imports.groups,
            packages=imports.packages,
            own=imports.own,
            left=sorted(left),
            environments=environments,
        )
        if imports.packages.keys() - left.keys():
            await self._have_imported(learned, left, _key(self._python, imports))

    async def _ask(self, current: Round) -> tuple[RankImports, dict[str, str]] | None:
        """Return what a rank has imported, and what another one has otherwise; None = nobody says.

        As soon as one is in its second step and CPUs are idle; in the end also without a step.
        """
        for delay in _LOOKS_S:
            before, began = cpu_use(), time.monotonic()
            await asyncio.sleep(delay)
            workers = self._workers.all
            if current.stopping or not workers:
                return None
            if not self._step() and delay != _LOOKS_S[-1]:
                continue
            if _idle_cpus(before, cpu_use(), time.monotonic() - began) < _IDLE_CPUS:
                continue
            ranks = (workers[0].pid, workers[-1].pid)
            answers = await self._recordings.ask_idly(ranks, IMPORTS)
            if answers:  # nobody else has asked just now
                told = [import_notes.decode(answers.get(pid) or b"") for pid in ranks]
                if told[0] is None or told[1] is None:
                    return None
                return told[0], disagreement(told[0], told[1])
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

    async def _have_imported(self, learned: Learned, left: dict[str, str], key: str) -> None:
        began_ns = time.monotonic_ns()
        known = await asyncio.to_thread(within, _READ_S, lambda: _read(self._path), _File())
        if known.key == key:
            left = left | known.left
            own = [each for each in known.rank_values if _is_told(each, learned)]
            learned = replace(learned, left=sorted(left), checked=True, rank_values=own)
        ready: Ready | None = None
        for _ in range(_MOST_TEMPLATES):
            ready = await self._spawner.learn(learned)
            if ready is None or not ready.left:
                break
            left = left | ready.left
            learned = replace(learned, left=sorted(left))
        self._record(learned, ready, left, time.monotonic_ns() - began_ns)
        if ready is not None and not ready.left and not ready.problem:
            self._wanted = True  # should this template be lost
            file = _File(key, left, ready.rank_values)
            self._journal.write_text(str(self._path), msgspec.json.encode(file).decode() + "\n")

    def _record(
        self, learned: Learned, ready: Ready | None, left: dict[str, str], took_ns: int
    ) -> None:
        problem = "the template has ended" if ready is None else ready.problem
        if ready is not None and ready.left:
            problem = f"workers could be forked from none of {_MOST_TEMPLATES} templates"
        self._journal.record(
            ImportsLearned(
                t=time.monotonic_ns(),
                modules=0 if problem or ready is None else ready.learned,
                packages=[] if problem else [name for name in learned.packages if name not in left],
                took_ns=took_ns,
                left=left,
                problem=problem,
            )
        )


def _idle_cpus(
    before: Sequence[tuple[int, float]], after: Sequence[tuple[int, float]], seconds: float
) -> float:
    """Return how many CPUs of our control groups' limits nobody has used for a while."""
    if len(before) != len(after):
        return 0.0  # we were moved
    pairs = zip(before, after, strict=True)
    idle = (quota - (then - now) / max(seconds, 0.001) for (_, now), (quota, then) in pairs)
    return min(idle, default=math.inf)


def rank_variables(
    shared: Mapping[str, str], own: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what environments of ranks have beside ``shared``, of rank 1 and of rank 0.

    Each number of the first is another one, so that it can be told which variable a value comes
    from; of the second they are 0.
    """
    values = {
        name: own[name]
        for name, value in sorted(own.items())
        if (shared.get(name) != value or name in TEMPLATE_ENVIRONMENT)
        and not name.startswith("UNDAUNTED_")
    }
    numbers = iter(_PRIMES)
    one, zero = dict(values), dict(values)
    for name, value in values.items():
        if value.isdecimal() and name not in TEMPLATE_ENVIRONMENT:
            one[name] = "1" if name == "RANK" else str(next(numbers, value))
            zero[name] = "2" if name.endswith("SIZE") else "0"
    return one, zero


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


def _is_told(each: RankValue, learned: Learned) -> bool:
    """Whether this comes from a variable of ranks, in a module of theirs."""
    modules = {name for group in learned.groups for name in group.modules}
    return each.module in modules and each.variable in learned.environments[0]


def _key(python: Sequence[str], imports: RankImports) -> str:
    about = msgspec.msgpack.encode([__version__, python, imports])
    return hashlib.sha256(about).hexdigest()


def _read(path: Path) -> _File:
    """Return what the file has; nothing where it is damaged: then it is found out anew."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=_File)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return _File()
