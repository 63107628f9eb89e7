"""The answer of NCCL's RAS service about a job, JSON (NCCL 2.28) or text (2.24). Pure.

Each process of a job answers for all of them: which do not answer, and how many collectives of each
kind a rank has launched in each communicator. Who has launched fewer than others keeps them
waiting, unless it waits itself in another communicator.

Ranks of a communicator have separate numbers, so processes are named by host and pid.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MOST_BYTES = 16 << 20  # 4,096 ranks in four communicators each are 12 MiB
_LOST = "it does not answer"
_DEAD = "it is considered dead"
# NCCL up to 2.29 leaves a comma out where it tells of a rank that is missing.
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d{1,9})(\s{1,40}"status")')
_MISMATCH = re.compile(r"\s*Communicator ranks have different (\w{1,40}) operation counts")
_MANY = re.compile(
    r"\s*\d{1,7} ranks have (?:launched up to operation (\d{1,19})|not launched any operations)"
)
_PROCESS = r"managed by process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64})"
_ONE = re.compile(
    r"\s*Rank \d{1,7}"
    r"(?: has (?P<alone>launched up to operation (?P<number>\d{1,19})"
    r"|not launched any operations))?"
    rf" -- GPU .{{1,60}}{_PROCESS}"
)
_GONE = re.compile(r"\s*Process (?P<pid>\d{1,10}) on node (?P<host>\S{1,64}) managing GPU")
_SECTION = re.compile(r"(?:#\d{1,7}-\d{1,7} \(\w{1,20}\) )?([A-Z]{2,20})\s*$")
_MOST_LINES = 200_000


class Member(NamedTuple):
    """One process of a job."""

    host: str
    pid: int


class RasReport(NamedTuple):
    """The ranks that keep others waiting.

    Attributes:
        lost: processes that do not answer, with the rest of a sentence.
        behind: processes that have launched fewer collectives than others, with the same.
        known: all processes that are named.
    """

    lost: dict[Member, str]
    behind: dict[Member, str]
    known: frozenset[Member]

    def of(self, pids: Collection[int]) -> dict[int, str]:
        """The state of these processes of one host, by pid; {} = none of them is in it."""
        mine = [each for each in self.known if each.pid in pids]
        hosts = [each.host for each in mine]
        host = max(hosts, key=hosts.count, default="")
        said = {**self.behind, **self.lost}
        return {each.pid: said[each] for each in mine if each.host == host and each in said}


class _Status(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    host: str = ""
    pid: int = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, int] = {}

    @property
    def process(self) -> Member:
        return Member(self.host, self.pid)


class _Communicator(msgspec.Struct):
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Answer(msgspec.Struct):
    communicators: list[_Communicator]


class _Lead(NamedTuple):
    """In one communicator, who has launched more of an operation than who."""

    operation: str
    most: int
    counts: dict[Member, int]  # of those that have launched fewer
    ahead: frozenset[Member]  # as far as they are named


def parse(answer: bytes) -> RasReport | None:
    """Read an answer; None = it is none of NCCL."""
    if answer.lstrip()[:1] == b"{":
        return _of_json(answer)
    text = answer.decode("utf-8", "replace")
    return _of_text(text) if "ommunicator" in text else None


def _of_json(answer: bytes) -> RasReport | None:
    try:
        told = msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", answer), type=_Answer)
    except (msgspec.MsgspecError, RecursionError):
        return None
    leads: list[_Lead] = []
    lost: dict[Member, str] = {}
    known: set[Member] = set()
    for one in told.communicators:
        known.update(rank.process for rank in (*one.ranks, *one.missing_ranks) if rank.pid > 0)
        for rank in one.missing_ranks:
            dead = rank.status.considered_dead or lost.get(rank.process) == _DEAD
            lost[rank.process] = _DEAD if dead else _LOST
        for operation in sorted({name for rank in one.ranks for name in rank.collective_counts}):
            counts = {rank.process: rank.collective_counts.get(operation, 0) for rank in one.ranks}
            most = max(counts.values())
            fewer = {process: count for process, count in counts.items() if count < most}
            if fewer:
                leads.append(_Lead(operation, most, fewer, frozenset(counts.keys() - fewer)))
    return _report(leads, lost, known)


class _Text:
    """Reads text line by line."""

    def __init__(self) -> None:
        self.leads: list[_Lead] = []
        self.lost: dict[Member, str] = {}
        self.known: set[Member] = set()
        self._section = ""
        self._operation: str | None = None  # None = no counts are listed here
        self._counts: dict[Member, int] = {}
        self._number = self._most = 0

    def take(self, line: str) -> None:
        if match := _SECTION.match(line):
            self.finish()
            self._section = match[1]
        elif match := _MISMATCH.match(line):
            self.finish()
            self._operation = "" if match[1] == "collective" else match[1]
        elif match := _MANY.match(line):
            self._number = int(match[1] or 0)
            self._most = max(self._most, self._number)
        elif match := _ONE.match(line):
            self._rank(match)
        elif match := _GONE.match(line):
            process = _process(match)
            self.known.add(process)
            dead = self._section == "DEAD"
            self.lost[process] = _DEAD if dead else self.lost.get(process, _LOST)
        elif not line.strip():
            self.finish()

    def _rank(self, match: re.Match[str]) -> None:
        process = _process(match)
        self.known.add(process)
        if self._section == "INCOMPLETE":
            self.lost.setdefault(process, _LOST)
        elif self._operation is not None:
            count = int(match["number"] or 0) if match["alone"] else self._number
            self._counts[process] = count
            self._most = max(self._most, count)

    def finish(self) -> None:
        """These counts are over."""
        ahead = frozenset(each for each, count in self._counts.items() if count == self._most)
        fewer = {each: count for each, count in self._counts.items() if count < self._most}
        if self._operation is not None and fewer:
            self.leads.append(_Lead(self._operation, self._most, fewer, ahead))
        self._operation, self._counts, self._number, self._most = None, {}, 0, 0


def _process(match: re.Match[str]) -> Member:
    return Member(match["host"], int(match["pid"]))


def _of_text(text: str) -> RasReport:
    told = _Text()
    for line in text.splitlines()[:_MOST_LINES]:
        told.take(line)
    told.finish()
    return _report(told.leads, told.lost, told.known)


def _report(leads: list[_Lead], lost: dict[Member, str], known: set[Member]) -> RasReport:
    """Leave out those that wait for somebody: in that communicator, others have launched fewer."""
    waits = {process for lead in leads for process in lead.ahead}
    behind: dict[Member, str] = {}
    for process, text in _behind(leads):
        if process not in waits and process not in lost:
            behind.setdefault(process, text)
    return RasReport(lost, behind, frozenset(known))


def _behind(leads: list[_Lead]) -> Iterator[tuple[Member, str]]:
    for lead in leads:
        fewest = min(lead.counts.values())
        name = f"{lead.operation} operations" if lead.operation else "operations"
        for process, count in lead.counts.items():
            if count == fewest:
                yield process, f"it has launched {count} {name}, others {lead.most}"
