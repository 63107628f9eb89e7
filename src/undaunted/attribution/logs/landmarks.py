"""Landmarks of a log: the begin of its rounds, and the places of other logs and dumps.

These lines are printed by launchers and batch scripts, not by ranks:

* ``- Cycle: 3 Event: rendezvous_started Node: ...``, by NVRx's launcher: all rounds of a job may be
  in one log;
* ``[undaunted] 2 ranks of train.py on n1; report: ...`` and ``[undaunted] job 17: 4 nodes ...``, by
  launchers and `undaunted srun`: the same name once more is another start, after a requeue;
* ``[undaunted] restart 2 of 10: ... running again ...``: a round like a ``Cycle``;
* ``[undaunted] first cause in round 1: node n3 is lost: ...``, or ``[undaunted] rank 1 (...) ...``:
  a failure, which the job has survived if a restart follows;
* ``[undaunted] finished, 1 restart: every rank exited with 0``, the last line of a launcher, which
  knows better than all other lines how the job went;
* ``[undaunted] not queued again: ...``, after that by `undaunted srun`: why it was the last start;
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

MOST_ROUNDS = 32  # of a log: all before the last ones count as one
_CHUNK_BYTES = 1 << 20
_LINES_OF_BLOCK = 64
_FIRST_LINES = 1000
_CYCLE = b" Cycle: "
_OWN = b"[undaunted] "
_BLOCK = b"<< START PATHS >>"
# What ends a round bears the number of the next one already, and ranks still write then.
_MARK = re.compile(
    rb" (?i:Cycle): (?P<cycle>\d{1,9}) (?i:Event): (?!(?i:failure_detected|worker_terminated))"
    rb"|\[undaunted\] (?P<own>[^\n]*)"
)
_LONGEST_BEFORE = 120  # bytes before the words of a launcher: `srun --label` and loggers
_START = re.compile(
    rb"(?P<job>job \S{1,80}): (?:node \S|\d{1,7} nodes )"
    rb"|\d{1,7} ranks? of .{0,400}? on (?P<node>[^\s,;]{1,255})"
    rb"(?:, \d+ restarts? allowed)?; report: "
)
_RESTART = re.compile(rb"restart (\d{1,9}) of \d{1,9}: \d{1,7} ranks?\b.{0,20} running again ")
_OUTCOME = re.compile(
    rb"(finished|failed|excluded|preempted|interrupted|stopped by the user \(Ctrl-C\)"
    rb"|suspect|invalid|straggler"
    rb"|no[_ ]restart|too[_ ]few[_ ]nodes)"
    rb"(?:, \d+ restarts?[^:(]{0,80})*(?: \(exit code \d{1,3}\))?: "
)
_FAILURE = re.compile(rb"first cause in round \d{1,9}: (?P<first>.*)|(?P<own>rank \d{1,9} \(.*)")
_NOT_QUEUED = re.compile(rb"not queued again: ")
_LONGEST_WORDS = 1000
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


class LastWords(NamedTuple):
    """The last line of a launcher.

    Attributes:
        outcome: see docs/exit-codes.md: ``finished``, ``too few nodes``.
        text: the line, from the outcome on, with why the job is not queued again.
        line: its number, from 1.
    """

    outcome: str
    text: str
    line: int


class Landmarks(NamedTuple):
    """The landmarks of a log.

    Attributes:
        rounds: where each round is, in order; the first one from the beginning of the file.
        ends: of each of them, how launchers say that the job has ended there; None = none does.
        survived: the last failures since the last start after which the launchers went on.
        starts: how often the scheduler has started the batch script, 0 = that is not said.
        logs_dir: where ranks write since the last start, "" = here, or nobody says so.
        dumps: what names of dumps begin with, with their folder; "" = nobody says so.
    """

    rounds: tuple[Part, ...]
    ends: tuple[LastWords | None, ...]
    survived: tuple[str, ...] = ()
    starts: int = 0
    logs_dir: str = ""
    dumps: str = ""


def landmarks(fd: int) -> Landmarks:
    """Look through a file, to the end that it has now; the descriptor stays open.

    Raises:
        OSError: it cannot be read.
    """
    size = os.fstat(fd).st_size
    marks = _Marks()
    starts, left, logs_dir, dumps = 0, 0, b"", b""
    for offset, lines, chunk in _chunks(fd, size):
        if lines < _FIRST_LINES and not dumps and (found := _DUMPS.search(chunk)):
            dumps = found[1]
        if _CYCLE in chunk or _OWN in chunk:
            marks.take(chunk, offset, lines)
        for text in chunk.split(b"\n") if left or _BLOCK in chunk else ():
            if _BLOCK in text:
                starts, left, logs_dir = starts + 1, _LINES_OF_BLOCK, b""
            elif left:
                left -= 1
                if found := _LOGS_DIR.match(text):
                    left, logs_dir = 0, found[1]
    begins = [(0, 0), *marks.later]
    places = [*(begin for begin, _ in marks.later), size]
    rounds = tuple(
        Part(begin, end, lines) for (begin, lines), end in zip(begins, places, strict=True)
    )
    ends = (*marks.ends, marks.end)
    where = os.fsdecode(logs_dir).strip(), os.fsdecode(dumps)
    return Landmarks(rounds, ends, tuple(marks.survived), starts, *where)


class _Marks:
    """Where rounds begin, and how the job has ended in them.

    Attributes:
        later: where each round but the first begins: in bytes, and in lines.
        ends: how the job ended in each round but the last.
        end: how it ended in the last one, None = it did not.
        survived: see `Landmarks`.
    """

    def __init__(self) -> None:
        self.later = deque[tuple[int, int]](maxlen=MOST_ROUNDS - 1)
        self.ends = deque["LastWords | None"](maxlen=MOST_ROUNDS - 1)
        self.end: LastWords | None = None
        self.survived = deque[str](maxlen=MOST_ROUNDS)
        self._failure = ""  # of this round
        self._cycle = -1
        self._restarts = 0
        self._begun: set[bytes] = set()  # who has started since the batch script was

    def take(self, chunk: bytes, offset: int, lines: int) -> None:
        """Look at whole lines; so many bytes and lines are before them."""
        for mark in _MARK.finditer(chunk):
            line = chunk.rfind(b"\n", 0, mark.start()) + 1
            if mark["own"] is not None and mark.start() - line > _LONGEST_BEFORE:
                continue
            if (own := mark["own"]) is None:
                begins = self._cycle >= 0 and int(mark["cycle"]) > self._cycle
                self._cycle = max(self._cycle, int(mark["cycle"]))
            else:
                begins = self._begins(own)
            if begins:
                self.later.append((offset + line, lines + chunk.count(b"\n", 0, line)))
                self.ends.append(self.end)
                self.end = None
            if own is not None and (found := _OUTCOME.match(own)):
                outcome = found[1].decode().replace("_", " ")
                self.end = LastWords(outcome, _text(own), lines + chunk.count(b"\n", 0, line) + 1)
            elif own is not None and self.end is not None and _NOT_QUEUED.match(own):
                self.end = self.end._replace(text=f"{self.end.text}; {_text(own)}")
            elif own is not None and (failure := _FAILURE.match(own)):
                self._note(failure["first"], failure["own"])

    def _note(self, first: bytes | None, own: bytes | None) -> None:
        """Keep how a round fails: its first cause, else what the first launcher has seen."""
        if first is not None:
            self._failure = _text(first)
        elif own is not None and not self._failure:
            self._failure = _text(own)

    def _begins(self, own: bytes) -> bool:
        """Whether a line of a launcher begins a round."""
        if found := _START.match(own):
            name = found["job"] or found["node"]
            again = name in self._begun or bool(found["job"] and self._begun)
            if again or found["job"]:
                self._begun.clear()
            if again:
                self._cycle, self._restarts, self._failure = -1, 0, ""
                self.survived.clear()
            self._begun.add(name)
            return again
        if found := _RESTART.match(own):
            before, self._restarts = self._restarts, max(self._restarts, int(found[1]))
            if self._restarts > before and self._failure:
                self.survived.append(self._failure)
                self._failure = ""
            return self._restarts > before
        return False


def _text(words: bytes) -> str:
    return words[:_LONGEST_WORDS].decode(errors="replace").rstrip()


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
