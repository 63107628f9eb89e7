"""Labelled logs of training jobs that failed, and of some that did not, to judge analysers of logs.

Rules are written with `open/` in sight and judged on `held/`; since results on `held/` are known,
on `fresh/`. Nobody who writes rules opens `fresh/`, nor learns which of its cases fail.

A file is one cause; each of its cases gives what is peculiar to a failure (`root`: the lines that
say why, `cascade`: what follows from it on other ranks), and `Case.log()` puts that into about
2,000 lines of ordinary log.

Lines of `root` and `cascade` are `WHO +SECONDS| text`, and `| text` goes on with the same:

* WHO is a rank, ranks (`0-3,8`; lines of several ranks are interleaved), or `-` for a line without
  a prefix (kernel, Slurm, launcher);
* SECONDS since the failure order the log; below 0 is while the job still trained. `+600/0` is
  printed at 600 and stamped 0: a kernel's line that a collector brings late;
* `!NAME ARGUMENT` as the text is a standard consequence out of `consequences.yaml`;
* `{r}` rank, `{l}` local rank, `{h}` host, `{p}` pid, `{s}` step, `{t}` time, `{T}` ISO time,
  `{j}` journal time, `{g}` glog time, `{k}` kernel seconds, `{a}` an address.

Labels say what a careful engineer on call concludes from this log alone:

* `ranks`: which print the root line or are named by it; null if the log does not say;
* `nodes`: on which hosts they or the fault are; null if the log does not say, or if it is the
  whole job's;
* `action`: `exclude` where the fault stays with a node (broken GPU, lost mount, old driver, a full
  local disk); `stop` where each restart would meet it again or nobody wants one (user error on all
  ranks at the start, quota, shared disk full, checkpoint that does not fit, cancelled); `restart`
  else, also after a limit of time, after preemption (the scheduler takes the node by itself) and
  after a user error of one rank at a late step; `none` where nothing failed;
* `retryable`: a restart could plausibly succeed, so a stop would be wrong.
"""

from __future__ import annotations

import random
import re
import signal
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tests.attribution.corpus.ordinary import Clock, preamble, prefix, training

HALVES = ("open", "held")
PARTS = (*HALVES, "fresh")
ACTIONS = ("restart", "exclude", "stop", "none")
LINES = 2000  # ordinary lines of a log, at least

_ENTRY = re.compile(r"(-|[\d,-]+) \+?(-?[\d.]+)(?:/(-?[\d.]+))?\| ?(.*)")
_TOKEN = re.compile(r"\{([rlhpstTjgkaxXo])\}")
# What follows from a failure on ranks that are healthy, by kind (ranks, launcher) and name.
CONSEQUENCES: dict[str, dict[str, list[str]]] = msgspec.yaml.decode(
    Path(__file__).with_name("consequences.yaml").read_text()
)


@dataclass(frozen=True)
class Expect:
    """What an analyser should conclude."""

    cause: str
    ranks: list[int] | None
    nodes: list[str] | None
    action: str
    retryable: bool


@dataclass(frozen=True)
class Entry:
    """Lines of one origin that appear together: `ranks` is empty for lines without a prefix."""

    ranks: list[int]
    at: float
    stamp: float
    text: str


