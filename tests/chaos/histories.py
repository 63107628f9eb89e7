"""Histories of runs of a program that does not exist, with faults and whatever goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from undaunted.chaos.history import History, Launch
from undaunted.chaos.outcome import Note, Outcome
from undaunted.chaos.plan import Planned
from undaunted.digests.record import FORWARD, STEP, UPDATE, Record
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase

if TYPE_CHECKING:
    from collections.abc import Callable

Parts = dict[str, str]
MS = 1_000_000


@dataclass(frozen=True)
class Moment:
    """Where a record is taken. ``start`` counts the starts of the program, from 0."""

    rank: int
    start: int
    iteration: int
    at: str
    fresh: bool  # in the first iteration of this start


def parts_of(rank: int, iteration: int, at: str) -> Parts:
    """What a program that restores everything has at one moment."""
    if at == STEP:
        return {"model.parameters": f"p{iteration}", "rng": f"r{rank}.{iteration}"}
    if at == FORWARD:
        return {
            "parameters": f"p{iteration}",
            "buffers": f"b{iteration}",
            "rng": f"r{rank}.{iteration}",
            "data": f"d{rank}.{iteration}",
        }
    return {
        "gradients": f"g{iteration}",
        "parameters": f"p{iteration + 1}",
        "optimizer": f"o{iteration + 1}",
    }


@dataclass
class Fault:
    """A planned fault and what it did.

    ``how``: ``restart``, ``inside`` (restarted inside the processes), ``relaunch``,
    ``stop`` (all ranks stop after one step, then as ``relaunch``), ``nothing``
    (the program goes on) or ``end`` (the job is over).
    """

    plan: Planned
    how: str = "restart"
    resume: int = 0
    verdict: dict[str, Any] = field(default_factory=dict)
    grace_s: float = 2.0
    killed: tuple[int, ...] = ()
    happened: bool = True
    lost: tuple[int, ...] = ()
    delay_s: float = 0.0  # from the fault to the failure


def fault(kind: str = "kill", iteration: int = 12, rank: int = 1, **more: Any) -> Fault:
    name = more.pop("id", f"{kind}-1")
    run = more.pop("run", 1)
    verdicts: dict[str, dict[str, Any]] = {
        "kill": {"kind": "crash", "signal": "SIGKILL"},
        "exception": {"kind": "crash", "exception": "undaunted.faults.InjectedError: injected"},
        "exit": {"kind": "crash", "exit_code": 1},
        "hang": {"kind": "hang"},
        "torn-write": {"kind": "crash", "signal": "SIGXFSZ"},
        "nan": {"kind": "crash", "exception": "ValueError: NaN"},
        "preempt": {"kind": "crash", "signal": "SIGTERM"},
        "corrupt-checkpoint": {"kind": "crash", "signal": "SIGKILL"},
        "bad-checkpoint": {"kind": "crash", "signal": "SIGKILL"},
    }
    if kind == "sigterm":
        more.setdefault("how", "relaunch")
    if kind in ("slow", "sigterm"):
        more.setdefault("verdict", {})
    if kind in ("slow", "wrong-result"):
        more.setdefault("how", "nothing")
    verdict = {"rank": rank, **verdicts.get(kind, {}), **more.pop("verdict", {})}
    more.setdefault("resume", iteration // 5 * 5)
    return Fault(Planned(name, kind, rank, iteration, run), verdict=verdict, **more)


@dataclass
class Run:
    """Writes the history of one run."""

    world: int = 2
    steps: int = 20
    change: Callable[[Moment, Parts], Parts | None] | None = None
    counted: bool = False
    digests: bool = True
    told: bool = True  # `step` records
    exit_code: int = 0
    reason: str = "every rank exited with 0"
    name: str = "1"
    load_fails: int = 0  # how many starts after the first fault fail before their first step
    fails_after: int = 0  # how many steps such a start takes
    last: int | None = None  # the program ends before this iteration

    def __post_init__(self) -> None:
        self.now = 1_000 * MS
        self.pid = 100
        self.launches: list[list[e.Event]] = []
        self.records: dict[int, list[Record]] = {rank: [] for rank in range(self.world)}
        self.notes: list[Note] = []
        self.exit_codes: list[int] = []
        self.round = 0
        self.starts = 0
        self.process_began = 0
        self.stepped = -1  # the step whose call goes on after a fault

    def history(self, *faults: Fault) -> History:
        self._launch()
        at = 0
        self._begin(at)
        for one in faults:
            if not one.happened:
                continue
            self._steps(at, one.plan.iteration, fault=one)
            at = self._happen(one)
            if at < 0:
                break
        else:
            self._steps(at, self.last or self.steps)
            self._end()
        return History(
            name=self.name,
            outcome=Outcome(exit_codes=self.exit_codes, seconds=self.now / 1e9, notes=self.notes),
            launches=[Launch.of(events) for events in self.launches],  # type: ignore[arg-type]
            records=self.records if self.digests else {},
        )

    def _event(self, event: type[e.Event], /, **fields: Any) -> None:
        self.now += MS
        fields.setdefault("round", self.round)
        self.launches[-1].append(event(t=self.now, wall=self.now / 1e9, node="n0", **fields))

    def _launch(self) -> None:
        self.launches.append([])
        self.round = 0
        self._event(e.JournalOpened, boot_id="b", pid=len(self.launches), round=-1)
        self._event(
            e.JobStarted, run_id="x", argv=["t.py"], nproc_per_node=self.world, max_restarts=9,
            round=-1,
        )  # fmt: skip

    def _begin(self, at: int, *, fails: bool = False) -> None:
        self.stepped = -1
        ranks = list(range(self.world))
        self._event(e.RoundStarted, world_size=self.world, ranks=ranks)
        self.pid += 100
        self._event(e.WorkersSpawned, mode="warm", pids=[self.pid + rank for rank in ranks])
        self.starts += 1
        self.process_began = at
        if fails:
            return
        for rank in ranks:
            told = 0 if self.counted else at
            for name, iteration in (("first_line", None), ("first_step", told)):
                self._event(
                    e.RankMilestone, rank=rank, name=name, at_ns=self.now, iteration=iteration
                )
        self.began = at

    def _steps(self, begin: int, end: int, fault: Fault | None = None) -> None:
        for iteration in range(begin, end):
            for rank in range(self.world):
                for at in (STEP, FORWARD, UPDATE) if self.told else (FORWARD, UPDATE):
                    if at != STEP or iteration != self.stepped:
                        self._record(rank, iteration, at)
            self.now += 10 * MS
        if fault is not None and self.told:
            for rank in range(self.world):
                self._record(rank, end, STEP)
        self.progress = end

    def _record(self, rank: int, iteration: int, at: str) -> None:
        moment = Moment(rank, self.starts - 1, iteration, at, iteration == self.began)
        parts: Parts | None = parts_of(rank, iteration, at)
        finite = ""
        if self.change is not None:
            parts = self.change(moment, parts)
        if parts is None:
            return
        if "finite" in parts:
            finite = parts.pop("finite")
        number = iteration - self.process_began if self.counted else iteration
        n = 0
        for record in reversed(self.records[rank]):
            if (record.pid, record.iteration) != (self.pid + rank, number):
                break
            n += record.at == at
        self.records[rank].append(
            Record(self.round, number, at, n, parts, self.counted, finite, self.pid + rank)
        )

    def _happen(self, one: Fault) -> int:
        plan = one.plan
        rank = plan.rank
        self._event(e.RankEvent, rank=rank, name="fault", at_ns=self.now, text=plan.id)
        self.now += int(one.delay_s * 1e9)
        if one.how == "nothing":
            self.stepped = plan.iteration
            return plan.iteration
        if one.how == "inside":
            return self._inside(one)
        if one.how == "relaunch":
            return self._relaunch(one)
        if one.how == "stop":
            self.stepped = plan.iteration
            self._steps(plan.iteration, plan.iteration + 2)
            self.progress = plan.iteration + 1
            return self._relaunch(one)
        verdict = one.verdict
        if verdict.get("kind"):
            self._event(
                e.FailureDetected, kind=verdict["kind"], rank=verdict["rank"], since_ns=self.now
            )
            self._event(
                e.Verdict,
                **{"local_rank": verdict["rank"], "pid": 1, "line": f"rank {verdict['rank']} ...",
                   **verdict},
            )  # fmt: skip
        self._stop(one)
        if one.how == "end":
            self._event(e.JobEnded, outcome="failed", exit_code=1, reason="no restarts left")
            self.exit_codes.append(1)
            return -1
        for _ in range(self.load_fails):
            self._fail_to_load(one.resume)
        self.round += 1
        self._begin(one.resume)
        return one.resume

    def _stop(self, one: Fault) -> None:
        self._event(e.StopRequested, reason="because", grace_s=one.grace_s)
        if one.killed:
            self.now += int(one.grace_s * 1e9)
        for rank in range(self.world):
            signal = "SIGKILL" if rank in one.killed else "SIGTERM"
            self._event(e.RankExited, rank=rank, pid=self.pid + rank, signal=signal, by_us=True)
        self._event(
            e.RoundProgress,
            first_iteration=self.began, last_iteration=self.progress, last_ns=self.now,
        )  # fmt: skip
        self._event(e.RoundStopped)

    def _fail_to_load(self, at: int) -> None:
        self.round += 1
        self._begin(at if self.fails_after else 0, fails=not self.fails_after)
        if self.fails_after:
            self._steps(at, at + self.fails_after)
        self._event(e.FailureDetected, kind="crash", rank=0, since_ns=self.now)
        self._event(
            e.Verdict, kind="crash", rank=0, local_rank=0, pid=1, line="rank 0 EOFError in load"
        )
        self._event(e.RoundStopped)
        self.load_fails -= 1

    def _inside(self, one: Fault) -> int:
        reasons = [f"rank {one.verdict['rank']}: something"]
        lost = list(one.lost)
        self._event(InProcessPhase, call=0, epoch=1, phase="detect", reasons=["rank 0: lost"])
        self._event(InProcessPhase, call=0, epoch=1, phase="abort", took_s=0.5)
        self._event(
            InProcessPhase, call=0, epoch=1, phase="re-enter", members=2, reasons=reasons, lost=lost
        )
        self.starts += 1
        self.stepped = -1
        self.began = one.resume
        return one.resume

    def _relaunch(self, one: Fault) -> int:
        if one.how == "relaunch":
            self._event(e.SignalReceived, signal="SIGTERM")
        self._stop(one)
        self._event(e.JobEnded, outcome="preempted", exit_code=75, reason="SIGTERM")
        self.exit_codes.append(75)
        self.notes.append(Note(one.plan.id, "restarted", 0.0, self.now))
        self._launch()
        self._begin(one.resume)
        return one.resume

    def _end(self) -> None:
        self._event(
            e.RoundProgress,
            first_iteration=self.began, last_iteration=self.progress - 1, last_ns=self.now,
        )  # fmt: skip
        self._event(e.RoundStopped)
        outcome = "failed" if self.exit_code else "finished"
        self._event(e.JobEnded, outcome=outcome, exit_code=self.exit_code, reason=self.reason)
        self.exit_codes.append(self.exit_code)


def undisturbed(**options: Any) -> History:
    return Run(name="undisturbed", **options).history()
