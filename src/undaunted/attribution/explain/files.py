"""From the files of a run, or of a folder without a journal, to the page about it.

The one part of `explain` that reads files; it only says of them who wrote them and what they are.
"""

from __future__ import annotations

import math
import os
import shlex
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from undaunted.attribution.crash import without_frames
from undaunted.attribution.explain.case import (
    Evidence,
    FailureSource,
    case_of,
    failed_rounds,
    passed,
    told_by,
)
from undaunted.attribution.explain.page import MOST_ROUNDS, Page, page_of, page_of_files
from undaunted.attribution.explain.weigh import Case, said_in
from undaunted.attribution.flight.culprits import analyse
from undaunted.attribution.flight.files import (
    newest_iteration,
    one_for_each_rank,
    read_each,
    read_files,
)
from undaunted.attribution.flight.recording import Recording
from undaunted.attribution.hang import RECORDED
from undaunted.attribution.logs.analyse import Reading, read_folder, read_logs
from undaunted.attribution.stacks import innermost_user_frame, parse_traceback
from undaunted.base.shown import Shown
from undaunted.base.text import count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from undaunted.attribution.decision import Round
    from undaunted.journal.events import Verdict
    from undaunted.journal.job.launches import Launch
    from undaunted.journal.job.values import JobRound, JobSummary

_Thing = Literal["file", "folder", "hidden", "odd"]

_NOT_KEPT = (
    "what the ranks have printed: their output was not kept; --tee 3 keeps it and shows it as "
    "well, --log-dir says where"
)
_MOST_FILES = 4096
_MOST_PROBLEMS = 3  # said
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_LOGS = (".log", ".txt", ".out", ".err")
_HEAD = 4096  # bytes at both ends of a file tell what it is
_KEYS = (b'"pg_config"', b'"entries"')  # of a dump
_NO_LOGS = (".py", ".pyc", ".sh", ".yaml", ".yml", ".toml", ".md", ".html", ".csv", ".cfg", ".ini")


class NoFilesError(Exception):
    """There is nothing to read; the text says why."""


def page_of_run(
    path: Path, job: JobSummary, launches: Sequence[Launch], problems: Sequence[str]
) -> Page:
    """Return the page about a run.

    Args:
        path: directory of the run, or one journal.
        job: its summary.
        launches: of the job.
        problems: of its journals.

    Raises:
        OSError: a file of the run cannot be read.
    """
    run_dir = path if path.is_dir() else path.parent
    failed = failed_rounds(job)
    lines = _journal_lines(told for one in failed if (told := told_by(one, launches)))
    recorded = read_each(_sorted_out(run_dir.iterdir()).dumps) if failed else []
    rounds: list[Case | Round] = []
    for one in job.rounds:
        if one not in failed:
            rounds.append(passed(one))
            continue
        evidence = Evidence()
        if one in failed[-MOST_ROUNDS:]:
            evidence = _evidence(run_dir, one, launches, _of_round(job, one, recorded))
        rounds.append(
            case_of(job, one, launches, evidence, lambda told: _place(told, run_dir, lines))
        )
    return page_of(path, job, rounds, [*filter(None, [job.other_runs]), *problems])


def _journal_lines(tellers: Iterable[FailureSource]) -> dict[tuple[Path, int], int]:
    """Return on which line of its journal each event stands, by file and time."""
    wanted: dict[Path, dict[bytes, int]] = {}
    for told in tellers:
        key = f'"t":{told.event.t},'.encode()
        wanted.setdefault(told.launch.path, {})[key] = told.event.t
    found = {}
    for path, keys in wanted.items():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                key = b'"t":' + line.partition(b'"t":')[2].partition(b",")[0] + b","
                if key in keys:
                    found[path, keys[key]] = number
    return found


def _place(
    told: FailureSource, run_dir: Path, lines: dict[tuple[Path, int], int]
) -> tuple[str, str]:
    """Return what shows the failure, and where: the stack of a hang, else the journal."""
    verdict = told.verdict
    if verdict and verdict.kind == "hang" and verdict.frame and (file := _stacks(told, run_dir)):
        found = _frame(file, verdict.rank, verdict.frame)
        if found:
            return found
    line = lines.get((told.launch.path, told.event.t))
    quote = without_frames(verdict.exception) if verdict else ""
    return quote, f"{told.launch.path}:{line}" if line else str(told.launch.path)


def _program(told: FailureSource, verdict: Verdict, run_dir: Path) -> str:
    """Return where the program was, with the path of the file where that is known."""
    frame = innermost_user_frame(parse_traceback(verdict.traceback))
    if frame is not None and str(frame) == verdict.frame:
        return f'File "{frame.file}", line {frame.line} in {frame.function}'
    file = _stacks(told, run_dir)
    found = _frame(file, verdict.rank, verdict.frame) if file else None
    return found[0] if found else verdict.frame


def _stacks(told: FailureSource, run_dir: Path) -> Path | None:
    if told.verdict is None or not told.verdict.stacks:
        return None
    written = Path(told.verdict.stacks)
    return next((each for each in (written, run_dir / written.name) if _what(each) == "file"), None)


