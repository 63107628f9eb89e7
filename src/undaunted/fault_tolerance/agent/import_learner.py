"""Has the ranks of restarts find imported what the ranks of this round have imported.

A rank that is under way is asked (`worker.import_notes`), and a second template imports the same
(`worker.warm_imports`), from which workers are forked once it has. See docs/design/warm-imports.md.
What had to be left out is kept in the run directory, for the same packages in the same versions.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted import __version__
from undaunted.base.deadline import within
from undaunted.fault_tolerance.worker import import_notes
from undaunted.fault_tolerance.worker.messages import Learned, Ready, Renewed
from undaunted.fault_tolerance.worker.witness import IMPORTS
from undaunted.journal.events import ImportsLearned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.fault_tolerance.agent.processes import Workers
    from undaunted.fault_tolerance.agent.recordings import Recordings
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.fault_tolerance.worker.import_notes import Told
    from undaunted.fault_tolerance.worker.spawner import Spawner
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.area import PageArea

# The first step imports as well. One that is not known of, or takes long, is waited for that long.
_LOOKS_S = (3.0, 6.0, 12.0, 24.0, 48.0)
# Each starts with all imports; a package is left out with those that import it.
_MOST_TEMPLATES = 8
_READ_S = 1.0
_MOST_BYTES = 1 << 20
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


class _File(msgspec.Struct, frozen=True):
    """What was found for packages of these versions. ``left``: what is not imported, and why."""

    key: str = ""
    left: dict[str, str] = {}
    renewed: list[Renewed] = []


class ImportLearner:
    """Learns until it has come to something or to nothing. Owns its task, not the template."""

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
        self._path = Path(config.run_dir, f"learned-imports-{config.node}.json")
        self._wanted = config.learn_imports == "on"
        self._task: asyncio.Task[None] | None = None

    def begin(self, current: Round, environment: Mapping[str, str]) -> None:
        """The ranks of this round run.

        Args:
            current: the round.
            environment: what those of all ranks have in common.
        """
        if self._wanted and not self._spawner.has_learned:
            self.close()  # those of a round that was too short to ask
            self._task = asyncio.get_running_loop().create_task(self._learn(current, environment))

    def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
        self._task = None

    async def _learn(self, current: Round, environment: Mapping[str, str]) -> None:
        for delay in _LOOKS_S:
            await asyncio.sleep(delay)
            if self._step():
                break
        ranks = (self._workers.all[0], self._workers.all[-1])
        answers = await self._recordings.ask_idly((rank.pid for rank in ranks), IMPORTS)
        told = [import_notes.decode(answers.get(rank.pid) or b"") for rank in ranks]
        if told[0] is None or told[1] is None:
            return  # they may be asked in the next round
        self._wanted = False
        own = rank_variables(environment, current.specs[-1].env)
        await self._have_imported(told[0], disagreement(told[0], told[1]), own)

    def _step(self) -> bool:
        """Whether some rank is in its second step."""
        pages = (self._area.snapshot(rank.local_rank) for rank in self._workers.all)
        return any(
            page.iteration is not None
            and page.first_iteration is not None
            and page.iteration > page.first_iteration
            for page in pages
        )

    async def _have_imported(
        self, told: Told, left: dict[str, str], environment: dict[str, str]
    ) -> None:
        key = _key(told)
        known = within(_READ_S, lambda: _read(self._path), _File())
        renewed, checked = (known.renewed, True) if known.key == key else ([], False)
        left = left | known.left if checked else left
        ready: Ready | None = None
        for _ in range(_MOST_TEMPLATES):
            learned = Learned(
                groups=told.groups,
                left=sorted(left),
                environment=environment,
                checked=checked,
                renewed=renewed,
            )
            ready = await self._spawner.learn(learned)
            if ready is None or not ready.left or "" in ready.left:
                break
            left = left | ready.left
        self._record(told, ready, left)
        if ready is not None and not ready.left:
            self._wanted = True  # should this template be lost
            file = _File(key, left, ready.renewed)
            self._journal.write_text(str(self._path), msgspec.json.encode(file).decode() + "\n")

    def _record(self, told: Told, ready: Ready | None, left: dict[str, str]) -> None:
        problem = "the template ended" if ready is None else ready.left.get("", "")
        if ready is not None and ready.left and not problem:
            problem = f"{_MOST_TEMPLATES} templates in a row could not be forked from"
        self._journal.record(
            ImportsLearned(
                t=time.monotonic_ns(),
                modules=0 if problem or ready is None else ready.learned,
                packages=[] if problem else [name for name in told.packages if name not in left],
                import_ns=ready.import_ns if ready is not None else 0,
                left=left,
                problem=problem,
            )
        )


def rank_variables(shared: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return what a rank's environment has beside ``shared``, each number another one.

    So it can be told which variable a value comes from. RANK is 1.
    """
    names = sorted(
        name
        for name, value in own.items()
        if shared.get(name) != value and not name.startswith("UNDAUNTED_")
    )
    numbers = iter(_PRIMES)
    values = {name: own[name] for name in names}
    for name, value in values.items():
        if value.isdecimal():
            values[name] = "1" if name == "RANK" else str(next(numbers, value))
    return values


def disagreement(one: Told, other: Told) -> dict[str, str]:
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


def _key(told: Told) -> str:
    about = [__version__, sys.version, told.groups, told.packages]
    return hashlib.sha256(msgspec.msgpack.encode(about)).hexdigest()


def _read(path: Path) -> _File:
    """Return what the file has; nothing where it is damaged: then it is found out anew."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=_File)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return _File()
