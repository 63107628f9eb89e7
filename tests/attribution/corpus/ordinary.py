"""Ordinary lines of training logs: what a job of each style prints as long as nothing happens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    import random

    from tests.attribution.corpus import Case

Block = tuple[float, str]  # seconds since the failure, lines

_TEXTS = yaml.safe_load(Path(__file__).with_name("ordinary.yaml").read_text())
STARTING: list[str] = _TEXTS["starting"].split("\n")
NCCL: list[str] = _TEXTS["nccl"].split("\n")
# By style, the variants of a step: of each line who prints it, and a template.
STEPS: dict[str, list[list[list[str]]]] = {
    style: [[line.split("| ", 1) for line in variant.split("\n")] for variant in variants]
    for style, variants in _TEXTS["steps"].items()
}


@dataclass(frozen=True)
class Clock:
    """Seconds since the failure as the stamps of several programs."""

    zero: datetime

    def stamps(self, seconds: float) -> dict[str, str]:
        now = self.zero + timedelta(seconds=seconds)
        iso = now.isoformat(timespec="microseconds")
        clock = iso[11:19]
        return {
            "t": f"{iso[:10]} {clock}",
            "iso": iso,
            "day": f"{'Oct' if now.month == 10 else 'Nov'} {now.day:2d} {clock}",
            "glog": f"{iso[5:7]}{iso[8:10]} {iso[11:]}",
        }


# How a rank's lines begin, by name: templates of Python, then of `Clock.stamps`.
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
    """How this rank's lines begin: a template for `Clock.stamps`."""
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
    offset = rng.randrange(len(STARTING))
    for number in range(0, lines, 20):
        picked = []
        for n in range(number, number + 20):
            rank = rng.randrange(case.ranks) if n % 3 else 0
            text = STARTING[(n + offset + n // 12) % len(STARTING)]
            picked.append(marks[rank] + text.format(n=n, r=rank))
        blocks.append((begin + number * 380 / lines, "\n".join(picked)))
    return blocks


def _nccl(case: Case, marks: list[str]) -> str:
    found = []
    for text in NCCL:
        for rank, mark in enumerate(marks):
            values = {"h": case.host(rank), "p": case.pid(rank), "l": case.local(rank)}
            found.append(mark + text.format(**values, r=rank, w=case.ranks))
    return "\n".join(found)


def training(case: Case, rng: random.Random, clock: Clock, lines: int) -> tuple[list[Block], int]:
    """Steps up to just before the failure, and the number of the last."""
    templates = [_template(case, rng, variant) for variant in STEPS[case.style] for _ in range(3)]
    usual, rare = templates[:-3], templates[-3:]
    first, seconds = rng.randrange(200, 60000), rng.uniform(0.4, 5)
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
        values = clock.stamps(at) | {
            "step": first + number,
            "samples": (first + number) * 512,
            "ms": 800 + 90 * wave,
            "lr": 3e-4 - number * 1e-8,
            "loss": loss,
            "ppl": 2.718**loss,
            "norm": 0.3 + wave / 5,
            "epoch": 0.1 + number / 9000,
        }
        blocks.append((at, template % values))
    return blocks, first + len(picked) - 1


def _template(case: Case, rng: random.Random, variant: list[list[str]]) -> tuple[str, int]:
    found = []
    chance = rng.randrange(case.ranks)
    for who, text in variant:
        rank = {"first": 0, "last": case.ranks - 1, "any": chance}[who]
        found.append(prefix(case, rank) + text.replace("%(who)d", str(rank)))
    return "\n".join(found), len(found)
