"""A directory of dumps, one for each rank: which rank each is of, and what all of them say."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.flight.reader import RECORDING
from undaunted.attribution.flight.recording import MOST_RANKS, NotADumpError, Recording, decode
from undaunted.base.child import Program, Programs
from undaunted.base.process import module_command
from undaunted.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_PROGRAM = "undaunted.attribution.flight.reader"
_LARGEST = 4 << 20  # bytes of a recording
_SILENCE_S = 60.0  # of the program; its own alarm ends it after half of that
_MOST_PROCESSES = 8
_MOST_DEATHS = 8  # of processes that read one share of the files
_MOST_FILES = 1 << 17
# _dump_3, nccl_trace_rank_3, rank_3.json, rank3.pkl
_AT_END = re.compile(r"(?<!\d)(\d{1,7})$")
_ITERATION = re.compile(r"iter_(\d{1,9})")
# Behind "rank" a host may stand, whose name or address begins with a digit.
_NAMED = re.compile(r"rank[_\-=]?(\d{1,7})(?!\d|\.\d|(?!of)[a-z])", re.IGNORECASE)
_SUFFIXES = re.compile(r"(\.(json|pkl|pickle|pt|bin|dump|trace))+$", re.IGNORECASE)


class Problem(msgspec.Struct, frozen=True):
    """A file that says nothing."""

    file: str
    text: str


class Dumps(msgspec.Struct, frozen=True):
    """The dumps of a directory.

    Attributes:
        recordings: one for each rank, by rank.
        problems: files that are no dumps, or of no rank.
    """

    recordings: list[Recording]
    problems: list[Problem]


def rank_of(name: str) -> int:
    """Return the rank that a file's name says (``rank_3``), or ends with; -1 = none."""
    stem = _SUFFIXES.sub("", name)
    match = _NAMED.search(stem) or _AT_END.search(stem)
    return int(match[1]) if match else -1


def ranks_of(names: Sequence[str]) -> list[int]:
    """Return ranks as `rank_of`, or what names end with if only that tells all of them apart.

    Args:
        names: of files of one job.
    """
    ranks = [rank_of(name) for name in names]
    ends = [_AT_END.search(_SUFFIXES.sub("", name)) for name in names]
    last = [int(end[1]) for end in ends if end]
    is_of_host = len(set(ranks)) < len(set(last)) == len(names)
    return last if is_of_host else ranks


def read_folders(paths: Iterable[Path]) -> Dumps | None:
    """Read the dumps of directories that nodes have; None: they are not of one moment of a job."""
    files = [
        file
        for path in paths
        for file in sorted(path.iterdir())
        if not file.name.startswith(".") and not file.is_dir()
    ]
    ranks = ranks_of([file.name for file in files])
    is_one = len(set(ranks)) == len(files) <= _MOST_FILES and min(ranks, default=-1) >= 0
    return one_for_each_rank(read_ranked(list(zip(ranks, files, strict=True)))) if is_one else None


def read_directory(path: Path) -> Dumps:
    """Read all files of a directory; subdirectories and names that begin with a dot are left out.

    Raises:
        OSError: the directory cannot be read.
    """
    names = sorted(name for name in os.listdir(path) if not name.startswith("."))
    files = [file for name in names if not (file := path / name).is_dir()]
    found = read_files(files[:_MOST_FILES])
    if left_out := files[_MOST_FILES:]:
        text = f"{len(left_out)} files from this one on are not read: at most {_MOST_FILES} are"
        found.problems.append(Problem(printable(left_out[0].name), text))
    return found


def newest_iteration(files: Sequence[Path]) -> list[Path]:
    """Leave out dumps of earlier iterations: a restart inside the process writes ``iter_3/``."""
    iterations = {file: _iteration(file) for file in files}
    newest = max(iterations.values(), default=-1)
    return [file for file in files if iterations[file] in {-1, newest}]


