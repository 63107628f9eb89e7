"""One job: starts the ranks, tells them what to do, and listens to what they say."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.inprocess_soak.checks import DeviationError, Watch
from benchmarks.inprocess_soak.processes import END_S, Processes
from benchmarks.inprocess_soak.scenarios import Action, Scenario, Scene
from undaunted.base.process import descendants, end_descendants, open_pidfd, wait_pidfd

if TYPE_CHECKING:
    from types import TracebackType

START_S = 180.0  # several ranks import torch on two busy cores
RESTART_S = 30.0
TAIL = 60  # lines in an error

# What ends a rank, and how its process may end.
CODES = {"kill": (-signal.SIGKILL,), "kill guard": (1,), "stop": (-signal.SIGTERM, -signal.SIGKILL)}


@dataclass(frozen=True)
class Settings:
    """Of one job.

    Attributes:
        ranks: how many processes.
        most_active: how many of them call the function, None = all.
        gloo: make a group in every iteration, and have it sum.
        short: limits that can be waited for.
        launched: under `undaunted run`, which goes on without ranks that are lost.
    """

    ranks: int
    most_active: int | None = None
    gloo: bool = False
    short: bool = False
    launched: bool = False

    def limits(self) -> dict[str, float]:
        """Return arguments of `Wrapper`, seconds."""
        if not self.short:
            return {}
        quick = (
            "progress_watchdog_interval",
            "monitor_thread_interval",
            "monitor_process_interval",
        )
        return {
            "soft_timeout": 4.0,
            "hard_timeout": 6.0,
            "termination_grace_time": 0.5,
            **dict.fromkeys(quick, 0.2),
        }


@dataclass
class Restart:
    """What one scenario has led to; times in seconds since its first fault."""

    kind: str
    faults: int
    entered_s: float
    ready_s: float


@dataclass
class Outcome:
    """Of a whole job; memory in KiB per rank that was there at the end."""

    restarts: list[Restart] = field(default_factory=list)
    growth_kb: list[int] = field(default_factory=list)
    iterations: int = 0
    replaced: int = 0  # processes that have joined in the place of lost ones


class Job:
    """A context manager. The process must be a subreaper, as guards outlive their ranks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.watch = Watch(settings.ranks, settings.most_active)
        self._iteration = -1
        self._heard: list[str] = []
        self._partial = b""

    def __enter__(self) -> Job:  # noqa: PYI034 - Self needs Python 3.11
        with contextlib.ExitStack() as undo:
            kept = tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True)
            self._directory = Path(undo.enter_context(kept))
            self._socket = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            os.mkfifo(self._directory / "said")
            self._pipe = os.open(self._directory / "said", os.O_RDONLY | os.O_NONBLOCK)
            undo.callback(os.close, self._pipe)
            self._processes = self._start()
            undo.callback(self._processes.kill)
            self._owned = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._owned.close()

    # --- what the soak does -----------------------------------------------------------------------

    def begin(self) -> Scene:
        """Wait until all ranks are in the first iteration."""
        return self._complete(START_S)

    def play(self, scenario: Scenario) -> tuple[Scene, Restart]:
        """Have it happen; return who is in the next iteration, and how long that took."""
        watch = self.watch
        watch.faults.clear()
        self._tell(scenario)
        for action in sorted(scenario.actions, key=lambda one: one.after_s):
            self._act(action)
        scene = self._complete(RESTART_S)
        now = watch.iterations[self._iteration]
        entered = max(said["at"] for said in now.entered.values())
        first = min(watch.faults, default=entered)
        ready = max(now.ready.values())
        times = (entered - first) / 1e9, (ready - first) / 1e9
        return scene, Restart(scenario.kind, len(watch.faults), *times)

    def finish(self, scenario: Scenario) -> list[int]:
        """Let the function return, and see that nothing is left; return growths of memory."""
        self._tell(scenario)
        deadline = time.monotonic() + END_S
        while self._hear(deadline, "the end of all ranks"):
            pass
        codes = self._processes.wait(deadline)
        if self.settings.launched:
            self.watch.launcher_ended(codes[0])
        else:
            for number, code in enumerate(codes):
                self.watch.ended(number, code)
        self._see_that_nothing_is_left(deadline)
        pairs = [said["rss_kb"] for said in self.watch.done.values()]
        return [after - before for before, after in pairs]

    @property
    def iterations(self) -> int:
        """How many there were."""
        return self._iteration + 1

    def tail(self) -> str:
        """End the ranks, and return the last lines, and the ends of the logs: where ranks were."""
        logs = self._processes.end()
        return "\n".join([*self._heard[-TAIL:], logs])

    # --- orders and lines -------------------------------------------------------------------------

    def _tell(self, scenario: Scenario) -> None:
        for number, order in scenario.orders.items():
            said = {"iteration": self._iteration, "do": order.do, "armed": order.armed}
            # It has just ended, or another process takes its place.
            with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
                self._socket.sendto(json.dumps(said).encode(), str(self._directory / str(number)))

    def _act(self, action: Action) -> None:
        begin = time.monotonic()
        while self._hear(begin + action.after_s, ""):
            pass
        if action.number not in self.watch.alive:
            return  # that rank has failed in the meantime
        at = time.monotonic_ns()
        if not self._processes.send(self.watch.pids[action.number], action.what):
            return
        self._heard.append(f"{action.what} {action.number} at {at}")
        if action.what != "continue":
            self.watch.faults.append(at)
        if action.what in ("kill", "kill guard") or action.forever:
            self.watch.codes[action.number] = CODES[action.what]

    def _complete(self, within_s: float) -> Scene:
        """Wait for a further iteration in which all ranks are that live."""
        deadline = time.monotonic() + within_s
        while (found := self.watch.complete_after(self._iteration)) is None:
            alive = sorted(self.watch.alive)
            what = f"an iteration after {self._iteration} with {alive}"
            if not self._hear(deadline, what):
                raise DeviationError(f"all have ended; waited for {what}")
        self._iteration = found
        now = self.watch.iterations[found]
        settings = self.settings
        return Scene(now.active, now.reserves, settings.gloo, settings.short, settings.launched)

    def _hear(self, deadline: float, what: str) -> bool:
        """Take in what the ranks say next; False = they have all ended.

        Args:
            deadline: until when to wait for that.
            what: is awaited, for the error if it does not come; "" = nothing, return False then.
        """
        ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            if not what:
                return False
            raise DeviationError(f"waited in vain for {what}")
        data = os.read(self._pipe, 65536)
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._heard.append(line.decode())
            self.watch.take(json.loads(line))
        return bool(data)

    # --- processes --------------------------------------------------------------------------------

    def _start(self) -> Processes:
        settings = {
            "directory": str(self._directory),
            "gloo": self.settings.gloo,
            "most_active": self.settings.most_active,
            "limits": self.settings.limits(),
        }
        return Processes(
            self._directory,
            self.settings.ranks,
            json.dumps(settings),
            launched=self.settings.launched,
        )

    def _see_that_nothing_is_left(self, deadline: float) -> None:
        """Guards end by themselves when their ranks have."""
        for pid in descendants(os.getpid()):
            pidfd = open_pidfd(pid)
            if pidfd is not None:
                wait_pidfd(pidfd, max(0.0, deadline - time.monotonic()))
                os.close(pidfd)
        if left := len(end_descendants(END_S)):
            raise DeviationError(f"{left} processes are left")