def _frame(file: Path, rank: int, frame: str) -> tuple[str, str] | None:
    """Find a frame, ``load (train.py:5)``, in the stack of a rank."""
    name, _, place = frame.removesuffix(")").rpartition(" (")
    source, _, number = place.rpartition(":")
    inside = False
    with file.open(encoding="utf-8", errors="replace") as stacks:
        for line_no, line in enumerate(stacks, 1):
            if line.startswith("--- rank "):
                inside = line.startswith(f"--- rank {rank},")
            elif inside and line.rstrip().endswith(f'{source}", line {number} in {name}'):
                return line.strip(), f"{file}:{line_no}"
    return None


def _of_round(
    job: JobSummary, one: JobRound, recorded: Sequence[tuple[Path, Recording | str]]
) -> list[tuple[Path, Recording]]:
    """Return the recordings of which the last call was in the round."""
    start = job.started_wall or 0.0
    begin = start + one.began_ns / 1e9
    end = math.inf if one.stopped_ns is None else start + one.stopped_ns / 1e9
    return [
        (file, each)
        for file, each in recorded
        if isinstance(each, Recording) and begin <= each.called <= end
    ]


def _evidence(
    run_dir: Path,
    one: JobRound,
    launches: Sequence[Launch],
    recorded: Sequence[tuple[Path, Recording]],
) -> Evidence:
    """Return what logs and recordings say of a round, and what is missing."""
    files, unknown = _logs(run_dir, one, launches)
    kernel_logs = _kernel_logs(run_dir, one)
    files |= {file: (-1, node) for file, node in kernel_logs.items()}
    findings = [
        said_in(each, *files.get(Path(each.source.rpartition(":")[0]), (-1, "")))
        for each in _read(files, names=False).findings
    ]
    unknown += [f"what is in {file}: it may not be read" for file in _closed(files)]
    look = []
    told = told_by(one, launches)
    if told and (stacks := _stacks(told, run_dir)):
        look.append(f"stacks of all ranks: {stacks}")
    if told and told.verdict and told.verdict.frame:
        look.append(f"the program: {_program(told, told.verdict, run_dir)}")
    rank = one.failure.rank if one.failure else -1
    look += [f"its output: {file}" for file, who in files.items() if who[0] == rank]
    look += [f"what the kernel logged meanwhile: {file}" for file in kernel_logs]
    if recorded:
        dumps = one_for_each_rank(recorded)
        findings += analyse(dumps.recordings, one.world_size).findings()
        look.append(f"recordings of collectives: undaunted flight {_quoted(recorded[0][0].parent)}")
    elif one.failure and one.failure.kind == "hang" and RECORDED not in one.failure.line:
        unknown.append(
            "which collectives the ranks were in: no dumps of the Flight Recorder here are of "
            "this round; "
            "TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
            f"TORCH_FR_DUMP_TEMP_FILE={run_dir.absolute()}/dump_ let torch leave them"
        )
    look.append(f"all of the round: undaunted report {_quoted(run_dir)} --round {one.round}")
    return Evidence(tuple(findings), tuple(look), tuple(unknown))


def _quoted(path: Path) -> str:
    """Return a path as a shell takes it."""
    return shlex.quote(str(path))


def _logs(
    run_dir: Path, one: JobRound, launches: Sequence[Launch]
) -> tuple[dict[Path, tuple[int, str]], list[str]]:
    """Return the log files of a round with their ranks and nodes, and why some are missing."""
    files: dict[Path, tuple[int, str]] = {}
    gone = []
    kept = False
    for part in one.parts:
        started = launches[part.launch].state.job
        if started is None or not started.log_dir:
            continue
        kept = True
        written = Path(started.log_dir)
        places = (written, run_dir / written.name)
        log_dir = next((each for each in places if _what(each) == "folder"), None)
        if log_dir is None:
            gone.append(str(written))
            continue
        for file in sorted(log_dir.glob(f"*_cycle{one.round}.*")):  # of all ranks
            files[file] = (-1, part.node)
        for local_rank, rank in enumerate(part.ranks):
            for file in sorted((log_dir / f"attempt_{one.round}" / str(local_rank)).glob("*.log")):
                if file.stat().st_size and len(files) < _MOST_FILES:
                    files[file] = (rank, part.node)
    if not kept:
        return files, [_NOT_KEPT]
    if gone:
        return files, [f"what the ranks have printed: {gone[0]} is not to be found here"]
    return files, [] if files else ["what the ranks have printed: nothing is in their logs"]


def _kernel_logs(run_dir: Path, one: JobRound) -> dict[Path, str]:
    """Return the files with what the kernels of its nodes have logged, and the nodes."""
    found = {}
    for part in one.parts:
        for name in (f"kernel-round{one.round}-{part.node}.log", f"kernel-round{one.round}.log"):
            if _what(file := run_dir / name) == "file":
                found[file] = part.node
    return found


# --- a folder without a journal -------------------------------------------------------------------


