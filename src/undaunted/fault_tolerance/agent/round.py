"""What belongs to one round: its place in the job, its port, its workers' specs and output."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

from undaunted.attribution import oom
from undaunted.fault_tolerance.agent.environment import RankPlace, worker_environment
from undaunted.fault_tolerance.agent.master_port import ReservedPort
from undaunted.fault_tolerance.output.paths import Stream, log_path
from undaunted.fault_tolerance.output.tee import OutputTee, TeeEntry
from undaunted.fault_tolerance.run_config import TO_BOTH, RunConfig
from undaunted.fault_tolerance.worker.spec import WorkerSpec
from undaunted.faults.plan import FaultPlan

if TYPE_CHECKING:
    from undaunted.coordinator.core.policy import Start
    from undaunted.fault_tolerance.agent.start import Begun

# A real-time signal, never one that users' programs use themselves.
EVIDENCE_SIGNAL = signal.SIGRTMIN + 7
# How long the last output of a round may take to reach the console. The next round does not wait.
_DRAIN_S = 5.0


class Round:
    """One round on this node. `close` gives back what it holds."""

    def __init__(
        self,
        start: Start,
        port: ReservedPort,
        specs: list[WorkerSpec],
        tees: list[TeeEntry],
        stacks_path: str,
    ) -> None:
        self.start = start
        self.port = port
        self.specs = specs
        self.stacks_path = stacks_path
        self.oom_kills_before = oom.read()
        self.faults: dict[int, str] = {}  # injected faults that happened, by local rank
        self._tee = OutputTee(tees) if tees else None

    @property
    def number(self) -> int:
        """The round's number, from 0."""
        return self.start.round

    def rank(self, local_rank: int) -> int:
        """Global rank of a local one."""
        return self.start.first_rank + local_rank

    def error_file(self, local_rank: int) -> str:
        """Where torch's ``@record`` leaves the rank's error, "" = nowhere."""
        return self.specs[local_rank].env.get("TORCHELASTIC_ERROR_FILE", "")

    def follow_output(self) -> None:
        """Begin to copy the ranks' output to the console where that was asked for."""
        if self._tee is not None:
            self._tee.start()

    def close(self) -> None:
        """Free the port, have the rest of the output shown; may be called twice. Does not wait."""
        self.port.close()
        if self._tee is not None:
            self._tee.request_close(_DRAIN_S)

    def finish_output(self) -> list[str]:
        """Wait until the output is shown; return what went wrong with it. After `close`."""
        if self._tee is None:
            return []
        self._tee.close(_DRAIN_S)
        return self._tee.problems


class RoundFactory:
    """Makes rounds from the run's configuration."""

    def __init__(self, config: RunConfig, begun: Begun) -> None:
        self._config = config
        self._area = begun.area
        self._pipes = begun.pipes
        self._shared = begun.environment
        self._faults = FaultPlan.parse(config.faults)
        # On a local disk, since the agent reads it: a hung file system must not stop the agent.
        self._errors = ""  # without: verdicts have the exception hook's record
        with contextlib.suppress(OSError):
            self._errors = tempfile.mkdtemp(prefix="undaunted-errors-")

    def begin(self, start: Start) -> Round:
        """Make round ``start.round``.

        Raises:
            OSError: the port asked for is in use.
        """
        port = ReservedPort(self._config.master_port)
        specs = [self._spec(start, port.number, rank) for rank in range(start.slots)]
        for rank in range(start.slots):
            self._area.reset(rank)
        tees = [entry for spec in specs for entry in self._tees(start, spec)]
        stacks = f"{self._config.run_dir}/stacks-round{start.round}.txt"
        return Round(start, port, specs, tees, stacks)

    def fault_fired(self, fault_id: str) -> None:
        """A planned fault has happened: later rounds do not repeat it."""
        self._faults = self._faults.without([fault_id])

    def close(self) -> None:
        """Remove the directory of error files."""
        if self._errors:
            shutil.rmtree(self._errors, ignore_errors=True)

    def _spec(self, start: Start, master_port: int, local_rank: int) -> WorkerSpec:
        config = self._config
        name = f"round{start.round}-rank{start.first_rank + local_rank}.json"
        error_file = f"{self._errors}/{name}" if self._errors else ""
        place = RankPlace(local_rank, self._area.env_value(local_rank), error_file)
        env = worker_environment(
            self._shared, config, start, master_port, place, faults=self._faults.to_env()
        )
        return WorkerSpec(
            local_rank=local_rank,
            kind=config.kind,
            target=config.target,
            args=config.args,
            env=env,
            cwd=config.cwd,
            stdout=self._file(start, local_rank, "stdout", config.stdout[local_rank]),
            stderr=self._file(start, local_rank, "stderr", config.stderr[local_rank]),
            agent_pid=os.getpid(),
            evidence_signal=EVIDENCE_SIGNAL,
            evidence_fd=self._pipes.write[local_rank],
            exception_hook=config.exception_hook,
        )

    def _file(self, start: Start, local_rank: int, stream: Stream, where: int) -> str:
        return log_path(self._config.log_dir, start.round, local_rank, stream) if where else ""

    def _tees(self, start: Start, spec: WorkerSpec) -> list[TeeEntry]:
        config, local_rank = self._config, spec.local_rank
        prefix = config.local_prefix
        for name, value in (
            ("role_name", config.role),
            ("local_rank", str(local_rank)),
            ("rank", str(start.first_rank + local_rank)),
        ):
            prefix = prefix.replace("${" + name + "}", value)
        streams = ((spec.stdout, config.stdout, 1), (spec.stderr, config.stderr, 2))
        return [
            TeeEntry(path, prefix, fd)
            for path, where, fd in streams
            if where[local_rank] == TO_BOTH
        ]
