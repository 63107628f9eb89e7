"""One round: its place in the job, its port, its workers' specs and output."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution import error_file
from undaunted.checkpointing.keeping import client as keeping
from undaunted.fault_tolerance.agent import error_files, oom
from undaunted.fault_tolerance.agent.environment import (
    NOT_BOUND,
    RankPlace,
    numa_node_of,
    numactl,
    worker_environment,
)
from undaunted.fault_tolerance.agent.kernel_log import KernelLog
from undaunted.fault_tolerance.output import destinations
from undaunted.fault_tolerance.output.job_logs import open_here
from undaunted.fault_tolerance.output.round_output import RoundOutput
from undaunted.fault_tolerance.run_config import TO_BOTH
from undaunted.fault_tolerance.worker.messages import WorkerSpec
from undaunted.faults.plan import FaultPlan

if TYPE_CHECKING:
    from undaunted.coordinator.policy.messages import Start
    from undaunted.fault_tolerance.agent.begun import Begun
    from undaunted.fault_tolerance.output.destinations import RankOutput
    from undaunted.fault_tolerance.output.job_logs import OpenLog
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.events import Verdict

# A real-time signal, never one that users' programs use themselves.
EVIDENCE_SIGNAL = signal.SIGRTMIN + 7


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the local ranks to blame, and what torch's error file would say.

    ``certain`` is False where only victims are known.
    """

    event: Verdict
    culprits: tuple[int, ...]
    certain: bool
    report: error_file.ErrorReport

    def blaming(self, line: str) -> Judgement:
        """Return the same where all nodes together blame ranks of another one."""
        return replace(self, report=error_file.ErrorReport(line, "", int(time.time())))


class Round:
    """One round on this node. `close` gives back what it holds."""

    def __init__(
        self,
        start: Start,
        port: ReservedPort | None,
        specs: list[WorkerSpec],
        output: RoundOutput,
        stacks_path: str,
    ) -> None:
        self.start = start
        self.port = port
        self.specs = specs
        self.stacks_path = stacks_path
        self.early_stacks_path = stacks_path.removesuffix(".txt") + "-early.txt"
        folder, _, name = stacks_path.removesuffix(".txt").rpartition("/")
        self.kernel_log_path = f"{folder}/kernel{name.removeprefix('stacks')}.log"
        self.kernel_log = KernelLog()
        self.oom_kills_before = oom.read()
        self.faults: dict[int, str] = {}  # injected faults that happened, the last by local rank
        self.killed: dict[int, str] = {}  # why guards have ended ranks, by local rank
        self.faults_happened: set[str] = set()  # their ids
        self.checkpoint_announced = False
        self.stopping = False  # the job policy has said so
        self.verdict: Judgement | None = None
        self._output = output

    @property
    def number(self) -> int:
        """The round's number, from 0."""
        return self.start.round

    def rank(self, local_rank: int) -> int:
        """Global rank of a local one."""
        return self.start.rank(local_rank)

    def error_file(self, local_rank: int) -> str:
        """Return where torch's ``@record`` leaves the rank's error, "" = nowhere."""
        return self.specs[local_rank].env.get("TORCHELASTIC_ERROR_FILE", "")

    def fault_happened(self, local_rank: int, fault_id: str) -> None:
        """A planned fault has happened: later rounds do not repeat it."""
        self.faults[local_rank] = fault_id
        self.faults_happened.add(fault_id)

    def follow_output(self) -> list[str]:
        """Begin to copy the ranks' output where that was asked for; return what cannot be done."""
        return self._output.start()

    def close(self) -> None:
        """Free the port, have the rest of the output copied; may be called twice. No wait."""
        self.kernel_log.close()
        if self.port is not None:
            self.port.close()
        self._output.request_close()

    def finish_output(self) -> list[str]:
        """Wait until the output is copied; return what went wrong with it. After `close`."""
        return self._output.close()


