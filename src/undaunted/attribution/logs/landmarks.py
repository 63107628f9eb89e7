"""What a log says of itself: where its rounds begin, and where other logs and dumps are.

These lines are printed by launchers and batch scripts, not by ranks:

* ``- Cycle: 3 Event: rendezvous_started Node: ...``, by NVRx's launcher: all rounds of a job may be
  in one log;
* ``<< START PATHS >>`` and then, among others, ``LOGS_DIR=/logs/17``, by a batch script each time
  that the scheduler starts it: what ranks write is in files there;
* ``TORCH_FR_DUMP_TEMP_FILE=/dumps/_dump_``, where torch's Flight Recorder dumps.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_ROUNDS = 32  # of a log that are told apart: what is before the last ones is one
_CHUNK_BYTES = 1 << 20
_LINES_OF_BLOCK = 64
_FIRST_LINES = 1000
_CYCLE = b" Cycle: "
_BLOCK = b"<< START PATHS >>"
# What ends a round bears the number of the next one already, and ranks still write then.
_BEGINS = re.compile(
    rb" Cycle: (\d{1,9}) Event: (?!failure_detected|worker_terminated)", re.IGNORECASE
)
_LOGS_DIR = re.compile(rb"^[^/\n]{0,80}\bLOGS_DIR=[\"']?(/[^\"'\n]*)")
_DUMPS = re.compile(rb"\bTORCH_(?:FR_DUMP|NCCL_DEBUG_INFO)_TEMP_FILE=[\"']?(/[^\s\"']*)")


class Part(NamedTuple):
    """A stretch of a file.

    Attributes:
        begin, end: in bytes.
        lines: so many are before it.
    """

    begin: int
    end: int
    lines: int


class Landmarks(NamedTuple):
    """What was found in a log.

    Attributes:
        rounds: where each round is, in order; the first one from the beginning of the file.
        starts: how often the scheduler has started the batch script, 0 = that is not said.
        logs_dir: where ranks write since the last start, "" = here, or nobody says so.
        dumps: what names of dumps begin with, with their folder; "" = nobody says so.
    """

    rounds: tuple[Part, ...]
    starts: int = 0
    logs_dir: str = ""
    dumps: str = ""


def landmarks(fd: int) -> Landmarks:
    """Look through a file, to the end that it has now; the descriptor stays open.

    Raises:
        OSError: it cannot be read.
    """
    size = os.fstat(fd).st_size
    cycle, later = -1, deque[tuple[int, int]](maxlen=MOST_ROUNDS - 1)  # where rounds begin
    starts, left, logs_dir, dumps = 0, 0, b"", b""
    for offset, lines, chunk in _chunks(fd, size):
        if lines < _FIRST_LINES and not dumps and (found := _DUMPS.search(chunk)):
            dumps = found[1]
        for mark in _BEGINS.finditer(chunk) if _CYCLE in chunk else ():
            if int(mark[1]) > cycle:
                line = chunk.rfind(b"\n", 0, mark.start()) + 1
                if cycle >= 0:
                    later.append((offset + line, lines + chunk.count(b"\n", 0, line)))
                cycle = int(mark[1])
        for text in chunk.split(b"\n") if left or _BLOCK in chunk else ():
            if _BLOCK in text:
                starts, left, logs_dir = starts + 1, _LINES_OF_BLOCK, b""
            elif left:
                left -= 1
                if found := _LOGS_DIR.match(text):
                    left, logs_dir = 0, found[1]
    begins = [(0, 0), *later]
    ends = [*(begin for begin, _ in later), size]
    rounds = tuple(
        Part(begin, end, lines) for (begin, lines), end in zip(begins, ends, strict=True)
    )
    return Landmarks(rounds, starts, os.fsdecode(logs_dir).strip(), os.fsdecode(dumps))


def _chunks(fd: int, size: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield lines: where they begin, how many are before them, and they themselves."""
    offset, lines, begun = 0, 0, b""
    while chunk := os.pread(fd, min(_CHUNK_BYTES, size - offset - len(begun)), offset + len(begun)):
        whole, newline, rest = (begun + chunk).rpartition(b"\n")
        if not newline and len(rest) < _CHUNK_BYTES:
            begun = rest
            continue
        yield offset, lines, (piece := whole + newline or rest)
        offset, lines = offset + len(piece), lines + piece.count(b"\n")
        begun = rest if newline else b""
    if begun:
        yield offset, lines, begun
