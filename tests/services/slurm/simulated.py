"""Slurm, a service and a disk in virtual time, with faults out of a seed, around `core.Monitor`."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.services.slurm import core
from undaunted.services.slurm.core import Job, Listed, Monitor, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

PERIOD_S = 180.0


class Plan(NamedTuple):
    """What becomes of a job: times at which each state begins; ``restarts`` counts with them."""

    id: str
    states: list[tuple[float, str, int]]

    def at(self, now: float) -> tuple[str, int]:
        past = [(state, restarts) for time, state, restarts in self.states if time <= now]
        return past[-1] if past else ("", 0)

    @property
    def end(self) -> float:
        return self.states[-1][0]


@dataclass
class Faults:
    """How often each happens, of one."""

    kill: float = 0.0  # the monitor, before or after each thing it does
    squeue: float = 0.0
    omitted: float = 0.0  # a job is missing from one listing
    sacct: float = 0.0
    service: float = 0.0
    disk: float = 0.0
    kept_in_queue_s: float = 300.0


@dataclass
class World:
    """All that the monitor deals with."""

    plans: list[Plan]
    faults: Faults
    rng: random.Random
    now: float = 1e9
    files: dict[str, bytes] = field(default_factory=dict)
    taken: Counter[tuple[str, int, str]] = field(default_factory=Counter)  # by the service
    lost: Counter[str] = field(default_factory=Counter)  # answers that were not heard or kept
    unkept: set[str] = field(default_factory=set)  # jobs whose last answer is not on disk
    ready_at: dict[str, float] = field(default_factory=dict)
    omitted: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    kills: int = 0

    def monitor(self) -> Monitor:
        """Start a monitor; one that ran before is dead."""
        self.lost.update(self.unkept)
        self.unkept.clear()
        kept = [msgspec.json.decode(content, type=Job) for content in self.files.values()]
        return Monitor(kept, self.now, period_s=PERIOD_S, give_up_s=1e6)

    def happens(self, chance: float) -> bool:
        return self.rng.random() < chance

    def plan(self, id_: str) -> Plan:
        return next(plan for plan in self.plans if plan.id == id_)

    def listing(self) -> list[Listed]:
        found, before = [], self.omitted
        self.omitted = set()
        for plan in self.plans:
            state, restarts = plan.at(self.now)
            if not state or self.now > plan.end + self.faults.kept_in_queue_s:
                continue
            if plan.id not in before and self.happens(self.faults.omitted):
                self.omitted.add(plan.id)
                continue
            runs = state != "PENDING"
            path = f"/logs/{plan.id}.out" if runs else ""
            found.append(Listed(plan.id, restarts, f"t{restarts}", state, "u", "p", path, "n"))
        return found

    def accounts(self, ids: tuple[str, ...]) -> dict[str, str] | None:
        if self.happens(self.faults.sacct):
            return None
        known = {id_: self.plan(id_).at(self.now)[0] for id_ in ids}
        late = {id_ for id_ in ids if self.happens(self.faults.sacct)}
        return {id_: "RUNNING" if id_ in late else state for id_, state in known.items()}

    def service(self, command: core.Submit | core.Ask) -> Reply:
        job = command.job
        if self.happens(self.faults.service):
            kind = self.rng.choice(["away", "slow", "error", "busy", "early", "lost", "lost"])
            if kind == "away":
                return Reply(core.UNREACHABLE, problem="connection refused")
            if kind in {"slow", "busy"}:
                return Reply(429 if kind == "slow" else 503, problem=kind, retry_after_s=3.0)
            if kind == "error":
                return Reply(500, problem="a mistake")
            tracked = isinstance(command, core.Submit) and command.intent == "track_only"
            if kind == "early" and tracked:
                return Reply(400, {"error_code": "empty_file"}, "400 it is empty")
            if kind == "lost":
                self.take(command)
                self.lost[job.id] += 1
                return Reply(core.NO_ANSWER, problem="no answer within 60 s")
        self.take(command)
        if isinstance(command, core.Submit):
            return Reply(200, {"submitted": True})
        assert job.id in self.ready_at, f"asked of {job.id}, which was never submitted as complete"
        if self.now < self.ready_at[job.id]:
            return Reply(200, {"status": "in_flight"})
        recommendation = {"action": "RESTART", "source": "rules"}
        result = {"module": "log", "result": "out of memory"}
        return Reply(
            200, {"status": "completed", "result": result, "recommendation": recommendation}
        )

    def take(self, command: core.Submit | core.Ask) -> None:
        if isinstance(command, core.Ask):
            return
        job = command.job
        state, _ = self.plan(job.id).at(self.now)
        closed = (job.id, job.restarts, "terminal") in self.taken
        if command.intent == "terminal":
            assert state in core.ENDED, f"{job.id} is {state} and not over"
            self.ready_at.setdefault(job.id, self.now + self.rng.choice([1.0, 30.0, 400.0]))
        else:
            assert not closed, f"{job.id} is submitted after it was closed"
        self.taken[job.id, job.restarts, command.intent] += 1

    def do(self, monitor: Monitor, command: core.Command) -> None:
        """Carry out a command; the monitor may not live to hear of it."""
        dies = self.happens(self.faults.kill)
        match command:
            case core.Say(text):
                self.lines.append(text)
                monitor.said()
            case core.Keep(job, answer):
                problem = "disk full" if self.happens(self.faults.disk) else ""
                if not problem:
                    whole: Mapping[str, object] = {**msgspec.to_builtins(job), "answer": answer}
                    self.files[job.id] = msgspec.json.encode(whole)
                    self.unkept.discard(job.id)
                if not dies:
                    monitor.kept(job.id, self.now, problem)
            case core.Forget(id_):
                self.files.pop(id_, None)
                monitor.forgotten()
            case core.ListJobs():
                if self.happens(self.faults.squeue):
                    monitor.not_listed("squeue has not answered for 45 s", self.now)
                else:
                    monitor.listed(self.listing(), self.now)
            case core.Account(ids):
                monitor.accounted(ids, self.accounts(ids), self.now)
            case core.Submit() | core.Ask():
                reply = self.service(command)
                self.unkept.add(command.job.id)
                if not dies:
                    monitor.replied(command.job, reply, self.now)
            case core.Wait(until):
                assert until > self.now, "it waits for what is past: it would spin"
                self.now = until
        self.now += self.rng.choice([0.0, 0.01, 0.5])
        self.kills += dies
        self.died = dies

    def run(self, most: int = 200_000) -> Monitor:
        """Until all jobs are over and nothing is open; return the monitor."""
        over = max(plan.end for plan in self.plans) + self.faults.kept_in_queue_s + 4 * PERIOD_S
        monitor = self.monitor()
        for _ in range(most):
            command = monitor.next(self.now)
            assert monitor.next(self.now) == command, "asking changes nothing"
            if self.happens(self.faults.kill):
                self.kills += 1
                monitor = self.monitor()
                continue
            self.do(monitor, command)
            if self.died:
                monitor = self.monitor()
            is_open = any(job.stage is not core.Stage.CLOSED for job in monitor.jobs.values())
            if self.now > over and not is_open and isinstance(command, core.Wait):
                return monitor
        raise AssertionError(f"it does not come to an end: {monitor.jobs}")


def plans(rng: random.Random, number: int, began: float) -> list[Plan]:
    """Jobs that come and go; some are started again, some never run."""
    made = []
    for index in range(number):
        time = began + rng.uniform(0.0, 2000.0)
        id_ = f"{index}" if index % 3 else f"{index}_{index % 7}"
        states, restarts = [(time, "PENDING", 0)], 0
        for again in range(rng.choice([1, 1, 1, 2, 3])):
            if again:
                restarts += 1
                states.append((time, "COMPLETING", restarts))
                time += rng.uniform(0.0, 20.0)
                states.append((time, "PENDING", restarts))
            time += rng.choice([0.0, 5.0, 300.0])
            states.append((time, "RUNNING", restarts))
            time += rng.choice([0.1, 60.0, 700.0])
        states.append((time, "COMPLETING", restarts))
        time += rng.choice([0.0, 3.0])
        states.append((time, rng.choice(core.ENDED[:7]), restarts))
        made.append(Plan(id_, states))
    return made


def world(seed: int, number: int, faults: Faults) -> World:
    rng = random.Random(seed)
    made = World([], faults, rng)
    made.plans = plans(rng, number, made.now)
    return made
