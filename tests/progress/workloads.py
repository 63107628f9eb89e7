"""Simulated training programs in virtual time, held to what `undaunted.progress.learning` learns.

Nothing runs: a workload is a seeded list of durations. They are counted as a page counts them,
looked at as the agent looks at pages, and the timeout engine is asked whether it would have ended
the rank right before each of the longest silences came to its end.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from undaunted.progress import learning
from undaunted.progress.limits import Limits
from undaunted.progress.observer import Observer
from undaunted.progress.samples import HEARTBEAT, OUT_OF_SECTION, Knowledge, merge
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot
from undaunted.progress.timeouts import check

S = 10**9
WARMUP = Limits().warmup_iterations
LOOK_STEPS = 250  # a look at the page after so many steps; the agent looks more often
GIVEN = Limits()
QUANTILE = 0.999  # limits are measured by this one


@dataclass
class Workload:
    """What a program does. Durations in seconds, with the first world size."""

    rng: random.Random
    step_s: float
    tail: str  # lognormal, stragglers, pareto
    heaviness: float
    compile_s: float
    evaluate_every: int
    evaluate_s: float
    checkpoint_every: int
    checkpoint_s: float
    launches: list[tuple[int, int]]  # (world size, steps)
    load_s: float = 60.0  # a checkpoint, at the start of all launches but the first
    fetch_s: float = 0.1  # a batch, outside all sections

    def evaluation(self) -> float:
        return self.evaluate_s * self.rng.uniform(0.9, 1.2)

    def checkpoint(self) -> float:
        return self.checkpoint_s * self.rng.uniform(0.7, 1.6)

    def start(self, *, resumes: bool) -> float:
        """Imports, connecting, loading: until the first heartbeat. The caches may be cold."""
        load_s = self.load_s if resumes else 0
        took_s = (20 + load_s) * self.rng.lognormvariate(0, 0.4) * self.rng.choice([1, 2])
        return min(took_s, 3500)  # below the ceiling that holds before anything is learned

    def compilation(self, *, first: bool) -> float:
        """In the first step. A cache has the result, but for the first launch and if it is lost."""
        cached = not first and self.rng.random() < 0.8
        return self.compile_s * self.rng.uniform(0.8, 1.3) * (0.1 if cached else 1)

    def fetch(self) -> float:
        """Reading the next batch, outside of all sections; some wait for the file system."""
        slow = self.rng.uniform(5, 20) if self.rng.random() < 0.01 else 1
        return self.fetch_s * slow * self.rng.uniform(0.9, 1.2)

    def step(self, world: int) -> float:
        scale = self.step_s * self.launches[0][0] / world
        rng = self.rng
        if self.tail == "lognormal":
            return scale * rng.lognormvariate(0, self.heaviness)
        if self.tail == "pareto":
            return scale * rng.paretovariate(self.heaviness)
        slow = rng.random() < 0.01
        return scale * rng.uniform(0.95, 1.05) * (rng.uniform(1, self.heaviness) if slow else 1)


def ordinary(seed: int) -> Workload:
    """Heavy-tailed steps, compilation first, evaluation every 100 steps, checkpoints of varying
    length, another number of ranks in some launches."""
    rng = random.Random(seed)
    step_s = 2 ** rng.uniform(1.5, 5)
    tail = rng.choice(["lognormal", "stragglers", "pareto"])
    heaviness = {"lognormal": (0.05, 0.5), "stragglers": (2, 6), "pareto": (6, 10)}[tail]
    steps = max(2500, round(4.6 * 3600 / step_s))
    world = rng.choice([8, 16, 64])
    other = (world // 2, steps // 3)
    return Workload(
        rng=rng,
        step_s=step_s,
        tail=tail,
        heaviness=rng.uniform(*heaviness),
        compile_s=rng.uniform(10, 1500),
        evaluate_every=100,
        evaluate_s=step_s * rng.uniform(3, 25),
        checkpoint_every=rng.choice([50, 100, 200, 400]),
        checkpoint_s=step_s * rng.uniform(1, 30),
        launches=[(world, steps // 3), other, (world, steps), *[(world, 300)] * 5],
        load_s=rng.uniform(10, 600),
        fetch_s=step_s * rng.uniform(0.01, 0.1),
    )


def long(seed: int) -> Workload:
    """So many steps that every section is seen often."""
    workload = ordinary(seed)
    workload.launches = [(8, 36_000), (8, 300)]
    workload.evaluate_every = workload.checkpoint_every = 50
    return workload


def rare(seed: int) -> Workload:
    """Checkpoints so rare, or tails so heavy, that 3 x the quantile lies below what is ordinary."""
    workload = ordinary(seed)
    workload.checkpoint_every = min(
        workload.rng.choice([1000, 2000]), round(4500 / workload.step_s)
    )
    workload.checkpoint_s = min(1500, workload.step_s * workload.rng.uniform(30, 100))
    if seed % 2:
        workload.tail, workload.heaviness = "pareto", workload.rng.uniform(4, 6)
    return workload


def pareto(exponent: float, seed: int) -> Workload:
    """Steps of 10 s and more with a Pareto tail."""
    workload = ordinary(seed)
    workload.step_s, workload.tail, workload.heaviness = 10, "pareto", exponent
    return workload


@dataclass
class Counter:
    count: int = 0
    longest_ns: int = 0
    warm_longest_ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.longest_ns = max(self.longest_ns, ns)
        if self.count > WARMUP:
            self.warm_longest_ns = max(self.warm_longest_ns, ns)


@dataclass
class Found:
    """One kind of limit: when a hang at the end is noticed, and the truth. Seconds."""

    limit_s: float
    quantile_s: float
    longest_s: float
    count: int


@dataclass
class Result:
    """False kills; for each test how long a hang goes unnoticed at the end, and the truth."""

    false_kills: list[str] = field(default_factory=list)
    found: dict[str, Found] = field(default_factory=dict)


class Run:
    """One launch: a page being written, and watched."""

    def __init__(self, workload: Workload, world: int, past: Knowledge, result: Result):
        self.workload, self.world, self.past, self.result = workload, world, past, result
        self.now = self.began = 1 * S
        self.heartbeats = Counter()
        self.sections = {name: Counter() for name in ("step", "evaluation", "checkpoint")}
        self.outside = Counter()
        self.closed_ns = 0
        self.observer = Observer(world)
        self.samples: dict[str, list[int]] = {}
        self.learned = learning.learn(past, GIVEN)
        self.longest: dict[str, tuple[int, PageSnapshot]] = {}

    def start(self, *, resumes: bool) -> None:
        self.now += int(self.workload.start(resumes=resumes) * S)
        page = PageSnapshot(phase=Phase.STARTING)
        limits = learning.limits_for(page, GIVEN, self.learned)
        result = check(
            page, limits, now_ns=self.now - 1, started_ns=self.began, siblings_monitored=True
        )
        self.result.false_kills += [f"start: {each}" for each in result.expired]
        self.first_ns = self.now

    def steps(self, count: int) -> None:
        for number in range(count):
            self.one_step(number)
            if number < 3 * WARMUP or number % LOOK_STEPS == 0:
                self.judge()
                self.look()
        self.judge()
        self.look()

    def one_step(self, number: int) -> None:
        workload, began = self.workload, self.now
        self.now += int(workload.fetch() * S)
        seconds = workload.step(self.world)
        if number == 0:
            seconds += workload.compilation(first=not self.past.samples)
        self.section("step", seconds, began)
        if number and number % workload.evaluate_every == 0:
            self.section("evaluation", workload.evaluation(), began)
        if number and number % workload.checkpoint_every == 0:
            self.section("checkpoint", workload.checkpoint(), began)
        self.silence("heartbeat", self.now - began, self.page(began))
        self.heartbeats.add(self.now - began)
        if number > WARMUP:
            self.samples.setdefault("heartbeat", []).append(self.now - began)

    def section(self, name: str, seconds: float, heartbeat_ns: int) -> None:
        began, counter = self.now, self.sections[name]
        if self.closed_ns:
            self.between_sections(began - self.closed_ns, heartbeat_ns)
        self.now += int(seconds * S)
        self.silence(f"section:{name}", self.now - began, self.page(heartbeat_ns, name, began))
        counter.add(self.now - began)
        self.closed_ns = self.now
        if counter.count > WARMUP:
            self.samples.setdefault(f"section:{name}", []).append(self.now - began)

    def between_sections(self, ns: int, heartbeat_ns: int) -> None:
        if ns > self.longest.get(OUT_OF_SECTION, (0,))[0]:
            self.longest[OUT_OF_SECTION] = ns, self.snapshot(heartbeat_ns, closed_ns=self.closed_ns)
        self.outside.add(ns)
        if self.outside.count > WARMUP:
            self.samples.setdefault(OUT_OF_SECTION, []).append(ns)

    def silence(self, key: str, ns: int, page: PageSnapshot | None) -> None:
        if page is not None:
            self.longest[key] = (ns, page)

    def page(self, heartbeat_ns: int, open_name: str = "", open_ns: int = 0) -> PageSnapshot | None:
        """A snapshot, if what is going on is the longest since the last look."""
        key = f"section:{open_name}" if open_name else "heartbeat"
        if self.now - (open_ns or heartbeat_ns) <= self.longest.get(key, (0,))[0]:
            return None
        return self.snapshot(heartbeat_ns, open_name, open_ns)

    def snapshot(
        self, heartbeat_ns: int, open_name: str = "", open_ns: int = 0, closed_ns: int = 0
    ) -> PageSnapshot:
        sections = {
            name: SectionSnapshot(
                name,
                open_ns if name == open_name else None,
                counter.count,
                0,
                counter.longest_ns,
                counter.warm_longest_ns,
            )
            for name, counter in self.sections.items()
        }
        return PageSnapshot(
            phase=Phase.STEPPING,
            heartbeat_count=self.heartbeats.count + 1,
            heartbeat_ns=heartbeat_ns,
            heartbeat_max_ns=self.heartbeats.longest_ns,
            heartbeat_warm_max_ns=self.heartbeats.warm_longest_ns,
            first_heartbeat_ns=self.first_ns,
            out_of_section_since_ns=closed_ns or None,
            outside_count=self.outside.count,
            outside_max_ns=self.outside.longest_ns,
            outside_warm_max_ns=self.outside.warm_longest_ns,
            sections=sections,
        )

    def judge(self) -> None:
        """Would the longest silences since the last look have been taken for a hang?"""
        for key, (ns, page) in self.longest.items():
            if key == HEARTBEAT:
                since = page.heartbeat_ns
            elif key == OUT_OF_SECTION:
                since = page.out_of_section_since_ns
            else:
                since = page.sections[key.removeprefix("section:")].open_since_ns
            limits = learning.limits_for(page, GIVEN, self.learned)
            result = check(page, limits, now_ns=since + ns - 1, started_ns=0)
            self.result.false_kills += [f"{key}: {each}" for each in result.expired]
        self.longest = {}

    def look(self) -> None:
        self.observer.look(0, self.snapshot(self.now), GIVEN.warmup_iterations)
        self.learned = learning.learn(self.knowledge(), GIVEN)

    def knowledge(self) -> Knowledge:
        return merge(self.past, self.observer.seen())

    def warm(self, key: str) -> bool:
        others = {HEARTBEAT: self.heartbeats, OUT_OF_SECTION: self.outside}
        counter = self.sections.get(key.removeprefix("section:")) or others.get(key)
        return counter is not None and counter.count > WARMUP

    def hang(self, key: str) -> float:
        """Fall silent now; return after how many seconds that is noticed."""
        name = key.removeprefix("section:") if key.startswith("section:") else ""
        closed_ns = self.now if key == OUT_OF_SECTION else 0
        page = self.snapshot(self.now, name, self.now if name else 0, closed_ns)
        if key == OUT_OF_SECTION:  # it would be noticed by its heartbeats first
            page = dataclasses.replace(page, heartbeat_ns=None, first_heartbeat_ns=None)
        now = self.now
        limits = learning.limits_for(page, GIVEN, self.learned)
        while not (result := check(page, limits, now_ns=now, started_ns=0)).expired:
            assert result.next_ns is not None
            now = result.next_ns
        return (now - self.now) / S


def simulate(workload: Workload) -> Result:
    """Let all launches run, each taught by those before it; hang at the end."""
    result = Result()
    hangs: dict[str, tuple[int, float]] = {}
    known: dict[int, Knowledge] = {}
    samples: dict[tuple[int, str], list[int]] = {}
    for world, steps in workload.launches:
        past = known.get(world, Knowledge(world_size=world))
        run = Run(workload, world, past, result)
        run.start(resumes=bool(known))
        run.steps(steps)
        known[world] = run.knowledge()
        for key, values in run.samples.items():
            samples.setdefault((world, key), []).extend(values)
        for key in run.learned:
            if run.warm(key):
                hangs[key] = world, run.hang(key)
    for key, (world, limit_s) in hangs.items():
        values = samples[world, key]
        count, longest_s = len(values), max(values) / S
        if key == "section:evaluation":
            values = [int(workload.evaluation() * S) for _ in range(5000)]
        elif key == "section:checkpoint":
            values = [int(workload.checkpoint() * S) for _ in range(5000)]
        quantile_s = sorted(values)[int(QUANTILE * len(values))] / S
        result.found[key] = Found(limit_s, quantile_s, longest_s, count)
    return result