class RoundFactory:
    """Makes rounds from the run's configuration."""

    def __init__(
        self, config: RunConfig, begun: Begun, open_log: OpenLog = open_here, arenas: str = ""
    ) -> None:
        """``arenas`` is the name of the socket where ranks have their arenas kept."""
        self._config = config
        self._open_log = open_log
        self._area = begun.area
        self._pipes = begun.pipes
        self._signals = begun.signals
        self._shared = {**begun.environment, keeping.VARIABLE: arenas}
        self._faults = FaultPlan.parse(config.faults)
        self._port: ReservedPort | None = None  # for the next round
        self._last: Round | None = None
        self._unread: set[destinations.Stream] = set()
        self._errors = error_files.make()  # without: verdicts have the exception hook's record

    def reserve(self) -> int:
        """Reserve a port for the next round's store of rank 0; return its number.

        Raises:
            OSError: the port asked for is in use.
        """
        self._release()
        self._port = ReservedPort(self._config.master_port)
        return self._port.number

    def begin(self, start: Start, guard: str = "", recordings: str = "") -> Round:
        """Make round ``start.round``; its port is reserved here if it has none yet.

        Args:
            start: the round.
            guard: name of the socket where its ranks find the guard of `undaunted.inprocess`.
            recordings: name of the socket where they are asked for their recordings.

        Raises:
            OSError: the port asked for is in use.
        """
        if not start.master_port:
            master = self._config.master_addr
            start = msgspec.structs.replace(start, master_addr=master, master_port=self.reserve())
        if start.group_rank != 0:
            self._release()
        port, self._port = self._port, None
        if self._last is not None:
            self._faults = self._faults.without(self._last.faults_happened)
        outputs = [self._output(start, rank) for rank in range(start.slots)]
        specs = [
            self._spec(rank, self._env(start, rank, guard, recordings), output)
            for rank, output in enumerate(outputs)
        ]
        for rank in range(start.slots):
            self._area.reset(rank)
        output = RoundOutput(
            self._config,
            start.round,
            [start.rank(local_rank) for local_rank in range(start.slots)],
            start.world_size,
            outputs,
            self._open_log,
        )
        node = f"-{self._config.node}" if self._config.nodes is not None else ""
        stacks = f"{self._config.run_dir}/stacks-round{start.round}{node}.txt"
        self._last = Round(start, port, specs, output, stacks)
        self._last.kernel_log.begin()
        return self._last

    def leave_unread(self, local_rank: int) -> list[destinations.Stream]:
        """Have later rounds write to files what goes to streams of ours that nobody reads.

        Returns:
            The streams of this rank of the last round of which that is news.
        """
        spec = None if self._last is None else self._last.specs[local_rank]
        ours: dict[destinations.Stream, bool] = {}
        if spec is not None:
            ours = {"stdout": not spec.stdout, "stderr": not spec.stderr}
        news = destinations.without_reader() - self._unread
        self._unread |= news
        return [stream for stream, is_ours in ours.items() if is_ours and stream in news]

    def keep_output(self) -> bool:
        """Have ranks of later rounds write to files, too, what they show; return if that is new."""
        config = self._config
        kept = [[where or TO_BOTH for where in each] for each in (config.stdout, config.stderr)]
        if kept == [config.stdout, config.stderr]:
            return False
        self._config = msgspec.structs.replace(config, stdout=kept[0], stderr=kept[1])
        return True

    def close(self) -> None:
        """Remove the directory of error files, free the port."""
        self._release()
        error_files.remove(self._errors)

    def _release(self) -> None:
        if self._port is not None:
            self._port.close()
        self._port = None

    def _output(self, start: Start, local_rank: int) -> RankOutput:
        own = destinations.own_layout(self._config, start.round, local_rank, self._unread)
        return destinations.for_round_log(self._config, start.round, local_rank, own)

    def _env(self, start: Start, local_rank: int, *sockets: str) -> dict[str, str]:
        name = f"round{start.round}-rank{start.rank(local_rank)}.json"
        error_file = f"{self._errors.path}/{name}" if self._errors.path else ""
        place = RankPlace(local_rank, self._area.env_value(local_rank), error_file, *sockets)
        faults = self._faults.to_env()
        return worker_environment(self._shared, self._config, start, place, faults=faults)

    def _spec(self, local_rank: int, env: dict[str, str], output: RankOutput) -> WorkerSpec:
        config = self._config
        node = numa_node_of(config, local_rank)
        command = [config.target, *config.args]
        if config.kind == "program" and node != NOT_BOUND:
            command = [*numactl(node, strict=config.ft.numa_bind_strict), *command]
            node = NOT_BOUND
        return WorkerSpec(
            local_rank=local_rank,
            kind=config.kind,
            target=command[0],
            args=command[1:],
            numa_node=node,
            numa_strict=config.ft.numa_bind_strict,
            env=env,
            cwd=config.cwd,
            stdout=output.stdout.path,
            stderr=output.stderr.path,
            agent_pid=os.getpid(),
            evidence_signal=EVIDENCE_SIGNAL,
            evidence_fd=self._pipes.write[local_rank],
            signal_fd=self._signals.write[local_rank],
            exception_hook=config.ft.install_exception_hook,
            stop_signals=[*map(int, config.signals)],
        )


class ReservedPort:
    """Holds a port by binding to it without listening.

    With SO_REUSEADDR on both sides, rank 0's store can bind and listen beside this socket, while
    the kernel gives the port to nobody who asks for a free one.
    """

    def __init__(self, wanted: int = 0) -> None:
        """Reserve port ``wanted``, or a free one for 0.

        Raises:
            OSError: ``wanted`` is in use.
        """
        # TCPStore listens on the IPv6 wildcard (dual stack) where there is one.
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.bind(("", wanted))
        except OSError as error:
            self._socket.close()
            raise OSError(
                error.errno,
                f"port {wanted} of rank 0's store cannot be had ({error.strerror}); end what uses "
                "it, or give another one with --master-port (0 = a free one)",
            ) from error
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()
