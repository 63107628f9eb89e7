"""Between two rounds: everything that makes sure that the next one finds a fit node.

All of it is done at the same time, each with its deadline: the node is checked
(`node_health`), and devices give back the memory of the round that ended (`Reclaim`). A process
that has been killed is gone before the driver has freed what it held; a rank that starts too early
runs out of device memory.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.deadline import wait_for
from undaunted.fault_tolerance.agent.devices import DeviceProvider, find_provider
from undaunted.health import device_memory
from undaunted.health.device_memory import MIB, DeviceUse, Held
from undaunted.journal import events as e

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from undaunted.fault_tolerance.agent.node_health import NodeHealth
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.writer import JournalWriter

# The tasks below keep to their own deadlines; this is for when one does not.
_SPARE_S = 5.0
# The driver does not announce that it has freed memory, so it is asked: after this, then after
# twice as long each time, up to the interval of the settings.
_FIRST_LOOK_AGAIN_S = 0.02


class Clearing:
    """The part that `node` calls CLEARING. Owns the helper programs it takes.

    Args:
        config: the run.
        environ: of the ranks.
        journal: gets how it went.
        health: checks the node; belongs to the caller.
    """

    def __init__(
        self,
        config: RunConfig,
        environ: Mapping[str, str],
        journal: JournalWriter,
        health: NodeHealth,
    ) -> None:
        self._journal = journal
        self._health = health
        self._timeout_s = config.ft.gpu_memory_reclaim_timeout
        self._reclaim = Reclaim(config, environ)
        self._running: asyncio.Task[object] | None = None

    @property
    def longest_s(self) -> float:
        """Return how long it takes at most, seconds; 0 = there is nothing to do."""
        longest_s = max(self._timeout_s if self._reclaim.wanted else 0.0, self._health.longest_s)
        return longest_s + _SPARE_S if longest_s else 0.0

    def prepare(self) -> None:
        """Start what takes a while to start, while the ranks end."""
        self._reclaim.prepare()

    def pids(self) -> set[int]:
        """The helper programs that run: they belong to no round."""
        return self._reclaim.pids()

    async def clear(self, number: int, ended: AbstractSet[int]) -> str:
        """Do it all; return why this node can run no round, "" if it can.

        Args:
            number: the round that has ended.
            ended: processes of the round that ended.
        """
        self._running = asyncio.current_task()
        try:
            problems = await asyncio.gather(
                self._wait_for_memory(number, ended),
                self._health.examine(number),
            )
        finally:
            self._running = None
            self._reclaim.close()
        return "; ".join(problem for problem in problems if problem)

    def close(self) -> None:
        """Give up what is under way and end the helper programs; `prepare` starts them again."""
        if self._running is not None:
            self._running.cancel()  # it ends them
        else:
            self._reclaim.close()

    async def _wait_for_memory(self, number: int, ended: AbstractSet[int]) -> str:
        """Never a problem: whatever is still in use may be enough to go on."""
        if not self._reclaim.wanted:
            return ""
        outcome = await self._reclaim.wait(ended)
        self._journal.record(
            e.MemoryReclaimed(
                round=number,
                duration_ns=outcome.duration_ns,
                timeout_s=self._timeout_s,
                devices=outcome.devices,
                pids=list(outcome.pids),
                held=outcome.held,
                skipped=outcome.skipped,
            )
        )
        return ""


@dataclass(frozen=True)
class MemoryWait:
    """The outcome of the wait.

    Attributes:
        duration_ns: its length.
        devices: how many devices were looked at.
        pids: ended processes of the round that the driver still listed at the first look.
        held: what was still in use when time was up, "" if everything was free.
        skipped: why nothing was waited for, "" if it was.
    """

    duration_ns: int = 0
    devices: int = 0
    pids: tuple[int, ...] = ()
    held: str = ""
    skipped: str = ""


class Reclaim:
    """Waits for the memory of this node's devices, with the help of a provider program.

    Args:
        config: the run.
        environ: of the ranks; says which devices they see.
    """

    def __init__(self, config: RunConfig, environ: Mapping[str, str]) -> None:
        self._timeout_s = config.ft.gpu_memory_reclaim_timeout
        self._tolerance = int(config.ft.gpu_memory_tolerance_mb * MIB)
        self._longest_s = config.ft.gpu_memory_poll_interval
        self._ranks = config.nproc_per_node
        self._environ = environ
        self._program = find_provider(environ)
        self._provider: DeviceProvider | None = None
        # Why there is no need, or no way, to wait.
        self.absent = "" if self._program else "there is no NVIDIA GPU on this node"

    @property
    def wanted(self) -> bool:
        """Return whether restarts wait at all."""
        return self._timeout_s > 0 and not self.absent

    def prepare(self) -> None:
        """Start the provider: the driver's library takes a while to begin."""
        if not self.wanted or self._provider is not None:
            return
        try:
            self._provider = DeviceProvider(self._program, self._environ)
        except OSError as error:
            self.absent = f"the device provider cannot be started: {error}"

    def pids(self) -> set[int]:
        """The provider, while it lives."""
        provider = self._provider
        return set() if provider is None or not provider.is_alive() else {provider.pid}

    async def wait(self, ended: AbstractSet[int]) -> MemoryWait:
        """Wait until the devices are free, at most for the time of the settings.

        Args:
            ended: processes of the round that ended.
        """
        began_ns = time.monotonic_ns()
        self.prepare()
        if self._provider is None:
            return MemoryWait(skipped=self.absent)
        try:
            outcome = await self._wait(self._provider, ended, time.monotonic() + self._timeout_s)
        except (OSError, ValueError) as error:
            outcome = MemoryWait(skipped=str(error))
        took_ns = time.monotonic_ns() - began_ns
        return MemoryWait(took_ns, outcome.devices, outcome.pids, outcome.held, outcome.skipped)

    def close(self) -> None:
        """End the provider; `prepare` starts another one."""
        if self._provider is not None:
            self._provider.kill()
            self._provider.release()
            self._provider = None

    async def _wait(
        self, provider: DeviceProvider, ended: AbstractSet[int], deadline: float
    ) -> MemoryWait:
        first: tuple[int, ...] | None = None
        held: list[Held] = []
        count, delay = 0, _FIRST_LOOK_AGAIN_S
        while True:
            try:
                left = deadline - time.monotonic()
                answer = await wait_for(provider.ask(), max(left, 0.0))
            except TimeoutError:
                silent = "the driver did not answer" if first is None else self._describe(held)
                return MemoryWait(devices=count, pids=first or (), held=silent)
            if answer.error:
                self.absent = answer.error
                return MemoryWait(skipped=answer.error)
            devices = device_memory.visible(answer.devices, self._environ)
            count, held = len(devices), self._held(devices, ended)
            if first is None:
                first = tuple(sorted({pid for device in held for pid in device.pids}))
            left = deadline - time.monotonic()
            if not held or left <= 0:
                return MemoryWait(devices=count, pids=first, held=self._describe(held))
            await asyncio.sleep(min(delay, left))
            delay = min(delay * 2, self._longest_s)

    def _held(self, devices: list[DeviceUse], ended: AbstractSet[int]) -> list[Held]:
        return device_memory.held(
            devices, ended, tolerance=self._tolerance, ranks=self._ranks, is_alive=_is_alive
        )

    def _describe(self, held: list[Held]) -> str:
        return device_memory.describe(held, _name_of)


def _is_alive(pid: int) -> bool:
    return process.state(pid) not in process.ENDED


def _name_of(pid: int) -> str:
    stat = process.read_stat(pid)
    return stat.comm if stat is not None else ""