@dataclass(frozen=True)
class Case:
    """A failure, and what is needed to write its log."""

    name: str
    part: str
    seed: int
    ranks: int
    nodes: list[str]
    style: str  # of ordinary lines
    prefix: str  # of each line of a rank
    nccl: bool  # NCCL's lines of the start, which say where each rank is
    startup: bool  # fails before the first step
    root: list[Entry]
    cascade: list[Entry]
    expect: Expect

    def host(self, rank: int) -> str:
        return self.nodes[rank * len(self.nodes) // self.ranks]

    def local(self, rank: int) -> int:
        return rank % (self.ranks // len(self.nodes))

    def pid(self, rank: int) -> int:
        return 20000 + self.seed % 997 * 7 + rank * 3

    def log(self) -> bytes:
        rng = random.Random(self.seed)
        began = datetime(2026, 11, 1) + timedelta(seconds=rng.randrange(20 * 86400))
        clock = Clock(began)
        blocks = preamble(self, rng, clock, LINES if self.startup else 200)
        step = 0
        if not self.startup:
            more, step = training(self, rng, clock, LINES - 200)
            blocks += more
        for entry in self.root + self.cascade:
            blocks.append((entry.at, "\n".join(self._lines(entry, rng, clock, step))))
        blocks.sort(key=lambda block: block[0])
        return ("\n".join(text for _, text in blocks) + "\n").encode()

    def _lines(self, entry: Entry, rng: random.Random, clock: Clock, step: int) -> list[str]:
        text, argument, prefixed = entry.text, "1", bool(entry.ranks)
        if text.startswith("!"):
            name, _, given = text[1:].partition(" ")
            argument = given or argument
            prefixed = name in CONSEQUENCES["ranks"]
            text = rng.choice(CONSEQUENCES["ranks" if prefixed else "launcher"][name])
        queues = []
        for rank in entry.ranks or [0]:
            values = self._values(rank, entry, clock, step, argument)
            stamp = prefix(self, rank) % clock.stamps(entry.stamp) if prefixed else ""
            filled = _TOKEN.sub(lambda match, values=values: values[match[1]], text)
            queues.append([stamp + line for line in filled.split("\n")])
        return _interleave(queues, rng)

    def _values(
        self, rank: int, entry: Entry, clock: Clock, step: int, argument: str
    ) -> dict[str, str]:
        stamps = clock.stamps(entry.stamp)
        limit = int(entry.at) * 1000 if entry.at >= 100 else 600000
        return {
            "r": str(rank),
            "l": str(self.local(rank)),
            "h": self.host(rank),
            "p": str(self.pid(rank)),
            "s": str(step),
            "t": stamps["t"],
            "T": stamps["iso"],
            "j": stamps["day"],
            "g": stamps["glog"],
            "k": f"{self.seed * 1013 % 700000 + entry.stamp + 90000:.6f}",
            "a": f"0x7f{self.seed * 7919 + rank * 4096:010x}",
            "x": argument,
            "X": _ended(int(argument), self.pid(rank)),
            "o": str(limit),
        }


def _ended(code: int, pid: int) -> str:
    """The line of torchrun's summary about an exit code."""
    if code >= 0:
        return "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    return f"Signal {-code} ({signal.Signals(-code).name}) received by PID {pid}"


def _interleave(queues: list[list[str]], rng: random.Random) -> list[str]:
    """All lines, each queue's in order."""
    turns = [number for number, queue in enumerate(queues) for _ in queue]
    if len(queues) > 1:
        rng.shuffle(turns)
    left = [iter(queue) for queue in queues]
    return [next(left[number]) for number in turns]


def cases(part: str) -> list[Case]:
    """All cases of a part, by cause and name."""
    paths = sorted((Path(__file__).parent / part).glob("*.yaml"))
    return [
        _case(raw, part, path.stem)
        for path in paths
        for raw in msgspec.yaml.decode(path.read_text())
    ]


def _case(raw: dict[str, Any], part: str, cause: str) -> Case:
    expect = raw["expect"]
    if expect["ranks"] == "all":
        expect["ranks"] = list(range(raw["ranks"]))
    style, _, marks = raw["style"].partition("/")
    return Case(
        name=raw["name"],
        part=part,
        seed=raw["seed"],
        ranks=raw["ranks"],
        nodes=raw["nodes"],
        style=style,
        prefix=marks or "plain",
        nccl=raw.get("nccl", False),
        startup=raw.get("startup", False),
        root=_entries(raw["root"]),
        cascade=_entries(raw.get("cascade", "")),
        expect=Expect(cause=cause, **expect),
    )


def _entries(text: str) -> list[Entry]:
    found: list[tuple[list[int], float, float, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1][3].append(line[1:].removeprefix(" "))
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise ValueError(f"not 'WHO +SECONDS| text' nor '| text': {line!r}")
        who, at, stamp, first = match.groups()
        found.append((_ranks(who), float(at), float(stamp or at), [first]))
    return [Entry(ranks, at, stamp, "\n".join(lines)) for ranks, at, stamp, lines in found]


def _ranks(who: str) -> list[int]:
    if who == "-":
        return []
    spans = [[int(end) for end in part.split("-")] for part in who.split(",")]
    return [rank for span in spans for rank in range(span[0], span[-1] + 1)]
