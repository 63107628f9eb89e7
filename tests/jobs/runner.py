"""Runs one cell of the table: a program under the launcher, a fault, and what came out."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests import leaks
from tests.jobs.table import FAULTS, JOBS
from tests.ports import free_ports
from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
RESULT = re.compile(r"RESULT steps=(\d+) numbers=\d+ hash=(\w+)")
STRANGE = re.compile(r"Traceback|Exception ignored|Segmentation fault")
ENDING_S = 10.0  # how long what is ending may take
# What libraries leave in TMPDIR, and in HOME: caches, and folders of processes that were killed.
TEMPORARY = ("torchinductor_", "pymp-", "wandb-", ".cache", ".config", ".triton")
LOGGED = re.compile(rb"_step\x82\x01.(\d+)")  # in files of wandb
_CLONE_NEWNS = 0x00020000


@dataclass
class Cell:
    """What came out of one cell.

    Attributes:
        wrong: what is not as it must be; empty = all is right.
        skipped: why this machine cannot show it.
        seconds: all starts together.
        cpu_s: what its processes have computed, as far as somebody has waited for them.
        exits: of the launcher, start by start.
        restarts: rounds that followed another one within a start.
        blamed: the rank of the first verdict.
        lost: steps done again.
        recovery_s: from the fault to the first step after it.
        result: the hash of the parameters.
        same: whether it is that of the undisturbed run.
        load: of the machine when the cell began.
    """

    job: str
    fault: str
    wrong: list[str] = field(default_factory=list)
    skipped: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    exits: list[int] = field(default_factory=list)
    restarts: int = 0
    blamed: int | None = None
    lost: int = 0
    recovery_s: float | None = None
    result: str = ""
    same: bool | None = None
    load: float = 0.0
    date: str = ""


class Run:
    """One cell while it runs, in a folder of its own."""

    def __init__(self, name: str, fault: str, folder: Path) -> None:
        self.fault, self.folder = fault, folder
        self.job, self.must = JOBS[name], JOBS[name].must_of(fault)
        self.work, self.output, self.mark = folder / "work", folder / "output", folder / "mark"
        for made in (self.work, folder / "tmp", folder / "home"):
            made.mkdir()
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.exits: list[int] = []
        self.fault_ns = 0
        self.problems: list[str] = []
        self.until = time.monotonic() + self.job.deadline_s
        self._socket = socket.socket(socket.AF_UNIX)
        self._reader: int | None = None

    # --- starting -----------------------------------------------------------------------------

    def run(self) -> None:
        """Start the job as often as it must be started."""
        if self.fault == "disk-full":
            folder = self.work / self.job.checkpoints
            folder.mkdir(parents=True)
            mount_memory(folder, f"{self.job.disk_mb}m")
        self._socket.bind(str(self.folder / "call"))
        self._socket.listen()
        caller = threading.Thread(target=self._answer, daemon=True)
        caller.start()
        try:
            for _ in self.must.exits:
                self._start()
                code = self._wait()
                self.exits.append(code)
                if code == 0:
                    break
        finally:
            self._socket.close()
            (self.folder / "call").unlink()
            self._kill_all()
            if self._reader is not None:
                os.close(self._reader)

    def _start(self) -> None:
        nodes = ("one", "two", "three") if self.fault == "node-lost" else ("",)
        endpoint = f"127.0.0.1:{free_ports(2)}"
        self.launchers = []
        for node in nodes:
            more = self.fault == "other-world" and len(self.exits)
            words = ["--nproc-per-node", "1" if node else str(2 + more), "--max-restarts", "4"]
            if node:
                words += ["--nnodes", "2:3", "--rdzv-endpoint", endpoint, "--node-name", node]
            self.launchers.append(self._launch([*words, *self._faults(), *self.job.options]))
            if node:
                self._wait_for_file(self.folder / f"output-{len(self.launchers)}")

    def _faults(self) -> list[str]:
        fault = FAULTS[self.fault]
        words = ["--ft-rank-heartbeat-timeout", str(self.job.limit_s)] if fault.hangs else []
        if self.fault == "output-gone":
            words += ["--tee", "3"]
        if fault.plan and not self.exits:
            at = self.job.iteration_of(self.fault)
            words += ["--inject-fault", f"{fault.plan},iteration={at}"]
        return words

    def _launch(self, options: list[str]) -> subprocess.Popen[bytes]:
        program = [str(PROGRAMS / f"{self.job.program}.py"), *self.job.arguments]
        if FAULTS[self.fault].by_script:
            update = self.job.save_every
            if FAULTS[self.fault].hangs:
                update = self.job.iteration_of(self.fault) + 1
            spec = f"{self.fault}:1:{update}:{self.mark}"
            program = [str(PROGRAMS / "disturbed.py"), spec, *program]
        start = [sys.executable, "-m", "undaunted.cli.main", "run", "--run-dir", "run"]
        number = len(self.launchers) + 1
        with (self.folder / f"output-{number}").open("ab") as output:
            stream: int = output.fileno()
            if self.fault == "output-gone":
                self._reader, stream = os.pipe()
                threading.Thread(target=self._copy, args=(self._reader,), daemon=True).start()
            launched = subprocess.Popen(
                [*start, *options, *program],
                cwd=self.work,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
            if self.fault == "output-gone":
                os.close(stream)
        return launched

    def _environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "UNDAUNTED"))}
        paths = (ROOT / "src", ROOT / "compat/nvidia-resiliency-ext/src", ROOT)
        return {
            **kept,
            "PYTHONPATH": ":".join(map(str, paths)),
            "TMPDIR": str(self.folder / "tmp"),
            "HOME": str(self.folder / "home"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "offline",
            # What is compiled once serves all cells.
            "TORCHINDUCTOR_CACHE_DIR": f"{sys.prefix}/torch-inductor",
            "UNDAUNTED_TOKEN": "a token of the tests",
            "UNDAUNTED_NEMESIS": str(self.folder / "call"),
        }

    def _copy(self, reader: int) -> None:
        with contextlib.suppress(OSError), self.output.with_name("output-1").open("ab") as file:
            while part := os.read(reader, 65536):
                file.write(part)
                file.flush()

    def _wait_for_file(self, path: Path) -> None:
        """Wait until the launcher says that it is there: the first one serves the others."""
        while not path.stat().st_size and time.monotonic() < self.until:
            time.sleep(0.02)

    def _wait(self) -> int:
        """Return the exit code of the job: of those launchers that were not killed, if any."""
        codes = []
        for launcher in self.launchers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.1, self.until - time.monotonic()))
            if launcher.poll() is None:
                self.problems.append(f"no end within {self.job.deadline_s} s")
                self._kill_all()
            codes.append(launcher.wait(10))
        if len(codes) == 1:
            return codes[0]
        living = [code for code in codes if code != -signal.SIGKILL]
        return max(living, default=-signal.SIGKILL)

    def _kill_all(self) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
                launcher.wait(10)

    # --- faults from outside ------------------------------------------------------------------

    def _answer(self) -> None:
        """Make the fault when a rank calls."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    called = json.loads(connection.makefile().readline())
                    self.fault_ns = time.monotonic_ns()
                    act: dict[str, Callable[[int], None]] = {
                        "kill-in-save": self._kill_in_save,
                        "sigterm": self._sigterm,
                        "sigterm-all": self._sigterm_all,
                        "sigterm-eval": self._sigterm,
                        "other-world": self._sigterm,
                        "disk-full": self._fill_disk,
                        "node-lost": self._lose_node,
                        "launcher-killed": self._kill_launcher,
                        "output-gone": self._close_output,
                    }
                    act[self.fault](called["pid"])
                    with contextlib.suppress(OSError):  # it may be dead
                        connection.sendall(b"made\n")

    def _kill_in_save(self, pid: int) -> None:
        folder = self.work / self.job.checkpoints
        before = set(_files(folder))

        def kill_when_it_saves() -> None:
            while time.monotonic() < self.until:
                if set(_files(folder)) - before:
                    self.fault_ns = time.monotonic_ns()
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    return
                time.sleep(0.001)

        threading.Thread(target=kill_when_it_saves, daemon=True).start()

    def _sigterm(self, _pid: int) -> None:
        self.launchers[0].terminate()

    def _sigterm_all(self, _pid: int) -> None:
        for pid in [self.launchers[0].pid, *process.descendants(self.launchers[0].pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _kill_launcher(self, _pid: int) -> None:
        self.launchers[0].kill()

    def _lose_node(self, pid: int) -> None:
        (lost,) = (one for one in self.launchers if pid in process.descendants(one.pid))
        for each in [lost.pid, *process.descendants(lost.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def _close_output(self, _pid: int) -> None:
        assert self._reader is not None
        # The thread that reads keeps the pipe until its read returns: another end takes its place.
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, self._reader)
        os.close(null)

    def _fill_disk(self, _pid: int) -> None:
        """Fill the disk, and free it as soon as the launcher says that a rank has failed."""
        filler = self.work / self.job.checkpoints / ".filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))

        def free() -> None:
            while time.monotonic() < self.until:
                if "[undaunted] restart" in self.text() or self.launchers[0].poll() is not None:
                    break
                time.sleep(0.05)
            filler.unlink()

        threading.Thread(target=free, daemon=True).start()

    # --- afterwards ---------------------------------------------------------------------------

    def text(self) -> str:
        """Return all that was printed, also what only files of the run have."""
        paths = [
            *sorted(self.folder.glob("output-*")),
            *sorted(self.work.glob("run/logs/**/*.log")),
        ]
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def events(self) -> list[dict[str, object]]:
        """Return the events of all journals by time, each with its start and round as `key`."""
        found = []
        for path in self.work.glob("run/journal-*.jsonl"):
            start = 0
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line of one that was killed
                    event = json.loads(line)
                    start += event["event"] == "journal_opened"
                    found.append({**event, "key": (start, event.get("round"))})
        return sorted(found, key=lambda event: event["t"])


def own_mounts() -> bool:
    """What this process mounts from now on is seen by it and its children, and ends with them."""
    if os.geteuid() != 0 or ctypes.CDLL(None).unshare(_CLONE_NEWNS) != 0:
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"]).returncode == 0


def mount_memory(folder: Path, size: str) -> None:
    """Mount a file system of this size in memory."""
    options = f"size={size},mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """All files below, each with the time of its last change."""
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                path = os.path.join(base, name)  # noqa: PTH118 - in a loop of a millisecond
                yield path, os.stat(path).st_mtime_ns  # noqa: PTH116


def run_cell(name: str, fault: str, reference: str, keep: Path | None) -> Cell:
    """Run one cell in this process, which should have no other children.

    Args:
        name: of the job.
        fault: its name.
        reference: the result of the undisturbed run.
        keep: where the folder of a cell that went wrong is kept.
    """
    cell = Cell(name, fault, load=round(os.getloadavg()[0], 1), date=time.strftime("%Y-%m-%d"))
    leaks.become_subreaper()
    folder = Path(tempfile.mkdtemp(prefix="job-", dir="/tmp"))
    began, run = time.monotonic(), Run(name, fault, folder)
    try:
        private = own_mounts()
        if private:
            mount_memory(leaks.SHM, "50%")
        elif fault == "disk-full":
            cell.skipped = "only root can make a small disk"
            return cell
        run.run()
        cell.seconds = round(time.monotonic() - began, 1)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cell.cpu_s = round(used.ru_utime + used.ru_stime, 1)
        _measure(run, cell)
        _judge(run, cell, reference)
        cell.wrong += _left_behind(run, private)
        if cell.wrong and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-aT", folder, keep / f"{name}-{fault}"])
    finally:
        leaks.kill_new(set())
        if fault == "disk-full":
            subprocess.run(
                ["umount", "--lazy", run.work / run.job.checkpoints], capture_output=True
            )
        shutil.rmtree(folder, ignore_errors=True)
    return cell


def _measure(run: Run, cell: Cell) -> None:
    """Read from the journals what came out."""
    cell.exits, events = run.exits, run.events()
    if run.mark.exists():
        run.fault_ns = int(run.mark.read_text())
    rounds: set[object] = set()
    reached: int | None = None
    for event in events:
        kind = event["event"]
        if kind == "rank_event" and event["name"] == "fault":
            run.fault_ns = run.fault_ns or event["at_ns"]
            if not FAULTS[run.fault].in_save:
                reached = max(reached or 0, run.job.iteration_of(run.fault))
        elif kind == "round_progress":
            reached = max(reached or 0, event["last_iteration"])
        elif kind == "verdict" and cell.blamed is None:
            cell.blamed = event["rank"]
        elif kind == "rank_milestone" and event["name"] == "first_step":
            if event["key"] in rounds:
                continue
            if rounds and reached is not None:
                cell.lost = max(cell.lost, reached - event["iteration"])
                if run.fault_ns and cell.recovery_s is None and event["at_ns"] > run.fault_ns:
                    cell.recovery_s = round((event["at_ns"] - run.fault_ns) / 1e9, 1)
            rounds.add(event["key"])
    started = {event["key"] for event in events if event["event"] == "round_started"}
    cell.restarts = len(started) - len(run.exits)
    results = RESULT.findall(run.text())
    if results:
        cell.result = results[-1][1]


def _judge(run: Run, cell: Cell, reference: str) -> None:
    """Say what is not as it must be."""
    must, wrong = run.must, cell.wrong
    wrong += run.problems
    if tuple(cell.exits) != must.exits:
        wrong.append(f"exit codes {cell.exits}, must be {list(must.exits)}")
    least, most = must.restarts
    if not least <= cell.restarts <= most:
        wrong.append(f"{cell.restarts} restarts, must be {least} to {most}")
    if must.blamed is not None and cell.blamed != must.blamed:
        wrong.append(f"rank {cell.blamed} is blamed, must be {must.blamed}")
    if cell.lost > must.lost * run.job.save_every:
        wrong.append(f"{cell.lost} steps done again, must be {must.lost * run.job.save_every}")
    results = set(RESULT.findall(run.text()))
    steps = {int(steps) for steps, _ in results}
    if steps != {run.job.steps}:
        wrong.append(f"results after steps {sorted(steps)}, must be {run.job.steps}")
    if run.fault != "none":
        cell.same = cell.result == reference
        if not cell.same:
            wrong.append(f"result {cell.result or 'none'}, must be {reference}")
        if not run.fault_ns:
            wrong.append("the fault did not happen")
    if run.job.logs:
        files = b"".join(path.read_bytes() for path in run.work.glob(run.job.logs))
        lost = set(range(run.job.steps)) - {int(step) for step in LOGGED.findall(files)}
        if lost:
            wrong.append(f"steps {sorted(lost)} are in no log: what a round has logged is lost")
    if run.fault == "none" and (found := STRANGE.search(run.text())):
        wrong.append(f"{found.group()} in the output of an undisturbed run")


def _left_behind(run: Run, private: bool) -> list[str]:
    """Say which processes and files are there that should not."""
    leaks.wait_for_end(leaks.descendants(), time.monotonic() + ENDING_S)
    left = [
        f"process {leaks.command_of(p)[:80]}" for p in leaks.descendants() if p.state not in "ZX"
    ]
    left += leaks.shm() if private else ()  # else nobody knows whose they are
    own = {"run", *run.job.work, Path(run.job.checkpoints).parts[0]}
    left += [f"file {entry.name}" for entry in run.work.iterdir() if entry.name not in own]
    harmless = TEMPORARY
    if run.fault == "node-lost":
        harmless += ("undaunted-errors-",)  # a node that is off leaves what it had
    if run.fault == "disk-full":
        harmless += ("tmp",)  # fsspec, with which Lightning saves, leaves what it could not move
    for place in ("tmp", "home"):
        names = [entry.name for entry in (run.folder / place).iterdir()]
        left += [f"{place}/{name}" for name in names if not any(t in name for t in harmless)]
    return [f"left behind: {name}" for name in left]
