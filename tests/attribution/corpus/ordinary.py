"""Ordinary lines of training logs: what a job of each style prints as long as nothing happens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    import random

    from tests.attribution.corpus import Case

Block = tuple[float, str]  # seconds since the failure, lines

_TEXTS = msgspec.yaml.decode(Path(__file__).with_name("ordinary.yaml").read_text())
STARTING: list[str] = _TEXTS["starting"].split("\n")
CHATTER: list[str] = _TEXTS["chatter"].split("\n")
NCCL: list[str] = _TEXTS["nccl"].split("\n")
# By style, the variants of a step: of each line who prints it, and a template.
STEPS: dict[str, list[list[list[str]]]] = {
    style: [[line.split("| ", 1) for line in variant.split("\n")] for variant in variants]
    for style, variants in _TEXTS["steps"].items()
}


class Stamps(dict[str, Any]):
    """A moment as the stamps of several programs, each written when a template asks for it."""

    FORMATS: ClassVar = {
        "t": "%Y-%m-%d %H:%M:%S",
        "iso": "%Y-%m-%dT%H:%M:%S.%f",
        "day": "%b %e %H:%M:%S",
        "glog": "%m%d %H:%M:%S.%f",
    }

    def __init__(self, moment: datetime) -> None:
        super().__init__()
        self._moment = moment

    def __missing__(self, key: str) -> str:
        return self._moment.strftime(self.FORMATS[key])


@dataclass(frozen=True)
class Clock:
    """Seconds since the failure as moments."""

    zero: datetime

    def stamps(self, seconds: float) -> Stamps:
        return Stamps(self.zero + timedelta(seconds=seconds))


# How a rank's lines begin, by name: templates of Python, then of `Stamps`.
PREFIXES = {
    "plain": "",
    "rank": "[rank{rank}]: ",
    "srun": "{rank}: ",
    "srun0": "{rank:0{width}d}: ",
    "default": "[default{local}]:",
    "time": "{rank}: [%(t)s] ",
    "host": "{host}: ",
    "pod": "[pod/{host}/pytorch] %(iso)s123Z ",
    "journal": "%(day)s {host} trainer[{pid}]: ",
    "iso": "%(iso)sZ [rank={rank} host={host}] ",
    "ray": "(RayTrainWorker pid={pid}, ip={host}) ",
    "level": "%(t)s INFO rank {rank} | ",
}


def prefix(case: Case, rank: int) -> str:
    """How this rank's lines begin: a template of `Stamps`."""
    return PREFIXES[case.prefix].format(
        rank=rank,
        width=len(str(case.ranks - 1)),
        local=case.local(rank),
        host=case.host(rank),
        pid=case.pid(rank),
    )


def preamble(case: Case, rng: random.Random, clock: Clock, lines: int) -> list[Block]:
    """What the ranks print before the first step: before a failure at the start, or long ago."""
    begin = -400.0 if case.startup else -90000.0
    marks = [prefix(case, rank) % clock.stamps(begin) for rank in range(case.ranks)]
    blocks = [(begin - 1, _nccl(case, marks))] if case.nccl else []
    for number in range(0, lines, 4):
        rank = rng.randrange(case.ranks)
        text = "\n" + _four_lines(number).replace("{r}", str(rank))
        blocks.append((begin + number * 380 / lines, text.replace("\n", "\n" + marks[rank])[1:]))
    return blocks


@cache
def _four_lines(number: int) -> str:
    texts = [(n, STARTING[(n + n // 12) % len(STARTING)]) for n in range(number, number + 4)]
    return "\n".join(text.format(n=n, r="{r}") for n, text in texts)


def _nccl(case: Case, marks: list[str]) -> str:
    found = []
    for text in NCCL:
        for rank, mark in enumerate(marks):
            values = {"h": case.host(rank), "p": case.pid(rank), "l": case.local(rank)}
            found.append(mark + text.format(**values, r=rank, w=case.ranks))
    return "\n".join(found)


def training(case: Case, rng: random.Random, clock: Clock, lines: int) -> tuple[list[Block], int]:
    """Steps up to just before the failure, and the number of the last."""
    templates = [_template(case, rng, variant) for variant in STEPS[case.style] for _ in range(6)]
    usual, rare = templates[:-6], templates[-6:]
    first, seconds = rng.randrange(200, 60000), rng.uniform(4, 20)
    picked = []
    while lines > 0:
        template, count = rng.choice(rare if rng.random() < 0.02 else usual)
        picked.append(template)
        lines -= count
    loss, blocks = rng.uniform(1.5, 3.5), []
    for number, template in enumerate(picked):
        at = (number - len(picked)) * seconds
        wave = rng.random()
        loss += 0.02 * (wave - 0.505)
        values = clock.stamps(at)
        values.update(
            step=first + number,
            samples=(first + number) * 512,
            ms=800 + 90 * wave,
            lr=3e-4 - number * 1e-8,
            loss=loss,
            ppl=2.718**loss,
            norm=0.3 + wave / 5,
            epoch=0.1 + number / 9000,
        )
        blocks.append((at, template % values))
    return blocks, first + len(picked) - 1


def _template(case: Case, rng: random.Random, variant: list[list[str]]) -> tuple[str, int]:
    """A step's lines, with some of other ranks in between, and their number."""
    found = []
    for who, text in variant + [["any", text] for text in rng.sample(CHATTER, 5)]:
        rank = {"first": 0, "last": case.ranks - 1, "any": rng.randrange(case.ranks)}[who]
        found.append(prefix(case, rank) + text.replace("%(who)d", str(rank)))
    return "\n".join(found), len(found)
