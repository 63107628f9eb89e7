"""The source and time of a line of a log, by its prefix, or by the name of its file. Pure.

Many programs write something before a line: `srun --label` the rank, torchrun the role and rank,
journald a time and the host, loggers a time and a level. Pieces are taken off one after the other.
"""

from __future__ import annotations

import functools
import re
from calendar import timegm
from dataclasses import dataclass

TRACEBACK_HEAD = "Traceback (most recent call last)"
_MOST_PIECES = 10
_LONGEST_PREFIX = 400
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL|err|error|info|warning)"
# Names of nodes have a digit or a hyphen in them: words before a colon that have none are words.
_NODE = r"[a-z](?=[\w.-]*[\d-])[\w.-]*"
_PIECE = re.compile(
    rf"""\s*(?:
      [\[(]?(?P<date>\d{{4}}[-/]\d\d[-/]\d\d)[T_ ](?P<clock>{_CLOCK})
        [ ]?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?[\])]?:?(?=[\s\[\]|:-]|$)
    | (?P<month>[A-Z][a-z][a-z])[ ](?P<day>[ \d]\d)[ ](?P<syslog>{_CLOCK})
        (?:[ ](?P<host>[\w.-]+)[ ](?P<program>[\w./@-]+(?:\[\d+\])?):)?
    | \[?[A-Z][a-z][a-z][ ](?P<ctime_month>[A-Z][a-z][a-z])[ ]{{1,2}}(?P<ctime_day>\d{{1,2}})[ ]
        (?P<ctime>{_CLOCK})[ ](?:(?P<ctime_zone>UTC|GMT)[ ])?(?P<ctime_year>\d{{4}})\]?
    | (?P<short_day>\d\d-\d\d)[ ](?P<short>{_CLOCK})(?=[\s\[])
    | \[?(?P<level>[IWEFV])(?P<glog_day>\d{{3,4}})[ ](?P<glog>{_CLOCK})
        (?:[ ]+\d+)?(?:[ ][\w./<>-]+:\d+)?\]
    | \[(?P<bare_level>[IWEFV])[ ][\w./<>-]+:\d+\]
    | \[[ ]*\d{{1,9}}\.\d{{6}}\]
    | time[ ]{{1,12}}:(?=[ ]\d{{4}}-)
    | \[\d\d:\d\d:\d\d\]
    | std(?:out|err)[ ][FP](?=[ ])
    | \[(?:[A-Z]{{4,8}}\|)?[\w./<>-]+\.\w+:\d+(?::[\w<>]+)?\]
    | <\d>
    | \[(?:\d+,)?(?:mpirank:)?(?P<mpi>\d+)(?:,(?P<mpi_node>[\w.-]+))?\]<std(?:out|err)>:
    | [\[(<]?(?i:global_?)?(?i:rank)[ :=_-]{{0,2}}(?P<rank>\d{{1,7}})(?:/\d+|[ ]of[ ]\d+)?
        (?:[\])>]:?|:|[ ]?\||(?=,[ ]))
    | \[rank=(?P<pair_rank>\d{{1,7}})[, ]+(?:host|node|hostname)=(?P<pair_node>[\w.-]+)\]
    | \[(?P<role>[a-z_]{{3,20}})(?P<role_rank>\d{{1,7}})\]:
    | \[(?P<bracket>\d{{1,7}})\](?::|[ ])(?![ ]*NCCL)
    | \[pod/(?P<pod>[\w.-]+)/[\w.-]+\]
    | \((?:[\w.]+[ ])?pid=\d+(?:,[ ]ip=(?P<ip>[\w.:-]+))?\)
    | (?P<nccl>[\w.-]+):\d+:\d+[ ]\[(?P<gpu>-?\d+)\]
    | [\[(](?:[a-z-]+[ ])?(?P<bracket_node>(?=[\w.-]*\d){_NODE})
        (?:[:/](?:(?:rank)?(?P<node_rank>(?<=rank)\d{{1,7}}|\d{{1,4}})|\d{{5,9}}))?[\])]:?
    | \[?{_LEVEL}[\]:]?(?=\s|$):?
    | (?:host|node|hostname)=(?P<host_is>[\w.-]+)
    | (?:[|:-]|>>)(?=\s)
    )""",
    re.VERBOSE,
)
# Only where a line begins, or after a time: further on they may be words of the message.
_FRONT = re.compile(
    rf"""(?:
      \s{{0,6}}(?P<label>\d{{1,7}}):(?=[ ]|$)
    | \s?slurmstepd-(?P<step_node>[\w.-]{{1,255}}):[ ]
    | \s?(?P<node>(?!(?:step|iter|epoch|layer|stage|cuda|line|rank|loss|val|pid)[a-z]*[-_]?\d)
        (?!gpu_?\d{{1,2}}\b)(?![\w.]{{1,80}}\.[A-Z]){_NODE})(?::[ ]|[ ]*\|[ ])
    | \s?(?P<address>\d{{1,3}}(?:\.\d{{1,3}}){{3}}):[ ](?=\S)
    | \s?(?P<daemon_node>(?=[\w.-]*\d){_NODE})[ ][a-z][\w-]*(?:\[\d+\])?:[ ]
    | \s?[a-z]+[ ](?P<watched>(?=[\w.-]*\d)[a-z]+[\w.]*-?\d[\w.-]*):[ ]
    )""",
    re.VERBOSE,
)
_JSON_MESSAGE = re.compile(r'"(?:msg|message|log|text|exc_info|exception|traceback)": ?"')
_JSON_RANK = re.compile(r'"(?:global_?)?rank": ?"?(\d{1,7})\b')
_JSON_NODE = re.compile(r'"(?:node|host|hostname)": ?"([\w.-]+)"')
_JSON_END = re.compile(r'(?:\\n)*(?<!\\)"')
_KEEPS_FRONT = frozenset({"date", "clock", "short", "zone", "node", "address", "host", "program"})
_NUMBERS = frozenset({"label", "bracket"})
_SAID = frozenset({"rank", "pair_rank"})
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)?|.)?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RANK_OF_FILE = re.compile(
    r"(?:(?<!local)(?<!node)(?:^|[_.-])(?:global[_-]?)?rank[_.=-]?(\d{1,6})"
    r"|^(?:std(?:out|err)|worker)[_.-]?(\d{1,4})"  # longer ones are numbers of jobs
    r"|^(\d{1,3})(?=\.(?:log|txt|out|err|stdout|stderr)$))(?=[_.-]|$)"
)
_RANK_OF_FOLDER = re.compile(r"(?:global_?)?rank[_.=-]?(\d{1,6})")
_ATTEMPT = re.compile(r"attempt_\d+")  # of torchrun; a folder for each local rank is in it
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(slots=True)
class Prefix:
    """The prefix of the message of a line.

    Attributes:
        rank: of the process that says it, None = not said.
        node: its host, "" = not said.
        t: seconds since 1970, 0 = not said. Clocks without a zone are read as UTC.
        begins: where the message begins.
        is_number: whether the rank is a number in brackets or before a colon: it may be something
            else, such as a process.
        is_said: whether the rank is called one.
        is_warning: whether a library in C++ says that it is a warning, or less.
    """

    rank: int | None = None
    node: str = ""
    t: float = 0.0
    begins: int = 0
    is_number: bool = False
    is_said: bool = False
    is_warning: bool = False


