"""The rules of `rules.yaml`: which lines of a log mean what. Pure."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTRAP, Signals
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from undaunted.attribution.findings import CAUSES
from undaunted.attribution.logs.literals import Literals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from undaunted.attribution.findings import Finding

FILE = Path(__file__).with_name("rules.yaml")
# Left out of templates: what differs between lines that say the same, and spaces.
LEFT_OUT = bytes(c for c in range(33) if c != 10) + b"0123456789\x7f"
LOWER = bytes.maketrans(bytes(range(65, 91)), bytes(range(97, 123)))
# Numbers of what is built in.
XID, TRACEBACK, EXCEPTION_IGNORED, CHAINED, STEP, END = range(-6, 0)
EXIT = "exit"  # of a rule: how a process ended says the cause
_ENDS = ("ended", "signal", "failed")  # groups of such a rule
_SHELL_BASE = 128  # a shell's code for the end by a signal: this and its number
# Statuses of Windows that are errors; most common is 0xC0000005, an access violation.
_NT_ERRORS = range(0xC0000000, 0xC0010000)
_NT_CTRL_C = 0xC000013A
_CRASHES = frozenset({SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP})
_SIGNALS = {  # as shells call them
    "killed": SIGKILL,
    "segmentation fault": SIGSEGV,
    "bus error": SIGBUS,
    "illegal instruction": SIGILL,
    "illegal hardware instruction": SIGILL,
    "floating point exception": SIGFPE,
    "abort": SIGABRT,
    "aborted": SIGABRT,
}
_MOST_NAMED = 1 << 12  # ranks that a line names
_MOST_DIGITS = 15  # of a number, or a range of two: longer ones mean nothing
_LEAST_LITERAL = 3  # bytes
_XID_LITERAL = "xid"
_TRACEBACK_LITERAL = "traceback (most recent call last)"
_IGNORED_LITERAL = "exception ignored in"
_CHAINED_LITERALS = (
    "above exception was the direct cause of",
    "during handling of the above exception",
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.){0,8}[A-Z]\w{0,60}(?:: |:?$)").match
_DIFFERENT = re.compile(rb"/[\w./+-]*|\b0x[0-9a-f]+\b|\b[0-9a-f]{6,}\b|\d+|\s+")
_RAISE = re.compile(r"raise [A-Za-z_]").match  # a line of source in a traceback
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.){0,8}\w{0,60}(?:Error|Exception): ").match
_MARKS = ("Error: ", "Exception: ")  # one of them is in such a line
_CAPITAL = re.compile(r"(?<!\\)[A-Z]")  # in an expression: not a class such as \S
_XID = re.compile(
    r"\bXid (?:\([^)]{0,40}\):? ?)(\d{1,4})\b|\bxid[ =:#]{1,3}(\d{1,4})\b", re.IGNORECASE
)
_XID_BEFORE = re.compile(r"caused by previous Xid (\d{1,4})\b", re.IGNORECASE)
_OF_XID = 0.95  # confidence
_OF_ANOTHER_XID = 0.4
_XIDS_OF_LINKS = range(144, 151)  # these say whether they are fatal
_NOT_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts about a message; the head of the file says what each key means."""

    id: str
    texts: list[str] = []
    xids: list[int] = []
    why: str
    remedy: str
    sources: list[str]


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is written; the head of the file says what each key means."""

    cause: str
    any: list[str]
    line: str = ""
    unless: str = ""
    confidence: float = 0.9
    aside: bool = False
    sure: bool = False
    certain: bool = False
    exception: bool = False
    messages: list[Message] = []


class _Steps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    any: list[str]
    lines: list[str]


class _Ends(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    any: list[str]
    line: str
    unless: str


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    harmless: str
    steps: _Steps
    not_steps: str
    ends: _Ends
    rules: list[_Row]


class Step(NamedTuple):
    """That a step or an epoch was made.

    Attributes:
        kind: which kind of line says it.
        text: differs from that of other steps.
        number: of the step, None if the line does not have one.
        epoch: its number, None if the line does not have one.
    """

    kind: int
    text: str
    number: float | None
    epoch: float | None


class Fit(NamedTuple):
    """The possible meanings of lines with the same template.

    Attributes:
        numbers: of rules that may fit, in order.
        step: which kind of line about a step it is, -1 = of none.
        meaning: that of all of them, None if it has to be found for each.
        causes: that they may mean; empty if they may tell of something else as well.
    """

    numbers: tuple[int, ...]
    step: int
    meaning: Meaning | None
    causes: frozenset[str]


class Meaning(NamedTuple):
    """The meaning of a line.

    Attributes:
        cause: a name of `CAUSES`.
        confidence: from 0 to 1.
        ranks, nodes: who the line names; not who says it.
        aside: the rank that says it need not be to blame.
        certain: the program's own, and the same in every attempt.
        tasks: the ranks are tasks of srun's, which are launchers where there are any.
        local: the ranks are those of a node.
        alone: the cause where nothing says more, "" = this one.
        message: None if the line has no known one.
    """

    cause: str
    confidence: float
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    aside: bool = False
    certain: bool = False
    tasks: bool = False
    local: bool = False
    alone: str = ""
    message: Message | None = None


def _expression(text: str, *, names: bool = True) -> Callable[[str], re.Match[str] | None]:
    """Return a search in which case does not matter.

    Args:
        text: the regular expression.
        names: whether its groups may find names, whose case does matter.
    """
    if (names and "(?P<" in text) or _CAPITAL.search(text.replace("(?P<", "")):
        return re.compile(text, re.IGNORECASE).search
    search = re.compile(text).search  # several times as fast
    return lambda line: search(line.lower())


def _ranks(text: str) -> list[int]:
    """Return the ranks of a text like ``3,8-15``."""
    ranks: list[int] = []
    for part in re.split(r"[,\s]+", text):
        first, _, last = part.partition("-")
        if first.isdigit() and len(part) <= _MOST_DIGITS:
            end = int(last) if last.isdigit() else int(first)
            ranks += range(int(first), min(end, int(first) + _MOST_NAMED) + 1)
    return ranks[:_MOST_NAMED]


class End(NamedTuple):
    """The meaning of the end of a process; see `Meaning`."""

    cause: str
    confidence: float
    alone: str = ""


def ended(named: Mapping[str, str]) -> End:
    """Return what it means that a process ended so.

    Args:
        named: texts of groups ``ended``, ``signal`` and ``failed``.
    """
    name, text = next(each for each in named.items() if each[0].startswith(_ENDS))
    if name.startswith("failed"):
        return End("terminated", 0.9, "program_error")
    if text.lstrip("-").isdigit():
        number = -int(text) if name.startswith("signal") else int(text)
        if (status := number % (1 << 32)) in _NT_ERRORS:
            return End("cancelled" if status == _NT_CTRL_C else "native_crash", 0.85)
        signal = -number if number < 0 else number - _SHELL_BASE
    else:
        name = f"SIG{text.upper().removeprefix('SIG')}"
        number, signal = 0, _SIGNALS.get(text.lower(), Signals.__members__.get(name, 0))
    if signal == SIGKILL:
        return End("killed", 0.9)
    if signal in _CRASHES:
        return End("native_crash", 0.85)
    if signal == SIGABRT:  # ends also who has lost a peer
        return End("terminated", 0.9, "native_crash")
    return End("terminated", 0.9, "program_error" if 0 < number < _SHELL_BASE else "")


class Rule:
    """One rule, ready to be applied."""

    def __init__(self, row: _Row) -> None:
        self.row = row
        line = row.line or "|".join(map(re.escape, row.any))
        self._line = _expression(line)
        self._unless = _expression(row.unless) if row.unless else None
        self._texts = [(each, [text.lower() for text in each.texts]) for each in row.messages]
        self.literals = Literals(line)
        # Whether a line and another with the same template may differ in what they mean.
        without_counts = re.sub(r"\{[\d,]+\}", "", line + row.unless)
        without_classes = re.sub(r"\\[a-z]", " ", without_counts)
        self._minds_digits = bool(re.search(r"(?<![a-z])\d", without_classes))
        self.finds_nodes = "(?P<node" in line
        self.varies = row.cause == EXIT
        self.is_the_same_for_all = not (self._minds_digits or row.exception or "(?P" in line)

    @property
    def is_read_always(self) -> bool:
        """Return whether more of its lines are read, although enough of its cause are known."""
        return self.finds_nodes or self.varies

    def is_likely(self, line: str, begins: int) -> bool:
        """Return whether it may fit a line with the template of this one."""
        if self._minds_digits:
            return self.literals.are_in(template(line.encode()).decode())
        return self.meaning(line, begins) is not None

    def has_line(self, line: str) -> bool:
        """Return whether it may fit a line with any prefix, outside tracebacks."""
        if self.row.exception:
            return any(mark in line for mark in _MARKS)
        return self._line(line) is not None

    def meaning(self, line: str, begins: int) -> Meaning | None:
        """Return what a line means that has one of the literals, None if nothing.

        Args:
            line: a whole line, cleaned.
            begins: where its message begins.
        """
        row = self.row
        text = line[begins:] if row.exception else line
        found = self._line(text)
        if not found or (self._unless and self._unless(text)):
            return None
        named = {name: value for name, value in found.groupdict().items() if value}
        end = ended(named) if self.varies else End(row.cause, row.confidence)
        return Meaning(
            end.cause,
            end.confidence,
            tuple(
                rank
                for name, value in named.items()
                if name.startswith(("rank", "task", "local"))
                for rank in _ranks(value)
            ),
            tuple(value for name, value in named.items() if name.startswith("node")),
            row.aside,
            row.certain,
            "task" in named,
            "local" in named,
            end.alone,
            self._message(line.lower()) if self._texts else None,
        )

    def _message(self, line: str) -> Message | None:
        return next(
            (message for message, texts in self._texts if any(text in line for text in texts)), None
        )


class Rules:
    """All rules, in their order, by number."""

    def __init__(self, table: _Table) -> None:
        self._rules = [Rule(row) for row in table.rules]
        self._xids = {
            xid: Meaning(row.cause, _OF_XID, message=message)
            for row in table.rules
            for message in row.messages
            for xid in message.xids
        }
        self._harmless = _expression(table.harmless)
        self._steps = [_expression(line, names=False) for line in table.steps.lines]
        self._not_steps = _expression(table.not_steps)
        self._ends = _expression(table.ends.line)
        self._not_ends = _expression(table.ends.unless)
        self._literals: dict[bytes, set[int]] = {}  # numbers of rules, by literal
        self._add(XID, [_XID_LITERAL])
        self._add(TRACEBACK, [_TRACEBACK_LITERAL])
        self._add(EXCEPTION_IGNORED, [_IGNORED_LITERAL])
        self._add(CHAINED, _CHAINED_LITERALS)
        self._add(STEP, table.steps.any)
        self._add(END, table.ends.any)
        for number, row in enumerate(table.rules):
            self._add(number, row.any)
        # If a line has none of the first ones, it has none at all: all others are longer than one.
        self._first: dict[bytes, list[bytes]] = {}
        for literal in sorted(self._literals, key=len):
            first = next((one for one in self._first if one in literal), literal)
            self._first.setdefault(first, []).append(literal)

    def _add(self, number: int, literals: Iterable[str]) -> None:
        for literal in literals:
            self._literals.setdefault(template(literal.encode()), set()).add(number)

    def search(self, templates: list[bytes]) -> dict[bytes, tuple[int, ...]]:
        """Return which templates have literals, and the numbers of the rules, in order."""
        found: dict[bytes, set[int]] = {}
        for first, some in _search(templates, self._first):
            for literal, those in _search(some, self._first[first]):
                numbers = self._literals[literal]
                for one in those:
                    found.setdefault(one, set()).update(numbers)
        return {key: tuple(sorted(numbers)) for key, numbers in found.items()}

    def fit(
        self, line: str, begins: int, numbers: tuple[int, ...], *, whole: bool = True
    ) -> Fit | None:
        """Return what lines with the template of this one may mean, None if nothing.

        Args:
            line: a whole line, cleaned.
            begins: where its message begins.
            numbers: as `search` returns them.
            whole: false for a line whose parts are drawn over each other: each may tell of the end.
        """
        left = tuple(
            number for number in numbers if self._is_likely(number, line, begins, whole=whole)
        )
        step = self._kind_of_step(line) if STEP in numbers else -1
        meaning = None
        if left and left[0] >= 0 and self._rules[left[0]].is_the_same_for_all:
            meaning = self.meaning(line, begins, left[:1], ends_traceback=False)
        causes = self.causes(left) if step < 0 else frozenset()
        return Fit(left, step, meaning, causes) if left or step >= 0 else None

    def _is_likely(self, number: int, line: str, begins: int, *, whole: bool) -> bool:
        if number == END:
            return not whole or bool(self._ends(line))
        return number != STEP and (number < 0 or self._rules[number].is_likely(line, begins))

    def causes(self, numbers: tuple[int, ...]) -> frozenset[str]:
        """Return what rules may mean; nothing if one of them is built in, or is always read."""
        if any(number < 0 or self._rules[number].is_read_always for number in numbers):
            return frozenset()
        return frozenset(self._rules[number].row.cause for number in numbers)

    def _kind_of_step(self, line: str) -> int:
        for kind, expression in enumerate(self._steps):
            if expression(line):
                return -1 if self._not_steps(line) else kind
        return -1

    def step(self, line: str, kind: int) -> Step | None:
        """Return the step that a line tells of, None if it tells of none.

        Args:
            line: cleaned.
            kind: of a line with the same template.
        """
        found = self._steps[kind](line)
        if not found:
            return None
        text = " ".join(filter(None, found.groups()))
        named = found.re.groupindex
        step = _number(found["step"]) if "step" in named else None
        return Step(kind, text, step, _number(found["epoch"]) if "epoch" in named else None)

    def is_end(self, line: str) -> bool:
        """Return whether a line says that the program came to its end."""
        return bool(self._ends(line)) and not self._not_ends(line)

    def is_plain(self, line: str, numbers: tuple[int, ...]) -> bool:
        """Return whether a line means nothing, with any prefix, outside tracebacks.

        Args:
            line: cleaned.
            numbers: as `search` returns them.
        """
        return all(number >= 0 and not self._rules[number].has_line(line) for number in numbers)

    def is_harmless(self, line: str) -> bool:
        """Return whether a line tells of something that was dealt with."""
        return self._harmless(line) is not None

    @staticmethod
    def is_exception(message: str) -> bool:
        """Return whether it looks like the last line of a traceback."""
        return bool(_EXCEPTION(message))

    def meaning(
        self,
        line: str,
        begins: int,
        numbers: tuple[int, ...],
        enough: AbstractSet[str] = frozenset(),
        *,
        ends_traceback: bool,
    ) -> Meaning | None:
        """Return what a line means, by the first of the numbered rules that fits.

        Args:
            line: cleaned.
            begins: where its message begins.
            numbers: rules of which a literal is in the line, in order.
            enough: causes that need not be found, unless the line names nodes.
            ends_traceback: whether it may be the last line of a traceback of Python's.
        """
        if XID in numbers and (xid := _XID.search(line)):
            return self._of_xid(int(xid[1] or xid[2]), line)
        if _RAISE(line, begins):
            return None
        for number in self._without_last(numbers, enough):
            if number < 0:
                continue
            rule = self._rules[number]
            if rule.row.exception and not ends_traceback and not _ERROR(line[begins:]):
                continue
            meaning = rule.meaning(line, begins)
            if meaning is not None and meaning.cause in enough and not meaning.nodes:
                return None
            if meaning is not None:
                dealt_with = not rule.row.sure and not ends_traceback and self._harmless(line)
                return None if dealt_with else meaning
        return None

    def _of_xid(self, xid: int, line: str) -> Meaning | None:
        if before := _XID_BEFORE.search(line):
            meaning = self._xids.get(int(before[1]))
            return meaning and meaning._replace(confidence=_OF_ANOTHER_XID)
        if xid in _XIDS_OF_LINKS and _NOT_FATAL.search(line):
            return None
        return self._xids.get(xid)

    def _without_last(self, numbers: tuple[int, ...], enough: AbstractSet[str]) -> tuple[int, ...]:
        """Return rules without the last ones, of which no meaning is needed."""
        end = len(numbers)
        while end and numbers[end - 1] >= 0:
            rule = self._rules[numbers[end - 1]]
            if rule.is_read_always or rule.row.cause not in enough:
                break
            end -= 1
        return numbers[:end]


def _number(text: str | None) -> float | None:
    return float(text) if text and text.strip().isdigit() and len(text) <= _MOST_DIGITS else None


def with_message(one: Finding, message: Message | None) -> Finding:
    """Return a finding with what is known of a message in its quote."""
    if message is None:
        return one
    return replace(one, message=message.id, why=message.why, remedy=message.remedy)


def template(line: bytes) -> bytes:
    """Return a line, or lines, without digits and spaces, in lower case."""
    return line.translate(LOWER, LEFT_OUT)


def _search(
    templates: list[bytes], literals: Iterable[bytes]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Look for literals in all templates at once; yield each one with those that have it."""
    text = b"\n".join(templates)
    ends = list(accumulate(len(one) + 1 for one in templates))
    for literal in literals:
        some: list[bytes] = []
        at = text.find(literal)
        while at >= 0:
            row = bisect_right(ends, at)
            some.append(templates[row])
            at = text.find(literal, ends[row])
        if some:
            yield literal, some


def alike(line: bytes) -> int:
    """Return a hash that lines share that differ only in numbers, hex numbers and paths."""
    return hash(_DIFFERENT.sub(b"", line.lower()))


@functools.cache
def rules() -> Rules:
    """Return the rules of the data file."""
    return read_rules(FILE.read_text("utf-8"))


def read_rules(text: str) -> Rules:
    """Read the text of such a file.

    Raises:
        ValueError: it is no such file.
    """
    try:
        table = msgspec.yaml.decode(text, type=_Table)
        _check(table)
        return Rules(table)
    except (msgspec.DecodeError, re.error) as error:
        raise ValueError(f"{FILE.name}: {error}") from None


def _check(table: _Table) -> None:
    for row in table.rules:
        if row.cause not in CAUSES and row.cause != EXIT:
            raise ValueError(f"{FILE.name}: there is no cause {row.cause!r} in CAUSES")
        for literal in row.any:
            if len(template(literal.encode())) < _LEAST_LITERAL or literal != literal.lower():
                raise ValueError(
                    f"{FILE.name}: {row.cause}: literal {literal!r} is too short, or not lower case"
                )