class _Files(msgspec.Struct, frozen=True):
    """Files by what they look like, and what is left out."""

    logs: list[Path]
    dumps: list[Path]
    problems: list[str]


def page_of_folder(path: Path) -> Page:
    """Return the page about a job that did not run under undaunted, or has no journal.

    Args:
        path: a folder of logs and dumps, or one of them.

    Raises:
        NoFilesError: there are none.
        OSError: there is no such path.
    """
    files = _sorted_out(path.rglob("*") if path.is_dir() else [path])
    newest = newest_iteration(files.dumps)
    read = read_files(newest)
    problems = [*files.problems, *(f"{one.file}: {one.text}" for one in read.problems)]
    if older := sorted({*files.dumps}.difference(newest)):
        problems.append(
            f"left out: {count(len(older), 'dump')} of earlier iterations; the last is {older[-1]}"
        )
    if not files.logs and not read.recordings:
        raise NoFilesError(_nothing(path, problems))
    reading = _read(files.logs, names=True)
    findings = list(reading.findings)
    look, unknown = [], []
    if read.recordings:
        findings += analyse(read.recordings).findings()
        look.append(f"recordings of collectives: undaunted flight {_quoted(newest[0].parent)}")
    else:
        unknown.append("which collectives the ranks were in: no dumps of the Flight Recorder here")
    if not files.logs:
        unknown.append("what the ranks have printed: there are no logs here")
    evidence = Evidence(tuple(findings), tuple(look), tuple(unknown))
    read_from = {"log": len(files.logs), "dump": len(read.recordings)}
    return page_of_files(path, reading, evidence, read_from, problems)


def _nothing(path: Path, problems: Sequence[str]) -> str:
    """Say why there is nothing to read."""
    path.stat()  # says so if it is not there
    if not path.is_dir() and not path.is_file():
        return f"{path} is no regular file and no folder"
    if problems:
        return f"nothing in {path} can be read: {'; '.join(problems[:_MOST_PROBLEMS])}"
    return (
        f"{path} holds no journal, no logs and no dumps; name the directory of a run, or a "
        "folder with the logs of the ranks"
    )


def _read(files: Collection[Path], *, names: bool) -> Reading:
    with Shown(f"reading {count(len(files), 'log')}") as shown:
        shown.expect(sum(map(_size, files)))
        paths = [str(file) for file in files]
        if names:
            return read_folder(paths, shown.advance)
        return read_logs(paths, names=False, advance=shown.advance)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # it may be gone
        return 0


def _sorted_out(paths: Iterable[Path]) -> _Files:
    """Sort files by what they look like; folders are passed over."""
    found = sorted(islice(paths, _MOST_FILES))
    things: dict[_Thing, list[Path]] = {"file": [], "folder": [], "hidden": [], "odd": []}
    for each in found:
        things[_what(each)].append(each)
    problems = [
        f"left out: {count(len(left), 'file')} ({why}); the first is {left[0]}"
        for left, why in (
            (things["odd"], "pipe, device, or link to nothing"),
            ([*things["hidden"], *_closed(things["file"])], "not to be read"),
            ([*filter(_is_compressed, things["file"])], "compressed: unpack it first"),
        )
        if left
    ]
    if len(found) == _MOST_FILES:
        problems.append(f"only {_MOST_FILES} files are read")
    by_kind: dict[str, list[Path]] = {"log": [], "dump": [], "": []}
    for each in things["file"]:
        by_kind[_kind(each)].append(each)
    return _Files(by_kind["log"], by_kind["dump"], problems)


def _what(path: Path) -> _Thing:
    """Say what a path or the target of a link is; hidden: in a folder that this user cannot enter.

    Odd is anything else: a pipe, a link to nothing or to a hidden place, a name that is too long.
    """
    try:
        mode = path.stat().st_mode
    except PermissionError:
        with suppress(OSError):
            path.lstat()
            return "odd"
        return "hidden"
    except (OSError, ValueError):  # a journal that was tampered with may name a path with a zero
        return "odd"
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "odd"


def _closed(files: Iterable[Path]) -> list[Path]:
    """Return the files that this user may not read."""
    return [file for file in files if not os.access(file, os.R_OK)]


def _is_compressed(file: Path) -> bool:
    return file.suffix in _COMPRESSED and Path(file.stem).suffix in _LOGS


def _kind(file: Path) -> str:
    """Say what a file looks like: ``log``, ``dump``, or "" for anything else."""
    if file.name.startswith((".", "journal-", "stacks-")) or file.suffix in _NO_LOGS:
        return ""
    try:
        with file.open("rb") as opened:
            head = opened.read(_HEAD)
            opened.seek(max(0, file.stat().st_size - _HEAD))
            tail = opened.read(_HEAD)
    except OSError:
        return ""
    is_json = head[:1] == b"{" and any(key in head + tail for key in _KEYS)
    if head[:1] == b"\x80" or is_json:
        return "dump"
    return "log" if head and b"\0" not in head and file.suffix != ".json" else ""
