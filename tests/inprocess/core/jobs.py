"""A controller and what its ranks hear, without guards and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.attribution.hang import RankObservation, Standing
from undaunted.inprocess.core import commands as c
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.controller import SETTLE_S, Controller

if TYPE_CHECKING:
    from collections.abc import Iterable

NS = 1_000_000_000


class Job:
    """Ranks that say what they are asked to; `told` is what each heard since it was read last."""

    def __init__(self, world_size: int = 4, **enter: Any) -> None:
        self.world_size = world_size
        self.controller = Controller()
        self.now = 0
        self.timers: dict[str, float] = {}
        self.notes: list[c.Note] = []
        self.answers: list[m.ToRank] = []  # to processes that are no ranks of the job
        self.over = False
        self.enter_options = {"limits": m.Limits(), **enter}
        self._told: dict[int, list[m.ToRank]] = {}

    def feed(self, *events: m.FromGuard | c.ControllerEvent) -> Job:
        for event in events:
            for command in self.controller.handle(event, self.now):
                if isinstance(command, c.Answer):
                    self.answers.append(command.message)
                else:
                    self._carry_out(command)
        return self

    def _carry_out(self, command: c.ControllerCommand) -> None:
        match command:
            case c.Tell(job_ranks=job_ranks, message=message):
                for job_rank in job_ranks:
                    self._told.setdefault(job_rank, []).append(message)
            case c.SetTimer(name=name, delay_s=delay_s):
                self.timers[name] = delay_s
            case c.Note():
                self.notes.append(command)
            case c.Over():
                self.over = True

    def settle(self) -> Job:
        """A controller that has taken over may make records now."""
        assert self.timers["settled 0 0"] == SETTLE_S
        return self.feed(c.TimerFired("settled 0 0"))

    def told(self, job_rank: int) -> list[m.ToRank]:
        return self._told.pop(job_rank, [])

    def all_told(self) -> dict[int, list[str]]:
        told, self._told = self._told, {}
        return {j: [type(each).__name__ for each in told[j]] for j in sorted(told)}

    # --- what ranks say -------------------------------------------------------------------------

    def enter(self, job_rank: int, call: int = 0, **changes: Any) -> m.Enter:
        options = {"pid": 100 + job_rank, "node": "n0", **self.enter_options, **changes}
        options.setdefault("world_size", self.world_size)
        return m.Enter(call, job_rank, **options)

    def join(self, job_rank: int, epoch: int, call: int = 0, **changes: Any) -> m.Join:
        options = {"rank": job_rank, "world_size": self.world_size, **changes}
        return m.Join(call, job_rank, epoch, **options)

    def begin(self, call: int = 0, *job_ranks: int) -> Job:
        """Ranks (all) enter and join epoch 0."""
        for job_rank in job_ranks or range(self.world_size):
            self.feed(self.enter(job_rank, call), self.join(job_rank, 0, call))
        return self

    def joins(self, epoch: int, *job_ranks: int, call: int = 0, **changes: Any) -> Job:
        return self.feed(*(self.join(each, epoch, call, **changes) for each in job_ranks))

    def fault(self, job_rank: int, epoch: int = 0, fingerprint: str = "") -> m.Fault:
        reason = m.Reason("EXCEPTION", job_rank, text="boom", fingerprint=fingerprint)
        return m.Fault(0, job_rank, epoch, reason)

    def hangs(self, job_rank: int, epoch: int = 0) -> m.Fault:
        reason = m.Reason("SOFT_TIMEOUT", job_rank, text="no ping")
        return m.Fault(0, job_rank, epoch, reason)

    def evidence(self, job_rank: int, standing: Standing, epoch: int = 0) -> m.Evidence:
        waits_in = "all_reduce" if standing is Standing.WAITING else ""
        seen = RankObservation(
            job_rank, "n0", 100 + job_rank, standing, waits_in=waits_in, heard_s=60.0
        )
        return m.Evidence(0, job_rank, epoch, job_rank, msgspec.msgpack.encode(seen))

    def completes(self, epoch: int, *job_ranks: int, call: int = 0) -> Job:
        return self.feed(*(m.Completed(call, each, epoch) for each in job_ranks))

    def lost(self, job_rank: int, call: int = 0, pid: int = 0) -> m.Lost:
        return m.Lost(call, job_rank, m.Reason("TERMINATED", job_rank, text="killed"), pid)

    def leave(self, job_rank: int, epoch: int = 0, *, discarded: bool = False) -> m.Leave:
        reason = m.Reason("BASE_EXCEPTION", job_rank, text="left")
        return m.Leave(0, job_rank, epoch, reason, discarded)


def all_hear(job_ranks: Iterable[int], *names: str) -> dict[int, list[str]]:
    """What `Job.all_told` returns when these ranks hear the same."""
    return {job_rank: [*names] for job_rank in job_ranks}
