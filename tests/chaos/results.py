"""A result with a fault of each colour."""

from __future__ import annotations

import functools

from tests.chaos.histories import Moment, Parts, Run, fault, parts_of, undisturbed
from undaunted.chaos.checker.verdict import judge
from undaunted.chaos.result import Result, run_of


def rng_anew(moment: Moment, parts: Parts) -> Parts:
    there = parts_of(moment.rank, moment.iteration - 10, moment.at)
    drawn = {name: there[name] for name in ("rng", "data") if name in parts}
    return {**parts, **drawn} if moment.start else parts


@functools.cache
def result() -> Result:
    reference = undisturbed()
    green = fault("kill", run=1)
    red = fault("exception", run=2)
    yellow = fault("hang", run=3, killed=(0,))
    skipped = fault("disk-full", run=4, happened=False)
    runs = [
        (green, Run(name="1").history(green)),
        (red, Run(name="2", change=rng_anew).history(red)),
        (yellow, Run(name="3").history(yellow)),
        (skipped, Run(name="4").history(skipped)),
    ]
    runs[3][1].outcome.skipped[skipped.plan.id] = "no namespaces here"
    return Result(
        version="1.2.3",
        argv=["train.py", "--dir", "{dir}"],
        world_size=2,
        seed=7,
        iterations=(0, 19),
        started_wall=1_795_281_705.0,
        seconds=42.0,
        directory="chaos-runs/x",
        runs=[run_of(reference), *(run_of(history) for _, history in runs)],
        verdicts=[v for one, history in runs for v in judge(reference, history, [one.plan])],
    )
