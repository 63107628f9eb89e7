"""Records of a rank's state: one line of JSON each, in a file per rank, one `write` each."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VARIABLE = "UNDAUNTED_DIGESTS"
"""Names the directory that ranks record to; without it they record nothing."""

STEP, FORWARD, UPDATE = "step", "forward", "update"
"""Values of ``Record.at``."""

PARAMETERS = "parameters"
"""The part that tells one moment of training from another."""
RNG = "rng"  # of torch; NAME.rng of others
SCHEDULER, AVERAGE, SCALER = "scheduler", "average", "scaler"

_PREFIX, _SUFFIX = "rank-", ".jsonl"
_MAX_LINE_BYTES = 1 << 20


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a rank at one moment.

    Attributes:
        round: restart count of the process, from 0.
        iteration: as the script counts, or as we do; -1 before the first.
        at: ``step``: what the script gave to ``undaunted.step``; ``forward``: before the first
            forward pass of an update; ``update``: after an optimizer's step.
        n: how many records with the same ``iteration`` and ``at`` came before in this round, or
            since the script went back to an earlier iteration.
        parts: name to digest, 16 hexadecimal characters.
        counted: the iteration was counted by us, as the script does not tell it.
        finite: ``no`` where parameters or gradients hold NaN or infinity, "" otherwise.
        pid: of the process, which tells launches apart that begin with the same round; 0 = not
            known.
    """

    round: int
    iteration: int
    at: str
    n: int
    parts: dict[str, str]
    counted: bool = False
    finite: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Records:
    """The records of all ranks of a run.

    Attributes:
        by_rank: global rank to its records, in the order in which they were written.
        unreadable: lines that could not be read, of all ranks; a full disk leaves half ones.
    """

    by_rank: dict[int, list[Record]] = field(default_factory=dict)
    unreadable: int = 0


def file_of(directory: Path, rank: int) -> Path:
    """The file of a rank's records."""
    return directory / f"{_PREFIX}{rank}{_SUFFIX}"


def encode(record: Record) -> bytes:
    """Return the line of a record, with its end."""
    return msgspec.json.encode(record) + b"\n"


def read_records(directory: Path) -> Records:
    """Read what the ranks of a run have recorded.

    Args:
        directory: what ``UNDAUNTED_DIGESTS`` named; one that does not exist holds nothing.

    Raises:
        OSError: a file cannot be read.
    """
    by_rank: dict[int, list[Record]] = {}
    unreadable = 0
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        number = path.name[len(_PREFIX) : -len(_SUFFIX)]
        if not (number.isascii() and number.isdigit()):
            continue
        records, bad = read_file(path)
        by_rank[int(number)] = records
        unreadable += bad
    return Records(dict(sorted(by_rank.items())), unreadable)


def read_file(path: Path) -> tuple[list[Record], int]:
    """Read the records of one rank, in the order in which they were written.

    Returns:
        The records, and how many lines could not be read.

    Raises:
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(Record)
    records: list[Record] = []
    bad = 0
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            try:
                records.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                bad += 1
    return records, bad


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Recorder:
    """Appends to the file of one rank. Holds nothing open."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Say whose records these are.

        Args:
            directory: exists.
            rank: the global one.
        """
        self._path = file_of(directory, rank)
        self._in_line = False

    def write(self, one: Record) -> None:
        """Append a record.

        Raises:
            OSError: it was not written, or in part.
        """
        line = encode(one)
        if self._in_line:  # a full disk has left half a line
            line = b"\n" + line
        fd = os.open(self._path, _FLAGS, 0o600)
        try:
            with _without_size_limit():
                written = os.write(fd, line)
        finally:
            os.close(fd)
        if written < len(line):
            self._in_line = True
            raise OSError(f"only {written} of {len(line)} bytes were written to {self._path}")
        self._in_line = False


@contextlib.contextmanager
def _without_size_limit() -> Iterator[None]:
    """Lift the process's own limit of file size: it is there for what the script writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft == hard:
        yield
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
