"""Conducts one run: keeps its launcher, answers its ranks, makes what they cannot, ends it in time.

What is decided here is little: a launcher that the nemesis has ended, or that ended while its disk
was full or after its ranks had stopped in order, is started again without the faults that have
happened, as a scheduler would start it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.chaos.history import DIGESTS_DIR, RUN_DIR, read_history
from undaunted.chaos.kinds import KINDS, injections
from undaunted.chaos.nemesis import calls
from undaunted.chaos.nemesis.damage import damage_newest
from undaunted.chaos.nemesis.helper import NotPossibleError
from undaunted.chaos.nemesis.launcher import Launcher
from undaunted.chaos.nemesis.planting import plant
from undaunted.chaos.nemesis.slow_network import SlowNetwork
from undaunted.chaos.nemesis.small_disk import SmallDisk
from undaunted.chaos.outcome import Note, Outcome, disk_filled_by, write_outcome
from undaunted.coordinator.policy.messages import Outcome as Ending
from undaunted.digests.record import VARIABLE as DIGESTS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from undaunted.chaos.plan import Planned

OUTPUT_FILE = "output.txt"
WORK_DIR = "work"

_LOOK_S = 5.0  # how often it is looked whether this process was stopped
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Trial:
    """A run that is to be made.

    Attributes:
        directory: of the run; exists, with the directory ``work`` in it.
        options: those of ``undaunted run``, without its run directory and its faults.
        program: the user's program with its arguments.
        environ: of the launcher.
        deadline_s: how long the run may take, seconds.
        faults: what is to happen in it.
        seed: of the plan; decides how files are damaged.
        place: where the checkpoints are; exists where there is a small disk.
        cwd: where the launcher is started; None = where this process is.
        small_disk_bytes: size of the file system on ``place``; 0 = no small disk.
        disk_full_s: how long a full disk stays full if nothing fails, seconds.
        slow_network: whether the run has a separate network, which can be made slow.
        slow_s: how long the network is slow, seconds.
        last: iteration with which the program is done, None = not known.
    """

    directory: Path
    options: Sequence[str]
    program: Sequence[str]
    environ: Mapping[str, str]
    deadline_s: float
    place: Path
    cwd: Path | None = None
    faults: tuple[Planned, ...] = ()
    seed: int = 0
    small_disk_bytes: int = 0
    disk_full_s: float = 5.0
    slow_network: bool = False
    slow_s: float = 2.5
    last: int | None = None


@dataclass
class _State:
    """The run so far."""

    exit_codes: list[int] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    terminated_by: str = ""  # fault that ended the running launcher
    full_since: str = ""  # fault that filled the disk
    in_time: bool = True
    interrupted: bool = False


def conduct(trial: Trial) -> Outcome:
    """Make the run; return how it went, which is in ``outcome.json`` as well.

    SIGINT, SIGTERM and SIGHUP end the run; the outcome says so.

    Raises:
        OSError: the directory of the run cannot be written, or nothing can be started.
        NotPossibleError: the machine does not allow what the faults need.
    """
    with contextlib.closing(Surroundings(trial)) as around:
        outcome = asyncio.run(_Conductor(trial, around).run())
        if around.disk is not None:
            around.disk.copy_to(trial.directory / WORK_DIR)
    write_outcome(trial.directory, outcome)
    return outcome


class _Conductor:
    """One run in its event loop."""

    def __init__(self, trial: Trial, around: Surroundings) -> None:
        self._trial = trial
        self._around = around
        self._disk = around.disk
        self._state = _State()
        self._faults = {fault.id: fault for fault in trial.faults}
        self._calls = calls.CallServer(trial.directory, self._act)
        self._launcher: Launcher | None = None
        self._timer: asyncio.TimerHandle | None = None
        # While the network is slow: the fault that made it so, and what ends that in time.
        self._slowed: tuple[str, asyncio.Task[None]] | None = None
        self._slowing = asyncio.Lock()

    async def run(self) -> Outcome:
        started_wall, started = time.time(), time.monotonic()
        await self._calls.start()
        work = asyncio.create_task(self._launch_until_done())
        loop = asyncio.get_running_loop()
        # What was ignored when we were started stays so: nohup means that SIGHUP shall do nothing.
        numbers = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._interrupt, work)
        try:
            await self._until_done(work)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            if self._timer is not None:
                self._timer.cancel()
            if self._slowed is not None:
                self._slowed[1].cancel()
            await self._calls.close()
        return Outcome(
            exit_codes=self._state.exit_codes,
            started_wall=started_wall,
            ended_wall=time.time(),
            seconds=time.monotonic() - started,
            deadline_s=self._trial.deadline_s,
            in_time=self._state.in_time,
            interrupted=self._state.interrupted,
            notes=self._state.notes,
        )

    async def _until_done(self, work: asyncio.Task[None]) -> None:
        if not await _within(work, self._trial.deadline_s):
            self._state.in_time = False
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()
            return
        if self._launcher is not None:
            self._state.exit_codes.append(await self._launcher.end())

    def _interrupt(self, work: asyncio.Task[None]) -> None:
        if self._state.interrupted and self._launcher is not None:
            self._launcher.send(signal.SIGKILL)  # asked for twice
        self._state.interrupted = True
        work.cancel()

    # --- launchers ------------------------------------------------------------------------------

    async def _launch_until_done(self) -> None:
        left: Sequence[Planned] = self._trial.faults
        for _ in range(1 + len(self._trial.faults)):
            self._launcher = self._launch(left)
            code = await self._launcher.ended()
            self._launcher = None
            self._state.exit_codes.append(code)
            terminated, self._state.terminated_by = self._state.terminated_by, ""
            again = terminated or self._state.full_since or (self._caused_by() if code else "")
            self._give_space_back()
            if not again or (code == 0 and not (terminated and self._work_is_left())):
                return
            self._note(again, "restarted")
            left = self._left()

    def _launch(self, faults: Sequence[Planned]) -> Launcher:
        trial = self._trial
        options = [*trial.options, "--run-dir", str(trial.directory / RUN_DIR)]
        if plan := injections(faults):
            options += ["--inject-fault", plan]
        environ = {
            **trial.environ,
            DIGESTS_VARIABLE: str(trial.directory / DIGESTS_DIR),
            calls.VARIABLE: str(self._calls.path),
        }
        return Launcher(
            [*options, "--", *trial.program],
            environ,
            trial.directory / OUTPUT_FILE,
            self._around.namespaces,
            trial.cwd,
        )

    def _left(self) -> list[Planned]:
        """Return the faults that have not happened yet, and those that last."""
        happened = {note.fault for note in self._state.notes}
        for launch in read_history(self._trial.directory).launches:
            happened.update(event.text for event in launch.faults())
        return [
            fault
            for fault in self._trial.faults
            if fault.id not in happened or KINDS[fault.kind].lasts
        ]

    def _caused_by(self) -> str:
        """Return the fault after which a launcher that failed is started again, "" = after none."""
        return self._stopped_by() or self._filled_by()

    def _stopped_by(self) -> str:
        """Return the fault for which the ranks of the last launcher have stopped, "" = for none."""
        launches = read_history(self._trial.directory).launches[-1:]
        happened = [
            self._faults.get(event.text)
            for run in launches
            if run.summary.outcome == Ending.PREEMPTED.value
            for event in run.faults()
        ]
        stops = [fault.id for fault in happened if fault and KINDS[fault.kind].stops]
        return stops[-1] if stops else ""

    def _filled_by(self) -> str:
        """Return the fault that had the disk full when the last round began, "" = none had.

        The time of a full disk may be up between the failure of that round and the launcher's end.
        """
        launches = read_history(self._trial.directory).launches
        began = (events[0].t for run in launches[-1:] for events in run.rounds.values())
        return disk_filled_by(self._state.notes, max(began, default=0))

    def _work_is_left(self) -> bool:
        """Tell whether the program was not done when it ended: it has saved and left."""
        launches = read_history(self._trial.directory).launches
        reached = [one.last_iteration for run in launches[-1:] for one in run.summary.rounds]
        last = self._trial.last
        return last is not None and max((i for i in reached if i is not None), default=-1) < last

    # --- faults ---------------------------------------------------------------------------------

    async def _act(self, call: calls.Call) -> str:
        fault = self._faults.get(call.fault)
        if fault is None or not KINDS[fault.kind].outside:
            return "no such fault"
        try:
            return await self._make(fault, call)
        except OSError as error:
            self._note(fault.id, "failed", os.strerror(error.errno or 0), call)
        except NotPossibleError as error:
            self._note(fault.id, "failed", str(error), call)
        return "failed"

    async def _make(self, fault: Planned, call: calls.Call) -> str:
        if fault.kind == "sigterm":
            return self._terminate(fault, call)
        if fault.kind == "corrupt-checkpoint":
            return self._damage(fault, call)
        if fault.kind == "bad-checkpoint":
            return self._plant(fault, call)
        if fault.kind == "disk-full":
            return self._fill(fault, call)
        return await self._slow(fault, call)

    def _terminate(self, fault: Planned, call: calls.Call) -> str:
        if self._launcher is None or not self._launcher.send(signal.SIGTERM):
            return "the launcher has ended"
        self._state.terminated_by = fault.id
        self._note(fault.id, "terminated", f"SIGTERM to pid {self._launcher.pid}", call)
        return ""

    @property
    def _checkpoints(self) -> Path:
        return self._disk.directory if self._disk is not None else self._trial.place

    def _plant(self, fault: Planned, call: calls.Call) -> str:
        done = plant(self._checkpoints, fault.how)
        why = f"there is no checkpoint yet for the fault {fault.how}"
        self._note(fault.id, "damaged" if done else "failed", done or why, call)
        return ""

    def _damage(self, fault: Planned, call: calls.Call) -> str:
        done = damage_newest(self._checkpoints, self._trial.seed, fault.id)
        self._note(fault.id, "damaged" if done else "failed", done or "no checkpoint yet", call)
        return ""

    def _fill(self, fault: Planned, call: calls.Call) -> str:
        if self._disk is None:
            self._note(fault.id, "failed", "there is no small disk", call)
            return "failed"
        written = self._disk.fill()
        self._state.full_since = fault.id
        self._note(fault.id, "filled", f"{written} bytes", call)
        seconds = fault.seconds or self._trial.disk_full_s
        self._timer = asyncio.get_running_loop().call_later(seconds, self._give_space_back)
        return ""

    def _give_space_back(self) -> None:
        if self._disk is not None and self._state.full_since:
            self._disk.empty()
            self._note(self._state.full_since, "emptied")
            self._state.full_since = ""

    async def _slow(self, fault: Planned, call: calls.Call) -> str:
        network = self._around.network
        if network is None:
            raise NotPossibleError(f"this run has nothing for {fault.kind}")
        async with self._slowing:
            await self._lift(network)  # an earlier one that still lasts is over with this one
            how = await asyncio.to_thread(network.slow)
            seconds = fault.seconds or self._trial.slow_s
            ending = asyncio.create_task(self._lift_after(seconds, network))
            self._slowed = fault.id, ending
            self._note(fault.id, "slowed", f"for {seconds:g} s: {how}", call)
        return ""

    async def _lift_after(self, seconds: float, network: SlowNetwork) -> None:
        await asyncio.sleep(seconds)
        async with self._slowing:
            await self._lift(network)

    async def _lift(self, network: SlowNetwork) -> None:
        if self._slowed is None:
            return
        (fault, ending), self._slowed = self._slowed, None
        if ending is not asyncio.current_task():
            ending.cancel()
        try:
            await asyncio.to_thread(network.lift)
        except (NotPossibleError, OSError) as error:
            self._note(fault, "failed", f"it stays slow: {error}")
        else:
            self._note(fault, "lifted")

    def _note(self, fault: str, what: str, text: str = "", call: calls.Call | None = None) -> None:
        note = Note(
            fault,
            what,
            time.time(),
            time.monotonic_ns(),
            rank=call.rank if call is not None else -1,
            iteration=call.iteration if call is not None else -1,
            text=text,
        )
        self._state.notes.append(note)


async def _within(work: asyncio.Task[None], seconds: float) -> bool:
    """Wait for the end of a task; return False when its time is up.

    Time in which this process was stopped counts for a moment only: the run may have gone on, or
    may have been stopped with it.
    """
    left = seconds
    while left > 0 and not work.done():
        before = time.monotonic()
        await asyncio.wait({work}, timeout=min(left, _LOOK_S))
        left -= min(time.monotonic() - before, 2 * _LOOK_S)
    return work.done()


__all__ = ["OUTPUT_FILE", "WORK_DIR", "Trial", "conduct"]


class Surroundings:
    """The disk and network of one run. The owner calls `close` after its last launcher.

    Attributes:
        disk: the small disk, None = there is none.
        namespaces: descriptors of the namespaces that launchers enter, in order.
        network: one that can be made slow, None = there is none.
    """

    def __init__(self, trial: Trial) -> None:
        """Make what the run needs.

        Raises:
            NotPossibleError: the machine does not allow it.
        """
        self.disk: SmallDisk | None = None
        self.namespaces: tuple[int, ...] = ()
        self.network: SlowNetwork | None = None
        with contextlib.ExitStack() as opened:
            if trial.small_disk_bytes:
                self.disk = SmallDisk(trial.place, trial.small_disk_bytes)
                opened.callback(self.disk.close)
                self.namespaces = self.disk.namespaces
            if trial.slow_network:
                self.network = SlowNetwork(self.namespaces)
                opened.callback(self.network.close)
                self.namespaces = self.network.namespaces
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Give everything back."""
        self._opened.close()
