"""A program that reads logs, one after the other, and says what they tell of.

Nothing in a log is trusted: it may be huge, or made so that reading it takes for ever. This process
has a limit of memory, and is killed by the one that asks when a log takes too long.

Where a log says only that ranks have waited, dumps of torch's Flight Recorder tell for whom. They
are looked for where the log says, and beside it; those count that were written when it ended.

Arguments: the folders below which files may be read, and the descriptor of a socket. On it come
`Question` in JSON, one a line, and it answers each with an `Answer`, a line as well.
"""

from __future__ import annotations

import os
import posixpath
import resource
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.findings import CAUSES, worst_first
from undaunted.attribution.flight import culprits
from undaunted.attribution.flight.files import one_for_each_rank, rank_of, ranks_of, read_ranked
from undaunted.attribution.logs.analyse import read_folder, read_part
from undaunted.attribution.logs.landmarks import landmarks
from undaunted.base.oom_score import raise_own
from undaunted.base.process import die_with_parent
from undaunted.base.roots import Code, RefusedError, Roots
from undaunted.services.results import MOST_FINDINGS, LogResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from undaunted.attribution.flight.recording import Recording
    from undaunted.attribution.logs.analyse import Reading
    from undaunted.base.roots import Opened

_MEMORY = 768 << 20  # bytes of addresses
_SCORE = 500  # of thousand: rather this than the service
_AT_ONCE = 256  # dumps that are open
_NEAR_NS = 600 * 10**9  # between the last change of a log and of dumps that belong to it
_DUMP = "_dump_"


class Question(msgspec.Struct, frozen=True, array_like=True):
    """The question.

    Attributes:
        path: of a log.
        dumps: folder with dumps that belong to it, "" = what is found beside it.
        errors: file with the standard error of the job, "" = the log has it.
    """

    path: str
    dumps: str = ""
    errors: str = ""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer about a log.

    Attributes:
        told: what the log tells of, None = it is not read.
        code, message: why, as `undaunted.base.roots.RefusedError` has it.
    """

    told: LogResult | None = None
    code: Code | None = None
    message: str = ""


def analyse(path: str, roots: Roots, dumps: str = "", errors: str = "") -> LogResult:
    """Read a log, and dumps where they tell more.

    Args:
        path: see `Question`.
        roots: below which all of it lies.
        dumps: see `Question`.
        errors: see `Question`; it counts with the last round of the log.

    Raises:
        RefusedError: the log is not to be read.
    """
    with ExitStack() as held:
        opened = roots.open(path)
        held.callback(os.close, opened.fd)
        other = _open_errors(roots, errors)
        if other is not None:
            held.callback(os.close, other.fd)
        marks = landmarks(opened.fd)
        rounds = list(zip(marks.rounds, marks.ends, strict=True))
        readings = [
            read_part(opened.path, part, last, _opener({opened.path: opened.fd}))
            for part, last in (rounds[:-1] if other else rounds)
        ]
        if other is not None:
            fds = {opened.path: opened.fd, other.path: other.fd}
            readings.append(read_folder(fds, opener=_opener(fds)))
    while len(readings) > 1 and not _tells(readings[-1]):  # its ranks have hardly begun
        readings.pop()
    *earlier, last = [_told(opened, reading) for reading in readings]
    last = msgspec.structs.replace(
        last, earlier=tuple(earlier), starts=marks.starts, logs_dir=marks.logs_dir
    )
    if dumps:
        return _with_dumps(last, *_read_dumps(roots, dumps, "", None))
    if last.findings and CAUSES[last.findings[0].cause].follows:
        for folder, begins in _places(opened.path, marks.dumps):
            real, recordings = _read_dumps(roots, folder, begins, opened.stamp[0])
            if recordings:
                return _with_dumps(last, real, recordings)
    return last


def _open_errors(roots: Roots, path: str) -> Opened | None:
    """Open the file with the standard error of a job, None = there is none that may be read."""
    if not path:
        return None
    try:
        return roots.open(path)
    except RefusedError:
        return None


def _opener(fds: Mapping[str, int]) -> Callable[[str, int], int]:
    """Return what opens files that are open already, once more."""
    return lambda path, _flags: os.open(f"/proc/self/fd/{fds[path]}", os.O_RDONLY | os.O_CLOEXEC)


def _tells(reading: Reading) -> bool:
    return bool(reading.findings or reading.last) or reading.stepped or reading.ended


def _told(opened: Opened, reading: Reading) -> LogResult:
    return LogResult(
        opened.stamp,
        tuple(reading.findings[:MOST_FINDINGS]),
        reading.step,
        reading.ended,
        bool(reading.findings) and reading.action == "stop",
        last=reading.last,
    )


# --- dumps ----------------------------------------------------------------------------------------


def _places(log: str, named: str) -> Iterator[tuple[str, str]]:
    """Yield folders in which dumps may be, and what their names begin with."""
    if named:
        yield posixpath.split(named)
    above = posixpath.dirname(log)
    yield f"{above}/checkpoints", _DUMP
    run, logs, _ = log.rpartition("/logs/")
    if logs:
        yield f"{run}/checkpoints", _DUMP
    yield above, _DUMP


def _read_dumps(
    roots: Roots, folder: str, begins: str, near_ns: int | None
) -> tuple[str, list[Recording]]:
    """Return the real path of a folder, and its dumps that were written near to a time."""
    try:
        real, names = roots.names(folder)
    except RefusedError:
        return folder, []
    dumps = [one for one in sorted(names) if one.startswith(begins) and rank_of(one) >= 0]
    ranks = dict(zip(dumps, ranks_of(dumps), strict=True))
    said = []
    for first in range(0, len(dumps), _AT_ONCE):
        with ExitStack() as held:
            files = []
            for name in dumps[first : first + _AT_ONCE]:
                if (fd := _open_dump(roots, f"{real}/{name}", near_ns)) >= 0:
                    held.callback(os.close, fd)
                    # What reads it is another process, and is to read this very file.
                    files.append((ranks[name], Path(f"/proc/{os.getpid()}/fd/{fd}")))
            said += read_ranked(files)
    return real, one_for_each_rank(said).recordings


def _open_dump(roots: Roots, path: str, near_ns: int | None) -> int:
    """Open a dump; -1 = it is not to be read, or of another time."""
    try:
        opened = roots.open(path)
    except RefusedError:
        return -1
    if near_ns is None or abs(opened.stamp[0] - near_ns) <= _NEAR_NS:
        return opened.fd
    os.close(opened.fd)
    return -1


def _with_dumps(told: LogResult, folder: str, recordings: Sequence[Recording]) -> LogResult:
    found = culprits.analyse(recordings)
    findings = worst_first([*found.findings(), *told.findings])
    return msgspec.structs.replace(
        told,
        findings=tuple(findings[:MOST_FINDINGS]),
        dumps=folder,
        hanging=tuple(sorted({one.rank for one in found.culprits})),
    )


# --- the program ----------------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    """Read the logs that are asked for."""
    if not die_with_parent(os.getppid()):
        return 1
    raise_own(_SCORE)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    *folders, fd = words
    roots = Roots(folders)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the program that asks says how this ends
    with socket.socket(fileno=int(fd)) as sock, sock.makefile("rb") as questions:
        for line in questions:
            asked = msgspec.json.decode(line, type=Question)
            try:
                said = Answer(analyse(asked.path, roots, asked.dumps, asked.errors))
            except RefusedError as error:
                said = Answer(None, error.code, str(error))
            sock.sendall(msgspec.json.encode(said) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