def _iteration(file: Path) -> int:
    match = _ITERATION.fullmatch(file.parent.name)
    return int(match[1]) if match else -1


def read_files(files: Sequence[Path]) -> Dumps:
    """Read dumps, some at a time, and keep one for each rank."""
    return one_for_each_rank(read_each(files))


def read_each(files: Sequence[Path]) -> list[tuple[Path, Recording | str]]:
    """Read dumps, some at a time: what each holds, or why it says nothing."""
    ranks = ranks_of([file.name for file in files])
    return read_ranked(list(zip(ranks, files, strict=True)))


def read_ranked(todo: Sequence[tuple[int, Path]]) -> list[tuple[Path, Recording | str]]:
    """Like `read_each`, of files of which the ranks are known."""
    # Large ones that lie together are spread.
    processes = max(1, min(len(os.sched_getaffinity(0)), _MOST_PROCESSES, len(todo)))
    shares = [todo[place::processes] for place in range(processes)]
    # Who interrupts this does not wait for the programs.
    with ThreadPoolExecutor(processes) as pool, Programs() as programs:
        read = partial(_read_share, programs)
        said = [one for share in pool.map(read, shares) for one in share]
    return sorted(said, key=lambda one: one[0])


def one_for_each_rank(said: Iterable[tuple[Path, Recording | str]]) -> Dumps:
    """Keep the first one of each rank of what `read_each` has read."""
    by_rank: dict[int, Recording] = {}
    file_of: dict[int, Path] = {}
    problems = []
    for file, one in said:
        if isinstance(one, str):
            problems.append(Problem(printable(file.name), one))
        elif one.rank < 0:
            problems.append(
                Problem(
                    printable(file.name),
                    "its rank is not known: name it after that, as in rank_3.json",
                )
            )
        elif one.rank >= MOST_RANKS:
            text = f"passed over: it is of rank {one.rank}; ranks up to {MOST_RANKS - 1} are judged"
            problems.append(Problem(printable(file.name), text))
        elif one.rank in by_rank:
            text = f"passed over: {file_of[one.rank].name} is of rank {one.rank}, too"
            problems.append(Problem(printable(file.name), text))
        else:
            by_rank[one.rank], file_of[one.rank] = one, file
    return Dumps([by_rank[rank] for rank in sorted(by_rank)], problems)


def _read_share(
    programs: Programs, share: list[tuple[int, Path]]
) -> list[tuple[Path, Recording | str]]:
    """Read files by one process after the other: each file that ends one costs itself alone."""
    said: list[tuple[Path, Recording | str]] = []
    for _ in range(_MOST_DEATHS):
        rest = share[len(said) :]
        if not rest:
            return said
        said += _by_one_process(programs, rest)
        if len(said) < len(share):
            text = "refused: reading it takes too much time or memory"
            said.append((share[len(said)][1], text))
    return said + [
        (file, "not read: too many others could not be") for _, file in share[len(said) :]
    ]


def _by_one_process(
    programs: Programs, share: list[tuple[int, Path]]
) -> list[tuple[Path, Recording | str]]:
    words = [word for rank, file in share for word in (str(rank).encode(), os.fsencode(file))]
    program = Program(
        module_command(_PROGRAM),
        limit_s=_SILENCE_S * (len(share) + 1),
        silence_s=_SILENCE_S,
        given=b"".join(word + b"\0" for word in words),
        most=_LARGEST * len(share),
    )
    said = memoryview(programs.run(program).output)
    found: list[tuple[Path, Recording | str]] = []
    for _, file in share:
        length = int.from_bytes(said[:4], "big")
        data, said = bytes(said[4 : 4 + length]), said[4 + length :]
        if not 0 < length <= _LARGEST or len(data) < length:
            break
        found.append((file, _recording(data)))
    return found


def _recording(data: bytes) -> Recording | str:
    if data[:1] != RECORDING:
        return data[1:].decode("utf-8", "replace")
    try:
        return decode(data[1:])
    except NotADumpError as error:
        return str(error)
