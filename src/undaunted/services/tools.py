"""Questions of assistants about runs and logs: read only, and below the roots. No protocol here.

Commands of ours do the reading, each in a separate process with a deadline and a limit of memory,
which the kernel lets read below the roots alone. A run is looked at before, to say what in it leads
outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections import OrderedDict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from undaunted.base.child import Program, run_async
from undaunted.base.deadline import off_loop
from undaunted.base.landlock import confined
from undaunted.base.process import module_command
from undaunted.base.roots import RefusedError
from undaunted.base.text import one_line
from undaunted.journal.events import JobStarted
from undaunted.journal.lines import MAX_LINE, decode
from undaunted.journal.reader import find_journals
from undaunted.services import answers
from undaunted.services.results import Log, Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from undaunted.base.roots import Opened, Roots
    from undaunted.services.analysts import Analyst
    from undaunted.services.results import LogResult

T = TypeVar("T")

LIMIT_S = 60.0
_LOOK_S = 30.0  # at files and folders, before a command reads them
_MOST_LOOKS = 32
_MEMORY = 2 << 30  # bytes of addresses of a command
_LONGEST = 1 << 20  # bytes of an answer
_MOST_RUNS = 100
_JOURNALS = ("journal-*.jsonl", "*/journal-*.jsonl", "*/*/journal-*.jsonl")
_MOST_ENTRIES = 20_000  # of a run, or of a folder of runs
_MOST_RESULTS = 100
_LONGEST_STACKS = 64 << 10  # bytes
_STACKS_ROUND = re.compile(r"stacks-round(\d+)[-.].*txt$")


class ToolError(Exception):
    """A question that cannot be answered; the message says why and what to do."""


class Tools:
    """The tools. Used on one loop.

    Args:
        roots: below which anything is read.
        analyst: reads single logs.
    """

    def __init__(self, roots: Roots, analyst: Analyst) -> None:
        self._roots = roots
        self._analyst = analyst
        self._results: OrderedDict[tuple[str, str], dict[str, Any]] = OrderedDict()
        self._made = 0
        self._slots = asyncio.Semaphore(_MOST_LOOKS)

    # --- runs -------------------------------------------------------------------------------------

    async def list_runs(self, folder: str = "") -> list[dict[str, Any]]:
        """List directories of runs, the newest first: path, and when it was last written.

        Args:
            folder: to look in, absolute; "" = in all roots.
        """
        return await self._look(lambda: self._runs(folder))

    async def explain_failure(self, run: str) -> dict[str, Any]:
        """Say what happened in a run, which rank or node it was, why, with quotes, and what next.

        Args:
            run: directory of the run, absolute; or a folder with logs of a job, or one log.
        """
        return await self._command("explain", run, "--json")

    async def advice(self, run: str) -> dict[str, Any]:
        """Say what is best done after the last failure of a run, and after those before.

        Args:
            run: as of explain_failure.
        """
        page = await self.explain_failure(run)
        rounds = [{"name": one["name"], **one["advice"]} for one in page["rounds"]]
        return {"conclusion": page["conclusion"], "rounds": rounds}

    async def timeline(self, run: str) -> str:
        """Show the rounds of a run: times, what ended each, and what the restarts cost.

        Args:
            run: directory of the run, absolute.
        """
        said = await self._command("report", run)
        return str(said["text"])

    async def stacks(self, run: str, round_number: int = -1) -> str:
        """Show what all ranks were doing when a limit was passed: their stacks, the first 64 kB.

        Args:
            run: directory of the run, absolute.
            round_number: of which round; -1 = the last one that has stacks.
        """
        return await self._look(lambda: self._stacks(run, round_number))

    # --- as NVRx has them -------------------------------------------------------------------------

    async def log_analyzer(self, log_path: str) -> dict[str, Any]:
        """Say what one log tells of, and whether to start the job again.

        Args:
            log_path: the log, absolute.
        """
        told = await self._told(log_path)
        return self._keep("log_analyzer", {"log_path": log_path, **_log_result(log_path, told)})

    async def fr_analyzer(self, fr_path: str) -> dict[str, Any]:
        """Say which ranks keep the others waiting, from dumps of torch's Flight Recorder.

        Args:
            fr_path: directory of the dumps, or one dump; absolute.
        """
        found = await self._dumps(fr_path)
        return self._keep("fr_analyzer", {"fr_path": fr_path, **found})

    async def log_fr_analyzer(self, log_path: str, fr_path: str) -> dict[str, Any]:
        """Say what a log and dumps of the Flight Recorder tell of the same failure.

        Args:
            log_path: as of log_analyzer.
            fr_path: as of fr_analyzer.
        """
        told, found = await self._told(log_path), await self._dumps(fr_path)
        return self._keep("log_fr_analyzer", {"log": _log_result(log_path, told), "fr": found})

    async def get_result(self, module: str, result_id: str) -> dict[str, Any]:
        """Return an earlier answer of an analyzer once more.

        Args:
            module: name of the analyzer.
            result_id: as the answer had it.
        """
        found = self._results.get((module, result_id))
        if found is None:
            kept = ", ".join("/".join(key) for key in self._results) or "none"
            raise ToolError(f"there is no result {module}/{result_id}; there are: {kept}")
        return found

    async def status(self) -> dict[str, Any]:
        """Say what may be read, and which results are kept."""
        kept = [{"module": module, "result_id": number} for module, number in self._results]
        return {"status": "ok", "allowed_roots": list(self._roots.folders), "results": kept}

    async def close(self) -> None:
        """End what reads logs."""
        await self._analyst.close()

    # --- inside -----------------------------------------------------------------------------------

    async def _command(self, name: str, target: str, *words: str) -> dict[str, Any]:
        """Run a command of ours about something below the roots; text comes back as ``text``."""
        real = str(await self._look(lambda: self._checked(target)))
        command = module_command("undaunted.cli.main", name, *words, "--", real)
        argv = confined(self._roots.folders, command)
        end = await run_async(Program(argv, LIMIT_S, memory=_MEMORY, most=_LONGEST))
        if end.code is None:
            raise ToolError(f"{name} of {real} takes longer than {LIMIT_S:g} s")
        if end.cut:
            raise ToolError(f"{name} of {real} says more than {_LONGEST >> 20} MiB")
        if end.code:
            raise ToolError(one_line(end.errors.decode(errors="replace")) or f"{name} has failed")
        said = end.output.decode(errors="replace")
        return json.loads(said) if "--json" in words else {"text": said}

    async def _look(self, call: Callable[[], T]) -> T:
        """Look at files, without holding up others where a disk hangs."""
        try:
            return await off_loop(self._slots, _LOOK_S, call)
        except TimeoutError:
            raise ToolError("the file system does not answer; ask again later") from None

    async def _told(self, log_path: str) -> LogResult:
        told = await self._analyst.read(log_path, (0, 0, 0))
        if told.problem:
            raise ToolError(told.problem)
        return told

    async def _dumps(self, fr_path: str) -> dict[str, Any]:
        found = await self._command("flight", fr_path, "--json")
        ranks = sorted({one["rank"] for one in found["culprits"]})
        return {"hanging_ranks": ranks, "analysis": found}

    def _keep(self, module: str, result: dict[str, Any]) -> dict[str, Any]:
        self._made += 1
        answer = {"module": module, "result_id": str(self._made), **result}
        self._results[module, str(self._made)] = answer
        if len(self._results) > _MOST_RESULTS:
            self._results.popitem(last=False)
        return answer

    def _folder(self, path: str) -> Path:
        is_path = path.startswith("/") and "\0" not in path
        real = os.path.realpath(path) if is_path else ""
        if not is_path or not self._roots.has(real):
            below = ", ".join(self._roots.folders)
            raise ToolError(f"{one_line(path)} is not below {below}; name an absolute path there")
        if not _is_folder(real):
            raise ToolError(f"{one_line(path)} is no folder")
        return Path(real)

    def _checked(self, path: str) -> Path:
        """Return the real path of a file, or of a folder in which nothing leads outside.

        Raises:
            ToolError: it is outside, or something in it leads there.
        """
        if not _is_folder(path):
            opened = self._open(path)
            os.close(opened.fd)
            return Path(opened.path)
        real = self._folder(path)
        for entry in _entries(real):
            if entry.is_symlink() and not self._roots.has(os.path.realpath(entry)):
                raise ToolError(f"{entry} leads outside of what may be read")
        for journal in find_journals(real):
            for log_dir in self._log_dirs(journal):
                if not self._may_look_at(log_dir):
                    raise ToolError(
                        f"the logs of this run are in {one_line(log_dir)}, which may not be read; "
                        "--allowed-root allows it"
                    )
        return real

    def _open(self, path: str) -> Opened:
        try:
            return self._roots.open(path)
        except RefusedError as error:
            raise ToolError(f"{error.code}: {error}") from None

    def _log_dirs(self, journal: Path) -> Iterator[str]:
        """Yield where a journal says that logs are; one line is in memory at a time."""
        with os.fdopen(self._open(str(journal)).fd, "rb") as file:
            for line in iter(lambda: file.readline(MAX_LINE), b""):
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    event = decode(line)
                    if isinstance(event, JobStarted) and event.log_dir:
                        yield event.log_dir

    def _may_look_at(self, path: str) -> bool:
        return self._roots.has(os.path.realpath(path)) or not Path(path).exists()

    def _runs(self, folder: str) -> list[dict[str, Any]]:
        folders = [self._folder(folder)] if folder else [*map(Path, self._roots.folders)]
        newest: dict[Path, float] = {}
        found = (path for folder in folders for name in _JOURNALS for path in folder.glob(name))
        for journal in islice(found, _MOST_ENTRIES):
            real = Path(os.path.realpath(journal))
            if self._roots.has(str(real)):
                with contextlib.suppress(OSError):
                    t = real.stat().st_mtime
                    newest[journal.parent] = max(t, newest.get(journal.parent, 0.0))
        runs = sorted(newest, key=newest.__getitem__, reverse=True)[:_MOST_RUNS]
        return [{"run": str(run), "written_t": newest[run]} for run in runs]

    def _stacks(self, run: str, round_number: int) -> str:
        folder = self._folder(run)
        files = _stacks_of(folder, "*" if round_number < 0 else str(round_number))
        if not files:
            of = "" if round_number < 0 else f" of round {round_number}"
            raise ToolError(f"{folder} has no stacks{of}: stacks are kept when a limit is passed")
        if round_number < 0:
            newest = max(files, key=lambda file: file.lstat().st_mtime)
            files = _stacks_of(folder, _STACKS_ROUND.findall(newest.name)[0])
        of_limit = [file for file in files if not file.stem.endswith("-early")]
        files = sorted(of_limit or files)
        parts = [self._beginning(file, _LONGEST_STACKS // len(files)) for file in files]
        if len(files) == 1:
            return parts[0]
        named = (f"## {file.name}\n{part}\n" for file, part in zip(files, parts, strict=True))
        return "\n".join(named)[:_LONGEST_STACKS]

    def _beginning(self, file: Path, size: int) -> str:
        with os.fdopen(self._open(str(file)).fd, "rb") as opened:
            return opened.read(size).decode(errors="replace")


def _stacks_of(folder: Path, number: str) -> list[Path]:
    """Return the files of a round, or of "*": of each node, and of early looks."""
    found = islice(folder.glob(f"stacks-round{number}[-.]*"), _MOST_ENTRIES)
    return [file for file in found if _STACKS_ROUND.match(file.name)]


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):  # a name that is too long, or none
        return False


def _entries(folder: Path) -> Iterator[Path]:
    """Yield what is below a folder; links are not followed.

    Raises:
        ToolError: there is too much.
    """
    found = (
        Path(above, name)
        for above, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )
    yield from islice(found, _MOST_ENTRIES)
    if next(found, None) is not None:
        raise ToolError(f"more than {_MOST_ENTRIES} files are below {folder}; name one run")


def _log_result(path: str, told: LogResult) -> dict[str, Any]:
    found: dict[str, Any] = answers.result(Results(), Log(path, told=told))["result"]
    return found
