from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.inprocess_soak import __main__ as soak
from benchmarks.inprocess_soak import scenarios
from benchmarks.inprocess_soak.checks import DeviationError, Watch
from benchmarks.inprocess_soak.job import Restart
from benchmarks.inprocess_soak.scenarios import Scene

ROOT = Path(__file__).parents[2]


def entered(number: int, iteration: int = 0, at: int = 1, **changed: Any) -> dict[str, Any]:
    said = {"pid": 1, "rank": number, "world": 2, "active": number, "actives": 2, **changed}
    return {"what": "entered", "number": number, "iteration": iteration, "at": at, **said}


def said(what: str, number: int, iteration: int = 0, at: int = 2, **more: Any) -> dict[str, Any]:
    return {"what": what, "number": number, "iteration": iteration, "at": at, **more}


def two(iteration: int = 0, at: int = 1) -> list[dict[str, Any]]:
    return [
        line
        for number in (0, 1)
        for line in (
            entered(number, iteration, at),
            said("running", number, iteration, rank=number, world=2),
            said("ready", number, iteration),
        )
    ]


def watch_of(lines: list[dict[str, Any]], most_active: int | None = None) -> Watch:
    watch = Watch(2, most_active)
    for line in lines:
        watch.take(line)
    return watch


def test_an_iteration_is_complete_when_all_are_ready() -> None:
    assert watch_of(two()).complete_after(-1) == 0
    assert watch_of(two()).complete_after(0) is None
    assert watch_of(two()[:-1]).complete_after(-1) is None


def test_a_reserve_is_never_ready() -> None:
    lines = [entered(0, actives=1), entered(1, actives=1, active=None), said("ready", 0)]
    assert watch_of(lines, most_active=1).complete_after(-1) == 0


def test_one_that_died_is_not_waited_for_and_must_be_left_out() -> None:
    dead = said("fault", 1, codes=[-9])
    assert watch_of([*two(), dead]).complete_after(-1) is None
    alone = [entered(0, 1, 5, world=1, actives=1), said("ready", 0, 1)]
    watch = watch_of([*two(), dead, *alone])
    assert watch.complete_after(0) == 1
    watch.ended(1, -signal.SIGKILL)


def test_a_process_in_the_place_of_a_lost_one_is_waited_for_again() -> None:
    dead = said("fault", 1, codes=[-9])
    watch = watch_of([*two(), dead])
    watch.take(entered(0, 1, 5))
    watch.take(said("ready", 0, 1))
    assert watch.complete_after(0) is None  # of two ranks, one has not come yet
    watch.take(entered(1, 1, 5, pid=2))
    watch.take(said("ready", 1, 1))
    assert (watch.complete_after(0), watch.replaced, watch.alive) == (1, 1, {0, 1})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (entered(1, rank=0), "the same rank"),
        (entered(1, world=1, rank=0), "disagree"),
        (entered(1, active=0), "the same active rank"),
        (entered(1, rank=2), "no such rank"),
        (entered(0), "goes from 0 to 0"),
        (entered(1, active=None), "the wrong ones"),
        (said("running", 0, rank=1, world=2), "do not fit"),
        (said("wrong", 0, sum=1), "a rank has found"),
        (said("done", 0, fds=[1, 2], threads=[1, 1]), "fds are left"),
        (said("done", 0, 1, fds=[1, 1], threads=[1, 1]), "the last was 0"),
    ],
)
def test_deviations(line: dict[str, Any], text: str) -> None:
    with pytest.raises(DeviationError, match=text):
        watch_of([entered(0), line])


def test_who_still_runs_an_older_iteration_is_found() -> None:
    watch_of([*two(), said("left", 0, at=8), said("left", 1, at=9), *two(1, at=9)])
    with pytest.raises(DeviationError, match="0 still ran when 1 had begun"):
        watch_of([*two(), said("left", 0, at=8), *two(1, at=9), said("left", 1, at=10)])
    with pytest.raises(DeviationError, match="0 still ran when 1 had begun"):
        watch_of([*two(), said("left", 0, at=10), *two(1, at=9)])


@pytest.mark.parametrize(("code", "done"), [(1, True), (0, False)])
def test_an_end_that_nothing_explains(code: int, done: bool) -> None:
    last = [said("done", 0, fds=[1, 1], threads=[1, 1])] if done else []
    with pytest.raises(DeviationError, match="job rank 0 has ended"):
        watch_of([*two(), *last]).ended(0, code)


def test_a_launcher_ends_well_when_all_are_done_but_those_who_were_lost() -> None:
    done = said("done", 0, fds=[1, 1], threads=[1, 1])
    watch_of([*two(), said("fault", 1, codes=[-9]), done]).launcher_ended(0)
    with pytest.raises(DeviationError, match="ended with 1"):
        watch_of([*two(), said("fault", 1, codes=[-9]), done]).launcher_ended(1)
    with pytest.raises(DeviationError, match=r"\{0\} are done, not \{0, 1\}"):
        watch_of([*two(), done]).launcher_ended(0)


def test_scenarios_leave_somebody_who_fails_and_somebody_who_lives() -> None:
    rng = random.Random(7)
    seen = set()
    for _ in range(2000):
        active = list(range(rng.randint(1, 4)))
        scene = Scene(active, [7, 8][: rng.randint(0, 2)], gloo=True, short=True)
        scenario = scenarios.draw(rng, scene)
        seen.add(scenario.kind)
        assert set(scenario.orders) == set(scene.members)
        assert {order.do for order in scenario.orders.values()} != {"returned"}
        deaths = scenarios.KINDS[scenario.kind][2]
        assert len(scene.members) > deaths
    assert seen == set(scenarios.KINDS)
    launched = Scene([0, 1, 2], [], launched=True)
    assert scenarios.GUARD not in {scenarios.draw(rng, launched).kind for _ in range(500)}


def test_the_table_has_a_line_per_kind() -> None:
    restarts = [
        Restart("exception", 1, 0.01, 0.02),
        Restart("exception", 1, 0.03, 0.04),
        Restart("SIGKILL", 0, 0.0, 0.0),  # it did not come to that
    ]
    lines = soak.table(restarts).splitlines()
    assert lines[2:] == ["| exception | 2 | 20 | 30 | 30 | 30 | 40 |"]


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.torch
def test_a_short_soak() -> None:
    pytest.importorskip("torch")
    options = ["--faults", "10", "--per-job", "10", "--ranks", "3", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.inprocess_soak", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults in 1 jobs (seeds 7 to 7)" in done.stdout
