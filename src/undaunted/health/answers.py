"""Answers of the checks of a node, as the agent sees them, silence too, and the whole. Pure.

The other side is the program `check_node`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.text import one_line

if TYPE_CHECKING:
    from undaunted.health.check import Settings

# How long the program may take to begin. It is not the node's health that makes it slow.
START_S = 10.0
PROGRAM = str(Path(__file__).with_name("check_node.py"))
_SHOWN = 300  # characters of a finding


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """A check that begins, see `check.Check`."""

    check: int
    name: str
    subject: str = ""
    deadline_s: float = 10.0
    periodic: bool = False
    must_answer: bool = True


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the program about a request: either ``checks``, or the result of ``check``."""

    request: int = 0
    checks: list[Announced] | None = None
    check: int = -1
    seconds: float = 0.0
    text: str = ""
    failed: bool = False
    seen: dict[str, Any] = {}


@dataclass(frozen=True)
class Result:
    """The outcome of one check.

    Attributes:
        name, subject: see `check.Check`.
        seconds: how long it took, None if it has not answered.
        text: what was found, "" = nothing is wrong.
        failed: whether the node is unhealthy because of it.
    """

    name: str
    subject: str = ""
    seconds: float | None = None
    text: str = ""
    failed: bool = False

    def what(self) -> str:
        """The name of the check."""
        return f"the {self.name} check" + (f" of {self.subject}" if self.subject else "")

    def line(self) -> str:
        """As a sentence: which check, what it found."""
        if not self.name:
            return self.text
        if self.seconds is None:
            return f"{self.what()} {self.text}"
        return f"{self.what()} {'failed' if self.failed else 'could not tell'}: {self.text}"


@dataclass(frozen=True)
class Report:
    """The outcome of all checks, in the order in which they were announced."""

    results: list[Result] = field(default_factory=list)

    def problem(self) -> str:
        """The reason for which the node is unhealthy, "" if it is healthy."""
        return "; ".join(result.line() for result in self.results if result.failed)

    def notes(self) -> list[str]:
        """The checks that could not be made, and why."""
        return [result.line() for result in self.results if result.text and not result.failed]


def first_line(settings: Settings, seen: dict[str, Any]) -> bytes:
    """Return what the program is told before all else."""
    return msgspec.json.encode({"settings": settings._asdict(), "seen": seen}) + b"\n"


def request(number: int, *, periodic: bool) -> bytes:
    """Return what asks it to check; the answers bear the number."""
    return msgspec.json.encode({"request": number, "periodic": periodic}) + b"\n"


class Examination:
    """The answers to one request, as they come.

    Attributes:
        seen: what the checks want to be told the next time, by check; taken over from earlier ones
            and kept up to date.
    """

    def __init__(self, number: int, seen: dict[str, Any]) -> None:
        """Begin to wait for the answers to request ``number``; ``seen`` is changed."""
        self.seen = seen
        self._number = number
        self._announced: dict[int, Announced] | None = None
        self._results: dict[int, Result] = {}
        self._announced_s = 0.0
        self._gone = ""

    def take(self, line: bytes, now_s: float) -> None:
        """Take a line; ``now_s`` is the time since the request, seconds.

        Raises:
            ValueError: it is none of the program's.
        """
        try:
            said = msgspec.json.decode(line, type=Line)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise ValueError(f"no answer of the checks: {error}") from None
        if said.request != self._number:
            return  # late, to an earlier one that nobody waits for any more
        if said.checks is not None:
            self._announced = {one.check: one for one in said.checks}
            self._announced_s = now_s
        elif self._announced is not None and (one := self._announced.get(said.check)) is not None:
            self.seen[f"{one.name} {one.subject}"] = said.seen
            text = one_line(said.text, _SHOWN)
            self._results[said.check] = Result(
                one.name, one.subject, said.seconds, text, said.failed and bool(text)
            )

    def end(self, why: str) -> None:
        """No line comes any more."""
        self._gone = why

    def wait_s(self, now_s: float) -> float:
        """Return how long it makes sense to wait for the next line, 0 = no longer."""
        if self._gone:
            return 0.0
        if self._announced is None:
            return max(0.0, START_S - now_s)
        ends = [self._announced_s + one.deadline_s for one in self._missing()]
        return max(0.0, max(ends, default=0.0) - now_s)

    def waits_for(self) -> str:
        """Name the checks that have not answered yet."""
        if self._announced is None:
            return "the health checks to begin"
        return ", ".join(Result(one.name, one.subject).what() for one in self._missing())

    @property
    def stuck(self) -> bool:
        """Return whether a check has not answered: the program is of no further use."""
        return self._announced is None or bool(self._missing()) or bool(self._gone)

    @property
    def has_periodic(self) -> bool:
        """Return whether one of the checks is to be repeated in a round."""
        return any(one.periodic for one in (self._announced or {}).values())

    def report(self) -> Report:
        """Return what came of it; checks that have not answered are findings."""
        if self._announced is None:
            why = self._gone or f"they did not begin within {START_S:g} s"
            return Report([Result("", text=f"the health checks could not be made: {why}")])
        return Report(
            [
                self._results.get(number) or self._silent(one)
                for number, one in self._announced.items()
            ]
        )

    def _missing(self) -> list[Announced]:
        return [
            one for number, one in (self._announced or {}).items() if number not in self._results
        ]

    def _silent(self, one: Announced) -> Result:
        if self._gone:
            return Result(one.name, one.subject, text=f"has no result: {self._gone}")
        text = f"did not answer within {one.deadline_s:g} s"
        return Result(one.name, one.subject, text=text, failed=one.must_answer)