def clean(raw: bytes) -> str:
    """Return a line as text without escape sequences and control characters."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text if text.isprintable() else _CONTROLS.sub(" ", text)


def read_prefix(line: str, year: int = 1970) -> Prefix:
    """Return what stands before the message.

    Args:
        line: as `clean` returns it.
        year: of times that do not say theirs.
    """
    if line.startswith("{") and (message := _JSON_MESSAGE.search(line)):
        place = line.find(f'"{TRACEBACK_HEAD}', message.end())
        return _of_json(line, message.end() if place < 0 else place + 1)
    prefix = Prefix()
    place = 0
    at_front = True  # nothing but times and nodes so far
    for _ in range(_MOST_PIECES):
        piece = _FRONT.match(line, place, _LONGEST_PREFIX) if at_front else None
        piece = piece or _PIECE.match(line, place, _LONGEST_PREFIX)
        if piece is None or piece.end() == place:
            break
        at_front = at_front and piece.lastgroup in _KEEPS_FRONT
        place = _take(prefix, piece, year)
    while place < len(line) and line[place] == " ":
        place += 1
    prefix.begins = place
    return prefix


def _of_json(line: str, begins: int) -> Prefix:
    """Return what an object says beside its message; of a whole traceback the last line counts."""
    rank, node = _JSON_RANK.search(line), _JSON_NODE.search(line)
    if line.startswith(TRACEBACK_HEAD, begins):
        end = _JSON_END.search(line, begins)
        last = line.rfind("\\n", begins, end.start() if end else len(line))
        begins = last + 2 if last >= 0 else begins
    return Prefix(int(rank[1]) if rank else None, node[1] if node else "", 0.0, begins)


@functools.lru_cache(64)
def _expression(prefix: str) -> re.Pattern[str]:
    return re.compile(prefix)


def like_before(line: str, place: int) -> re.Pattern[str]:
    """Return an expression for what stands before a place, whatever its numbers are."""
    before = re.sub(r"(\\ )+(?=\d)", " +", re.escape(line[:place]))
    return _expression(re.sub(r"\d+", r"\\d+", before))


def rank_in_name(path: str) -> tuple[int, str] | None:
    """Return the rank that a file is of as its name says, and the folder of all ranks."""
    *above, folder, name = ("", "", *path.split("/"))
    if found := _RANK_OF_FILE.search(name.lower()):
        return int(found[1] or found[2] or found[3]), "/".join([*above, folder]).lstrip("/")
    if found := _RANK_OF_FOLDER.fullmatch(folder.lower()):
        return int(found[1]), "/".join(above).lstrip("/")
    if is_of_torchrun(path):
        return int(folder), "/".join(above[:-1]).lstrip("/")
    return None


def is_of_torchrun(path: str) -> bool:
    """Return whether torchrun has named the folder of a file, after a rank of the node."""
    parts = path.split("/")[-3:-1]
    return len(parts) == 2 and bool(_ATTEMPT.fullmatch(parts[0])) and parts[1].isdigit()


def _take(prefix: Prefix, piece: re.Match[str], year: int) -> int:
    named = {name: text for name, text in piece.groupdict().items() if text}
    for name in ("label", "mpi", "rank", "pair_rank", "role_rank", "bracket", "node_rank"):
        # Behind the rank of a process stands its rank in a group, as in c10d's messages.
        is_surer = name == "rank" and not prefix.is_said
        if name in named and (prefix.rank is None or is_surer):
            prefix.rank = int(named[name])
            prefix.is_number = name in _NUMBERS
            prefix.is_said = name in _SAID
    if (named.get("level") or named.get("bare_level", "E")) in "IVW":
        prefix.is_warning = True
    for name in (
        "step_node",
        "node",
        "address",
        "daemon_node",
        "watched",
        "host",
        "pod",
        "nccl",
        "mpi_node",
        "bracket_node",
        "pair_node",
        "host_is",
        "ip",
    ):
        if name in named and not prefix.node:
            prefix.node = named[name]
    if not prefix.t:
        prefix.t = _time(named, year)
    return piece.end()


def _time(named: dict[str, str], year: int) -> float:
    zone = 0.0
    if "date" in named:
        year, month, day = map(int, re.split("[-/]", named["date"]))
        clock = named["clock"]
        if (text := named.get("zone", "Z")) not in {"Z", "UTC"}:
            east = int(text[1:3]) * 3600 + int(text[-2:]) * 60
            zone = -east if text[0] == "-" else east
    elif "syslog" in named and named["month"] in _MONTHS:
        month, day, clock = _MONTHS.index(named["month"]) + 1, int(named["day"]), named["syslog"]
    elif "ctime" in named and named["ctime_month"] in _MONTHS:
        year, day, clock = int(named["ctime_year"]), int(named["ctime_day"]), named["ctime"]
        month = _MONTHS.index(named["ctime_month"]) + 1
    elif "short" in named:
        month, day = map(int, named["short_day"].split("-"))
        clock = named["short"]
    elif "glog" in named:  # c10 writes no zero before a month
        month, day, clock = int(named["glog_day"][:-2]), int(named["glog_day"][-2:]), named["glog"]
    else:
        return 0.0
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    try:
        whole = timegm((year, month, day, int(hours), int(minutes), 0))
    except ValueError:  # no such month or year
        return 0.0
    return max(0.0, whole + float(seconds) - zone)
