"""Reads log files: what their lines mean, how far the program came, who says something.

A log says few things often. Chunks of a megabyte are made into templates: lines in lower case
without digits and spaces. Each template is searched for the literals of the rules once, and
expressions are applied to lines whose template has one. A file is read from where the last reading
ended.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from undaunted.attribution.findings import CAUSES
from undaunted.attribution.logs.exceptions import is_vague, last_line, meaning_of
from undaunted.attribution.logs.general import of_line, of_open_traceback
from undaunted.attribution.logs.prefixes import (
    TRACEBACK_HEAD,
    clean,
    like_before,
    read_prefix,
)
from undaunted.attribution.logs.rules import (
    CHAINED,
    END,
    EXCEPTION_IGNORED,
    TRACEBACK,
    Fit,
    alike,
    template,
)
from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

    from undaunted.attribution.logs.landmarks import Part
    from undaunted.attribution.logs.prefixes import Prefix
    from undaunted.attribution.logs.rules import Meaning, Rules, Step

CHUNK_BYTES = 1 << 20
MOST_HITS = 16  # kept for a cause, of each of the last two steps
SURVIVED_BY = 2  # steps after a line: what it says did not end the program
_LONGEST_LINE = 8 << 10  # of a longer one the first and last half of this are looked at
_LONGEST_QUOTE = 400
_MEMORY_BYTES = 16 << 20  # of templates
_MOST_RANKS = 1 << 16
_MOST_TEMPLATES = 1 << 16
_MOST_RANKS_READ = 1 << 12  # of lines with the same meaning
_HEAD_BYTES = 64
_MOST_NEW_LINES = 256
_MOST_SPEAKERS = 1 << 12
_LONGEST_TRACEBACK = 2000  # lines, with those of other ranks between them
_FRAME = "  "  # before lines of frames in a traceback
_MOST_FRAMES = 400  # lines
_NEAR = 16  # lines between those that Python prints of an exception that it ignores
_LOCAL_LAUNCHER = "local_rank"  # names one: it is on the node of the process that it tells of
_CARRIERS = frozenset({"RayTaskError", "ActorDiedError", "RayActorError"})
_ORIGINAL = "Original "  # before the head of a traceback of another process
_IN_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
_MOST_PREFIXES = 16
_STEPS_READ = 8  # at each end of lines that tell of steps and nothing else
_LAST_LINES = 64  # of a log, which are read in general where no rule knows any
_LONGEST_LAST = 1000  # bytes of each
_LOOK_BACK = 12  # lines, for what a line does not say itself
_LOOKED_BACK_AT = 400  # bytes of each
_MOST_UNREAD = 64  # lines of which the rank is not read yet
_BEGAN_AGAIN = 10  # steps back: more than ranks are apart whose lines are mixed
_EPOCHS_BACK = 2  # likewise
_FIRST_SAMPLES = 1000  # lines looked at for ranks and their nodes
_SAMPLES = 50
_PERHAPS = 0.4  # confidence
_PROBABLY = 0.6
_FEW_RANKS = 1024  # of a job of which the size is not known
_RANKS_OF_EACH = 8  # likewise: for each one that says something
_RECENT = 64  # numbers of steps
_RANKS = re.compile(
    rb"^[ \[]{0,6}(?:rank[ :]?|default)?(\d{1,6})\]?: |[\[(]rank[ :=]?(\d{1,6})[\])/]",
    re.IGNORECASE | re.MULTILINE,
)
_WORLD_SIZE = re.compile(rb"\b(?:world[ _-]?size|nranks)[ =:]{1,3}(\d{1,7})\b", re.IGNORECASE)
_RANKS_SAMPLE = 32 << 10  # bytes at both ends of a chunk
_NODE_IN_TEXT = re.compile(
    r"(?:\b(?:pod|node)/|\b(?:node|host|hostname)=|\"(?:node|host|hostname)\": ?\")([a-z][\w.-]*)"
    r"|(?:^|\]\s|\d\s)([a-z][\w.-]*) kernel: "
)
_RANK_IN_TEXT = re.compile(r"\brank[ =:]{1,2}(\d{1,7})\b", re.IGNORECASE)
_BLOCK_RANK = re.compile(r"^\W*rank\s*:\s*(\d{1,7})")
_BLOCK_NODE = re.compile(r"^\W*(?:host|ip)\s*:\s*([\w.-]+)")
_BLOCK_LINES = 6
_BLOCK_LINE = re.compile(
    r"^\W*(?:(?:exitcode|traceback|error_file)\s*:|The actor is dead because its worker process)"
)
# A task of srun is one of these then, and not a rank.
_LAUNCHERS = (
    b"[undaunted] ",
    b"undaunted run: error: ",
    b"torch.distributed.elastic",
    b"torch.distributed.run",
    b"torchrun",
)
_FIRST_FAILURE = b"Root Cause (first observed failure)"  # a block follows


@dataclass(slots=True)
class Hit:
    """A line with a meaning.

    Attributes:
        meaning: what it means.
        ranks, nodes: who says it, or who it names.
        t: seconds since 1970, 0 = not known.
        line: its number, from 1.
        quote: its text.
        path: of the file.
        template: for comparison with other lines.
        is_first: whether torchrun says that the failure of this rank was the first on its node.
        is_warning: whether a logger says that it is a warning, or less.
        is_timed: whether the time is its own, and not that of a line before.
    """

    meaning: Meaning
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    t: float
    line: int
    quote: str
    path: str
    template: int
    is_first: bool = False
    is_warning: bool = False
    is_timed: bool = False


class _Kept(NamedTuple):
    """A line with a meaning, not interpreted yet: most are survived before anybody asks."""

    meaning: Meaning
    raw: bytes
    before: list[bytes]  # the beginnings of lines before it
    line: int


@dataclass(slots=True)
class LineGroup:
    """Lines with the same cause, since the same step."""

    step: int
    kept: list[_Kept] = field(default_factory=list)
    more: list[bytes] = field(default_factory=list)  # the beginnings of others, ranks not read yet
    ranks: set[int] = field(default_factory=set)
    numbers: set[int] = field(default_factory=set)  # ranks, if `LogScan` takes these for ranks
    count: int = 0


@dataclass(slots=True)
class LineSeen:
    """All lines of one cause.

    Attributes:
        cause: its name.
        hits: some of them, in order.
        ranks: who says it, or who is named.
        nodes: where, as the lines say.
    """

    cause: str
    hits: list[Hit] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    nodes: list[str] = field(default_factory=list)

    @property
    def certain(self) -> bool:
        """Return whether it would come again in every attempt."""
        return all(hit.meaning.certain for hit in self.hits)


class NewLine(NamedTuple):
    """A line that is like none before it: its number, its text, what it has in common."""

    line: int
    text: str
    template: int


class _Event(NamedTuple):
    """A line with a literal: its number in the chunk, from 0, and what it may mean."""

    line: int
    fit: Fit


@dataclass(slots=True)
class _Traceback:
    """One that has begun.

    Attributes:
        line: the number of its head.
        ignored: whether Python ignores the exception.
        before: what stands before its lines.
        rank: of the process in which it was raised, if that is another one than who says it.
        frames: its lines so far: of files, and of the program.
    """

    line: int
    ignored: bool
    before: re.Pattern[str]
    rank: int | None = None
    frames: list[str] = field(default_factory=list)

    def takes(self, line: str) -> bool:
        """Take a line that is of a frame; return whether it is."""
        before = self.before.match(line)
        if before is None or not line.startswith(_FRAME, before.end()):
            return False
        if len(self.frames) < _MOST_FRAMES:
            self.frames.append(line[before.end() :])
        return True

    def last_line(self, line: str) -> tuple[str, str] | None:
        """Return class and message of the exception, if a line tells of it."""
        before = self.before.match(line)
        return last_line(line[before.end() :]) if before and self.frames else None


class _Error(NamedTuple):
    """The exception that ended a traceback, and how many steps there were before it."""

    kept: _Kept
    step: int


class LogScan:
    """A log file, read as far as it has been written. Not for several threads.

    Attributes:
        path: the file.
        rank: whose file it is, for lines that do not say theirs; None = not known.
        steps: different steps seen; more where the program began again.
        last_step: the number of the last one, None = none.
        last_step_line: the number of the last line that tells of one.
        ended: `steps` when the program came to its end, -1 = it did not.
        ranks: who says something.
        world_size: as lines say, 0 = they do not.
        node_of: on which node a rank is, where lines say both.
        lines: read so far.
        templates: hashes of lines without what differs each time; at most 65536.
        new_lines: the last lines that were like none before them.
        error: why the file could not be read, "" = it could.
    """

    def __init__(
        self,
        path: str,
        rules: Rules,
        opener: Callable[[str, int], int] | None = None,
        part: Part | None = None,
        *,
        compared: bool = True,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            path: see above.
            rules: what lines may mean.
            opener: opens the file instead, as that of the built-in ``open``.
            part: of the file that is read, once; None = all of it.
            compared: whether lines are compared with those of another round.
        """
        self.path = path
        self._compared = compared
        self._part = part
        self._opener = opener or _open
        self.rank: int | None = None
        self.error = ""
        self._rules = rules
        self._groups: dict[str, list[LineGroup]] = {}  # by cause, of the last two steps
        self._survived: dict[str, LineGroup] = {}  # by cause, the last one
        self._memory: dict[bytes, Fit | None] = {}  # by template
        self._memory_bytes = 0
        self._begin_file()

    def _begin_file(self) -> None:
        self.steps = 0
        self.last_step: float | None = None
        self.last_step_line = 0
        self.ended = -1
        self.ranks: set[int] = set()
        self.world_size = 0
        self._said: set[int] = set()  # numbers that lines call ranks
        self._numbers: set[int] = set()  # that stand where ranks do, and may be something else
        self.node_of: dict[int, str] = {}
        self.templates: set[int] = set()
        self.new_lines: deque[NewLine] = deque(maxlen=_MOST_NEW_LINES)
        self.lines = self._part.lines if self._part else 0
        self._groups.clear()
        self._survived.clear()
        self._enough: set[str] = set()  # causes of which no more lines are needed before a step
        self._has_summary = False
        self._has_launchers = False
        self._offset = self._part.begin if self._part else 0
        self._inode = 0
        self._begun = b""  # a line without its end
        self._recent: dict[Step, None] = {}  # in order
        self._step_lines: deque[bytes] = deque(maxlen=SURVIVED_BY)
        self._last_of: dict[int, Step] = {}  # by kind of line
        self._head = b""  # of the file, to know it by
        self._tracebacks: dict[object, _Traceback] = {}  # by who says it
        self._prefixes: list[re.Pattern[str]] = []  # seen before tracebacks, and not known
        self._first_error: _Error | None = None  # before the first step
        self._last_error: _Error | None = None
        self._ended_behind: _Error | None = None  # after which came an end, and no step
        self._last_head = 0
        self._ignored: object = _NOBODY
        self._ignored_line = 0
        self._raised: dict[object, Meaning] = {}  # the last exception, by who says it
        self._chained: set[object] = set()  # whose next exception was raised for that one
        self._tail: deque[tuple[int, bytes]] = deque(maxlen=_LAST_LINES)  # with their numbers
        self._year = time.gmtime().tm_year

    def read(self, *, to_end: bool = True, advance: Callable[[int], object] | None = None) -> None:
        """Read what is new; a file that was cut or replaced from its beginning. Never raises.

        Args:
            to_end: a last line without an end counts as one; only when nobody writes any more.
            advance: called with how many bytes more were read, for people who wait.
        """
        try:
            with open(self.path, "rb", buffering=0, opener=self._opener) as file:
                for size in self._read(file):
                    if advance is not None:
                        advance(size)
            self.error = ""
        except OSError as error:
            self.error = error.strerror or str(error)
        if to_end and self._begun:
            begun, self._begun = self._begun, b""
            self._take(begun)

    def finish(self) -> None:
        """Let go of what only further reading needs; a job may have thousands of files."""
        self._memory.clear()
        self._memory_bytes = 0

    def _read(self, file: BinaryIO) -> Iterator[int]:
        """Read to the end; yield the size of each chunk once it is looked at."""
        status = os.fstat(file.fileno())
        head = file.read(_HEAD_BYTES)
        other = status.st_ino != self._inode or not head.startswith(self._head)
        if self._inode and (other or status.st_size < self._offset):
            self._begin_file()
        self._head = head
        self._inode = status.st_ino
        self._year = time.gmtime(status.st_mtime).tm_year
        file.seek(self._offset)
        # A file that grows faster than it is read has an end.
        end = min(status.st_size, self._part.end) if self._part else status.st_size
        left = end - self._offset
        while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
            self._offset += len(chunk)
            left -= len(chunk)
            whole, newline, rest = (self._begun + chunk).rpartition(b"\n")
            self._begun = _shortened(rest)
            if newline:
                self._take(whole)
            yield len(chunk)

    def _take(self, chunk: bytes) -> None:
        """Take whole lines, without the last end."""
        self._has_summary = _FIRST_FAILURE in chunk
        self._has_launchers = self._has_launchers or any(map(chunk.__contains__, _LAUNCHERS))
        templates = template(chunk).split(b"\n")
        lines = chunk.split(b"\n")
        self._learn(templates, lines)
        memory = self._memory
        events = [_Event(i, fit) for i, key in enumerate(templates) if (fit := memory[key])]
        at = 0
        for event in _thinned(self._without_plain(events, lines)):
            self._look_at_tracebacks(at, event.line, lines)
            self._look_at(event, lines)
            at = event.line + 1
        self._look_at_tracebacks(at, len(lines), lines)
        self._note_nodes(lines)
        first = max(0, len(lines) - _LAST_LINES)
        for index, raw in enumerate(lines[first:], first):
            self._tail.append((self.lines + index + 1, raw[:_LONGEST_LAST]))
        self.lines += len(lines)
        self._count_ranks(chunk)

    def _without_plain(self, events: list[_Event], lines: list[bytes]) -> Iterator[_Event]:
        """Leave out lines that mean nothing, before the first traceback."""
        is_before = not self._tracebacks
        for event in events:
            fit = event.fit
            is_before = is_before and TRACEBACK not in fit.numbers
            raw = lines[event.line]
            if (
                is_before
                and fit.numbers
                and fit.meaning is None
                and not self._is_enough(fit.causes)
                and b"\r" not in raw
                and self._rules.is_plain(clean(_shortened(raw, _LONGEST_LINE)), fit.numbers)
            ):
                if fit.step >= 0:
                    yield _Event(event.line, fit._replace(numbers=()))
                continue
            yield event

    def _learn(self, templates: list[bytes], lines: list[bytes]) -> None:
        """Find out which rules may fit templates that were not seen before."""
        if self._memory_bytes > _MEMORY_BYTES:
            self._memory.clear()
            self._memory_bytes = 0
        memory = self._memory
        new = set(templates) - memory.keys()
        if not new:
            return
        where = {}
        for index, key in enumerate(templates):
            if key in new and key not in where:
                where[key] = index
        shown = {key: _shortened(key, _LONGEST_LINE) for key in new}
        found = self._rules.search(list(shown.values()))
        for key, short in shown.items():
            if TRACEBACK in found.get(short, ()):
                self._learn_prefix(clean(_shortened(lines[where[key]], _LONGEST_LINE)))
        for key, short in shown.items():
            numbers = found.get(short)
            memory[key] = self._fit(lines[where[key]], numbers) if numbers else None
            self._memory_bytes += len(key) + 100
        if self._compared and len(self.templates) < _MOST_TEMPLATES:
            for key in shown:
                raw = lines[where[key]][:_LONGEST_QUOTE]
                if (like := alike(raw)) not in self.templates:
                    self.templates.add(like)
                    text = clean(raw)
                    self.new_lines.append(NewLine(self.lines + where[key] + 1, text, like))

    def _fit(self, raw: bytes, numbers: tuple[int, ...]) -> Fit | None:
        """Return what lines like this one may mean, by rules of which they have a literal."""
        if self._is_enough(causes := self._rules.causes(numbers)):
            return Fit(numbers, -1, None, causes)  # looked at one by one, should they be needed
        text = clean(_shortened(raw, _LONGEST_LINE))
        begins = self._prefix(text).begins
        return self._rules.fit(text, begins, numbers, whole=b"\r" not in raw)

    def _learn_prefix(self, head: str) -> None:
        place = head.find(TRACEBACK_HEAD)
        if len(self._prefixes) < _MOST_PREFIXES and read_prefix(head).begins < place:
            self._prefixes.append(like_before(head[:_LOOKED_BACK_AT], place))

    def _prefix(self, text: str) -> Prefix:
        """Return what stands before a message, in this file too."""
        prefix = read_prefix(text, self._year)
        for known in self._prefixes:
            found = known.match(text)
            if found and found.end() > prefix.begins:
                prefix.begins = found.end()
                said = _RANK_IN_TEXT.findall(found[0])
                if prefix.rank is None and len(said) == 1:
                    prefix.rank = int(said[0])
        return prefix

    def _look_at(self, event: _Event, lines: list[bytes]) -> None:
        raw, fit = lines[event.line], event.fit
        number = self.lines + event.line + 1
        if number - self._last_head > _LONGEST_TRACEBACK:
            self._tracebacks.clear()
        if not self._tracebacks and self._is_enough(fit.causes):
            return
        may_be_ignored = self._ignored is not _NOBODY and number <= self._ignored_line + _NEAR
        if fit.meaning and not (self._tracebacks or may_be_ignored) and b"\r" not in raw:
            self._keep(fit.meaning, raw, event.line, lines)
            return
        raw = _shortened(raw, _LONGEST_LINE)
        for piece in raw.rstrip(b"\r").split(b"\r")[-_STEPS_READ:]:
            text = clean(piece) if fit.numbers else piece.decode("utf-8", "replace")
            if self._tracebacks and self._is_last_line(text, fit):
                self._interpret(event, clean(piece), piece, lines)
                continue
            if fit.step >= 0 and (step := self._rules.step(text, fit.step)) is not None:
                self._count_step(step, piece)
                self.last_step_line = number
            elif END in fit.numbers and self._rules.is_end(text):
                is_behind = self._last_error and self._last_error.step == self.steps
                self._ended_behind = self._last_error if is_behind else None
                self._go_on(SURVIVED_BY)
                self.ended = self.steps
            if fit.numbers and (self._tracebacks or not self._rules.is_plain(text, fit.numbers)):
                self._interpret(event, text, piece, lines)

    def _look_at_tracebacks(self, begin: int, end: int, lines: list[bytes]) -> None:
        """Look at lines without a literal while a traceback has begun: one of them may end it."""
        for index in range(begin, end):
            if not self._tracebacks:
                return
            if self.lines + index + 1 - self._last_head > _LONGEST_TRACEBACK:
                self._tracebacks.clear()
                return
            raw = _shortened(lines[index], _LONGEST_LINE)
            if raw:
                self._interpret(_Event(index, _PLAIN), clean(raw), raw, lines)

    def _interpret(self, event: _Event, text: str, raw: bytes, lines: list[bytes]) -> None:
        number = self.lines + event.line + 1
        numbers = event.fit.numbers
        prefix = self._prefix(text)
        speaker = (prefix.rank, prefix.node)
        if EXCEPTION_IGNORED in numbers or CHAINED in numbers:
            self._note_what_follows(speaker, number, ignored=EXCEPTION_IGNORED in numbers)
            return
        if TRACEBACK in numbers and text.find(TRACEBACK_HEAD) >= prefix.begins:
            self._begin_traceback(text, speaker, number)
            return
        if TRACEBACK in numbers and prefix.begins:
            self._take_whole_traceback(event, text, raw, lines)
            return
        begun = self._begun_by(speaker, number)
        message = text[prefix.begins :]
        if self._ends_ignored(message, speaker, number) if begun is None else begun.takes(text):
            return
        last = _last_line(begun, text, event.fit)
        is_last = begun is not None and (last is not None or self._rules.is_exception(message))
        enough = _NONE if is_last or self._has_summary else self._enough
        meaning = self._rules.meaning(
            text, prefix.begins, numbers, enough, ends_traceback=begun is not None
        )
        if begun is not None and is_last:
            meaning = self._of_traceback(begun, last, meaning, speaker)
            if meaning is not None and not meaning.aside:
                self._note_error(meaning, raw, event.line, lines)
        elif meaning is not None and is_vague(meaning) and self._rules.is_exception(message):
            said = last_line(message)
            meaning = meaning_of(*said, "", meaning) if said is not None else meaning
        if meaning is not None:
            self._keep(meaning, raw, event.line, lines)

    def _note_what_follows(self, speaker: object, number: int, *, ignored: bool) -> None:
        if ignored:
            self._ignored, self._ignored_line = speaker, number
        else:
            self._chained.add(speaker)

    def _of_traceback(
        self,
        begun: _Traceback,
        last: tuple[str, str] | None,
        words: Meaning | None,
        speaker: object,
    ) -> Meaning | None:
        """Return what a traceback that has ended means, None if nothing that is not known."""
        meaning = words
        if last is not None and last[0].rpartition(".")[2] in _CARRIERS:
            begun.frames.clear()  # those of the process that raised it follow
        else:
            del self._tracebacks[speaker]
        if last is not None:
            meaning = meaning_of(*last, "\n".join(begun.frames), words)
        if meaning is None or begun.ignored or self._is_explained(speaker, meaning):
            return None
        return meaning if begun.rank is None else meaning._replace(ranks=(begun.rank,))

    def _take_whole_traceback(
        self, event: _Event, text: str, raw: bytes, lines: list[bytes]
    ) -> None:
        """Look at a traceback in a text of JSON, of which the message is the last line."""
        begins = self._prefix(text).begins
        last = last_line(re.split(r'\\n|(?<!\\)"', text[begins:], maxsplit=1)[0])
        meaning = self._rules.meaning(text, begins, event.fit.numbers, ends_traceback=True)
        if last is not None:
            meaning = meaning_of(*last, text[:begins].replace("\\n", "\n"), meaning)
        if meaning is not None:
            self._keep(meaning, raw, event.line, lines)

    def _begin_traceback(self, text: str, speaker: object, number: int) -> None:
        if len(self._tracebacks) >= _MOST_SPEAKERS:
            self._tracebacks.clear()
        place = max(0, text.find(TRACEBACK_HEAD))
        place -= len(_ORIGINAL) if text[:place].endswith(_ORIGINAL) else 0
        found = _IN_RANK.search(text)
        self._tracebacks[speaker] = _Traceback(
            number,
            self._is_ignored(speaker, number),
            like_before(text, place),
            int(found[1]) if found else None,
        )
        self._last_head = number
        self._ignored = _NOBODY

    def _is_ignored(self, speaker: object, number: int) -> bool:
        return self._ignored == speaker and number <= self._ignored_line + _NEAR

    def _ends_ignored(self, message: str, speaker: object, number: int) -> bool:
        """Whether it is an exception that Python ignores, without a traceback."""
        ends = self._is_ignored(speaker, number) and self._rules.is_exception(message)
        self._ignored = _NOBODY if ends else self._ignored
        return ends

    def _is_explained(self, speaker: object, meaning: Meaning) -> bool:
        """Whether an exception says less than the one that it was raised for."""
        before = self._raised.get(speaker) if speaker in self._chained else None
        self._chained.discard(speaker)
        if before is not None and is_vague(meaning) and not is_vague(before):
            return True
        if len(self._raised) >= _MOST_SPEAKERS:
            self._raised.clear()
        self._raised[speaker] = meaning
        return False

    def _begun_by(self, speaker: object, number: int) -> _Traceback | None:
        begun = self._tracebacks.get(speaker)
        is_old = begun is not None and number - begun.line >= _LONGEST_TRACEBACK
        return None if is_old else begun

    def _is_last_line(self, text: str, fit: Fit) -> bool:
        """Whether a line ends a traceback that has begun."""
        prefix = self._prefix(text)
        begun = self._tracebacks.get((prefix.rank, prefix.node))
        return _last_line(begun, text, fit) is not None

    def _note_error(self, meaning: Meaning, raw: bytes, index: int, lines: list[bytes]) -> None:
        before = [line[:_LOOKED_BACK_AT] for line in lines[max(0, index - _LOOK_BACK) : index]]
        kept = _Kept(meaning, raw, before, self.lines + index + 1)
        self._last_error = _Error(kept, self.steps)
        if self._first_error is None and not self.steps:
            self._first_error = self._last_error

    def _keep(self, meaning: Meaning, raw: bytes, index: int, lines: list[bytes]) -> None:
        groups = self._groups.setdefault(meaning.cause, [])
        if not groups or groups[-1].step != self.steps:
            groups.append(LineGroup(self.steps))
            while groups[0].step <= self.steps - SURVIVED_BY:
                self._survived[meaning.cause] = groups.pop(0)
        group = groups[-1]
        group.count += 1
        most = MOST_HITS * 2 if meaning.nodes else MOST_HITS  # the few that name nodes are kept
        before = lines[max(0, index - _LOOK_BACK) : index]
        if meaning.aside and _is_first(before):
            most *= 2
        if len(group.kept) < most:
            before = [line[:_LOOKED_BACK_AT] for line in before]
            raw = _shortened(raw, _LONGEST_LINE)
            group.kept.append(_Kept(meaning, raw, before, self.lines + index + 1))
        elif meaning.ranks:
            group.ranks.update(meaning.ranks)
        elif group.count <= _MOST_RANKS_READ:
            group.more.append(raw[:_LOOKED_BACK_AT])
            if len(group.more) >= _MOST_UNREAD:
                self._read_ranks(group)
        else:
            self._enough.add(meaning.cause)

    def _read_ranks(self, group: LineGroup) -> None:
        for raw in group.more:
            prefix = read_prefix(clean(raw))
            self._note_number(prefix)
            if prefix.rank is not None:
                (group.numbers if prefix.is_number else group.ranks).add(prefix.rank)
        group.more.clear()

    def seen(self) -> list[LineSeen]:
        """Return, by cause, the lines after which the program did not go on."""
        found: dict[str, LineSeen] = {}
        for groups in self._groups.values():
            for kept in (kept for group in groups for kept in group.kept):
                self._note_number(self._prefix(clean(kept.raw)))
        if not self._numbers_are_ranks():
            self.ranks -= self._numbers - self._said
        for cause, groups in self._groups.items():
            for group in groups:
                over = CAUSES[cause].follows and group.step == self.ended
                if over or group.step + SURVIVED_BY <= self.steps:
                    continue
                self._read_ranks(group)
                one = found.setdefault(cause, LineSeen(cause))
                one.hits += map(self._hit, group.kept)
                one.ranks |= group.ranks
                one.ranks |= group.numbers if self._numbers_are_ranks() else set()
        for cause, one in found.items():
            one.ranks |= {rank for hit in one.hits for rank in hit.ranks}
            one.nodes = [node for hit in one.hits for node in hit.nodes]
            if not one.nodes and (before := self._survived.get(cause)):
                one.nodes = [node for kept in before.kept for node in self._hit(kept).nodes]
        return list(found.values())

    def doubtful(self, *, failed: bool) -> Hit | None:
        """Return an error behind which there are steps, or an end, but which may have come last.

        What a program prints is mostly kept back until it ends where it is no terminal, and its
        errors are not: all steps may stand behind the error that ended it.

        Args:
            failed: whether an exit code says that the program has failed.
        """
        if (error := self._ended_behind) is not None and error.step + SURVIVED_BY == self.ended:
            return self._doubted(error, _PERHAPS)
        error = self._last_error if failed else None
        error = error or self._first_error
        if error is None or not self.steps or self.ended >= 0:
            return None
        if not failed and self._has_launchers:
            return None  # their ranks keep nothing back
        hit = self._doubted(error, _PROBABLY if failed else _PERHAPS)
        return None if hit.t and self.went_on_after(hit.t) else hit

    def last_words(self) -> list[Hit]:
        """Return the last lines of trouble behind the last step, in words that no rule knows."""
        if self.ended == self.steps:
            return []
        hits = []
        for number, raw in self._tail:
            text = clean(raw)
            if number <= self.last_step_line or self._rules.is_harmless(text):
                continue
            if (meaning := of_line(text)) is not None:
                hits.append(self._hit(_Kept(meaning, raw, [], number)))
        return hits or self._open_traceback()

    def _open_traceback(self) -> list[Hit]:
        """Return the last line of a log that ends in a traceback."""
        begun = max(self._tracebacks.values(), key=lambda one: one.line, default=None)
        if begun is None or begun.ignored or self.lines - begun.line >= _LONGEST_TRACEBACK:
            return []
        number, raw = next(one for one in reversed(self._tail) if one[1].strip())
        if begun.line <= self.last_step_line:
            return []
        meaning = of_open_traceback("\n".join(begun.frames))
        return [self._hit(_Kept(meaning, raw, [], number))]

    def _doubted(self, error: _Error, confidence: float) -> Hit:
        meaning = error.kept.meaning._replace(confidence=confidence, certain=False)
        return self._hit(error.kept._replace(meaning=meaning))

    def went_on_after(self, t: float) -> bool:
        """Return whether the last steps are known to have been after a time."""
        times = [read_prefix(clean(raw), self._year).t for raw in self._step_lines]
        return len(times) == SURVIVED_BY and min(times) > t

    def _hit(self, kept: _Kept) -> Hit:
        if kept.meaning.tasks and self._has_launchers:
            kept = kept._replace(meaning=kept.meaning._replace(ranks=()))
        text = clean(kept.raw)
        prefix = self._prefix(text)
        if kept.meaning.local and prefix.node:
            kept = kept._replace(meaning=kept.meaning._replace(ranks=()))
        ends_block = _BLOCK_LINE.match(text[prefix.begins :]) is not None
        is_first = ends_block and _is_first(kept.before)
        ranks, nodes = self._who(kept, text, prefix)
        t = prefix.t or self._time_before(kept.before)
        quote = one_line(text, _LONGEST_QUOTE)
        like = alike(kept.raw[:_LONGEST_QUOTE])
        return Hit(
            kept.meaning,
            ranks,
            nodes,
            t,
            kept.line,
            quote,
            self.path,
            like,
            is_first,
            prefix.is_warning,
            bool(prefix.t or (ends_block and t)),
        )

    def _who(
        self, kept: _Kept, text: str, prefix: Prefix
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return ranks and nodes that a line names, else those that say it."""
        meaning, rank, node = kept.meaning, prefix.rank, prefix.node
        if prefix.is_number and not self._numbers_are_ranks():
            rank = None
        whose = self.rank if rank is None else rank
        if whose is not None and node:
            self._note_node(whose, node)
        for named in meaning.ranks:
            for host in meaning.nodes[:1]:
                self._note_node(named, host)
        if _BLOCK_LINE.match(text[prefix.begins :]):
            rank, node = _of_block(kept.before, rank, node)
        if not node and (found := _NODE_IN_TEXT.search(text)):
            node = found[1] or found[2]
        if rank is None and len(said := _RANK_IN_TEXT.findall(text)) == 1:
            rank = int(said[0])
        if rank is None and node == prefix.node and not CAUSES[meaning.cause].comes_from_anywhere:
            rank = self.rank
        if meaning.aside and not CAUSES[meaning.cause].follows:
            rank, node = None, node if _LOCAL_LAUNCHER in text else ""
        ranks = meaning.ranks or (() if rank is None else (rank,))
        return ranks, meaning.nodes or ((node,) if node else ())

    def _time_before(self, before: list[bytes]) -> float:
        for raw in reversed(before):
            if t := read_prefix(clean(raw), self._year).t:
                return t
        return 0.0

    def _note_number(self, prefix: Prefix) -> None:
        if prefix.rank is not None and len(self._numbers) < _MOST_RANKS:
            (self._numbers if prefix.is_number else self._said).add(prefix.rank)

    def _numbers_are_ranks(self) -> bool:
        """Whether numbers in brackets are ranks, and not processes or numbers of lines.

        The ranks of a job are its first numbers.
        """
        most = max(self._numbers, default=-1)
        ranks = self.world_size or max(self._said, default=-1) + 1
        if not ranks:
            ranks = max(_FEW_RANKS, _RANKS_OF_EACH * len(self._numbers))
        return most < ranks

    def _count_step(self, step: Step, raw: bytes) -> None:
        if step in self._recent:
            return
        if _is_back(step, self._last_of.get(step.kind, step)):
            self._go_on(SURVIVED_BY)
            self._recent.clear()
            self._last_of.clear()
        self._last_of[step.kind] = step
        if step.number is not None:
            self.last_step = step.number
        self._recent[step] = None
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self._step_lines.append(raw[:_LOOKED_BACK_AT])
        self._go_on(1)

    def _go_on(self, steps: int) -> None:
        self.steps += steps
        self._enough.clear()

    def _is_enough(self, causes: frozenset[str]) -> bool:
        """Whether lines that mean one of these causes, or nothing, would change nothing.

        Not near a summary of torchrun: of these lines more are kept.
        """
        return bool(causes) and causes <= self._enough and not self._has_summary

    def _note_node(self, rank: int, node: str) -> None:
        if len(self.node_of) < _MOST_RANKS:
            self.node_of.setdefault(rank, node)

    def _note_nodes(self, lines: list[bytes]) -> None:
        """Look at some lines for ranks and their nodes: at many of the first ones."""
        is_first = self.lines == (self._part.lines if self._part else 0)
        samples = _FIRST_SAMPLES if is_first else _SAMPLES
        for raw in lines[:: max(1, len(lines) // samples)]:
            prefix = read_prefix(clean(raw[:_LONGEST_QUOTE]), self._year)
            self._note_number(prefix)
            if prefix.rank is not None:
                if len(self.ranks) < _MOST_RANKS:
                    self.ranks.add(prefix.rank)
                if prefix.node:
                    self._note_node(prefix.rank, prefix.node)

    def _count_ranks(self, chunk: bytes) -> None:
        for part in (chunk[:_RANKS_SAMPLE], chunk[_RANKS_SAMPLE:][-_RANKS_SAMPLE:]):
            for size in _WORLD_SIZE.findall(part):
                self.world_size = max(self.world_size, int(size))
            for found in _RANKS.findall(part):
                if len(self.ranks) < _MOST_RANKS:
                    self.ranks.add(int(found[0] or found[1]))


_NOBODY = object()
_PLAIN = Fit((), -1, None, frozenset())
_NONE: frozenset[str] = frozenset()


def _last_line(begun: _Traceback | None, text: str, fit: Fit) -> tuple[str, str] | None:
    """Return class and message of the exception, if a line ends a traceback."""
    last = begun.last_line(text) if begun is not None else None
    if last is not None and fit.step >= 0 and last[0].islower() and "." not in last[0]:
        return None  # "step: 12"
    return last


def _open(path: str, flags: int) -> int:
    # Without waiting for a writer, should it be a pipe.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _shortened(line: bytes, longest: int = CHUNK_BYTES) -> bytes:
    """Return a line without its middle if it is too long."""
    half = longest // 2
    return line if len(line) <= longest else line[:half] + line[-half:]


def _is_back(step: Step, last: Step) -> bool:
    """Whether the program began again between two steps. Each epoch may count steps from 0."""
    if step.epoch != last.epoch and step.epoch is not None and last.epoch is not None:
        return step.epoch <= last.epoch - _EPOCHS_BACK
    if step.number is None or last.number is None:
        return False
    return step.number <= last.number - _BEGAN_AGAIN


def _thinned(events: Iterable[_Event]) -> Iterator[_Event]:
    """Leave out the middle of long runs of lines that tell of steps and nothing else."""
    run: list[_Event] = []
    for event in events:
        if event.fit.step >= 0 and not event.fit.numbers:
            run.append(event)
            continue
        yield from _ends(run)
        run.clear()
        yield event
    yield from _ends(run)


def _ends(run: list[_Event]) -> list[_Event]:
    return run if len(run) <= 2 * _STEPS_READ else run[:_STEPS_READ] + run[-_STEPS_READ:]


def _of_block(before: list[bytes], rank: int | None, node: str) -> tuple[int | None, str]:
    """Return rank and host from the lines before, of a block of torchrun or Ray about a failure."""
    for raw in before[-_BLOCK_LINES:]:
        text = clean(raw)
        text = text[read_prefix(text).begins :]
        if found := _BLOCK_RANK.match(text):
            rank = int(found[1])
        elif found := _BLOCK_NODE.match(text):
            node = found[1]
    return rank, node


def _is_first(before: list[bytes]) -> bool:
    """Whether a line of a block is of the failure that torchrun has seen first."""
    return any(_FIRST_FAILURE in line for line in before[-_BLOCK_LINES - 2 :])
