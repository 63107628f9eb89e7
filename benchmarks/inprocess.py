"""How long a function takes to run again in the same processes: `python -m benchmarks.inprocess`.

The ranks are plain processes on this machine, started in turns with undaunted's wrapper, with that
of NVRx where it is importable (default intervals, and 20 ms for all of them), and under `undaunted
run`, which restarts the processes. The last rank raises, or kills itself, when it is told to; the
ranks take their own times (CLOCK_MONOTONIC is one clock for all processes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.__main__ import machine
from benchmarks.cost import usage
from benchmarks.launchers import source_path
from benchmarks.nvidia import has_nvrx
from benchmarks.table import Result, markdown
from undaunted.base.process import become_subreaper, descendants, end_descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

PROGRAM = Path(__file__).resolve().parent / "workloads" / "inprocess_rank.py"
CASES = ("raise", "gloo", "kill", "tail", "idle", "ping")
RANKS = (2, 4, 8, 16)
ROUNDS = 3
RESTARTS = 5  # per job
TAIL = 200
IDLE_S = 20.0
START_S = 120.0  # 16 ranks import torch on two cores
DEADLINE_S = 30.0  # for each restart
STOP_S = 15.0
OUTPUT = 1500  # characters of the ranks' output in an error


class JobError(Exception):
    """A job did not go as the benchmark needs it."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.inprocess", description=__doc__.splitlines()[0]
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all")
    parser.add_argument("--ranks", type=int, action="append", help=f"ranks {RANKS}; repeatable")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"jobs of each ({ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="2 ranks, 1 round: does it work?")
    parser.add_argument("--json", type=Path, help="file for all values")
    args = parser.parse_args()
    if unknown := sorted(set(args.cases) - set(CASES)):
        parser.error(f"no case named {', '.join(unknown)}: there are {', '.join(CASES)}")
    sizes = args.ranks or ([2] if args.quick else RANKS)
    become_subreaper()  # whatever a job leaves behind becomes visible, and is ended
    results = []
    for name in args.cases or CASES:
        for result in _run(name, sizes, 1 if args.quick else args.rounds):
            results.append(result)
            print(markdown([result]) + "\n", flush=True)
            if args.json:
                content = {"machine": machine(), "results": [asdict(one) for one in results]}
                args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(machine())
    return 1 if any(result.failures for result in results) else 0


def _run(name: str, sizes: Sequence[int], rounds: int) -> Iterator[Result]:
    small = min(4, max(sizes))
    if name in ("raise", "gloo"):
        yield from (_restarts(name.removeprefix("raise"), ranks, rounds) for ranks in sizes)
    elif name == "kill":
        yield from (_kills(who, small, rounds * 3) for who in (small - 1, 0))
    elif name == "tail":
        restarts = TAIL if rounds > 1 else 10
        yield from (_tail(backend, small, restarts) for backend in ("", "gloo"))
    elif name == "idle":
        yield _idle(small, rounds)
    else:
        yield _ping(rounds)


# --- the cases ------------------------------------------------------------------------------------


def contestants() -> list[str]:
    """Return what can be measured here; the first is ours."""
    return ["undaunted", *(["nvrx", "nvrx-short"] if has_nvrx() else []), "in-job"]


def _restarts(backend: str, ranks: int, rounds: int) -> Result:
    """The last rank raises; the others are in short sleeps, or in all_reduce."""
    where = "blocked in gloo's all_reduce" if backend else "without a process group"
    result = Result("raise", where, ranks)

    def measure(name: str, number: int) -> None:
        with Job(name, backend, ranks, failing=ranks - 1) as job:
            job.entered(ranks)
            for iteration in range(RESTARTS):
                values = job.restart("raise", ranks)
                result.add(name, number * RESTARTS + iteration, _renamed(values, backend))

    _in_turns(result, contestants(), rounds, measure)
    return result


def _kills(who: int, ranks: int, rounds: int) -> Result:
    """A rank is killed, once per job; its rank is that of nobody afterwards."""
    result = Result("kill", f"SIGKILL of rank {who}", ranks)
    # All of a restarted job are there again; a job that is not restarted goes on with one less.
    left = {"in-job": ranks}
    # NVRx does not survive the end of rank 0, which holds its store.
    known = [name for name in contestants() if who or not name.startswith("nvrx")]

    def measure(name: str, number: int) -> None:
        with Job(name, "", ranks, failing=who) as job:
            job.entered(ranks)
            values = job.restart("kill", left.get(name, ranks - 1))
            result.add(name, number, {"SIGKILL to re-entry": values["entered"]})

    _in_turns(result, known, rounds, measure)
    return result


def _tail(backend: str, ranks: int, restarts: int) -> Result:
    """Many restarts of one job."""
    where = "gloo" if backend else "without a process group"
    result = Result("tail", f"{restarts} restarts of one job, {where}", ranks)

    def measure(name: str, number: int) -> None:
        del number
        with Job(name, backend, ranks, failing=ranks - 1) as job:
            job.entered(ranks)
            times = [job.restart("raise", ranks)["ready"] for _ in range(restarts)]
        cuts = statistics.quantiles(times, n=100)
        middle = statistics.median(times)
        found = {"median": middle, "p90": cuts[89], "p99": cuts[98], "longest": max(times)}
        result.add(name, 0, {f"{key}, s": value for key, value in found.items()})

    _in_turns(result, ["undaunted"], 1, measure)
    return result


def _idle(ranks: int, rounds: int) -> Result:
    """Nothing happens; what a rank and its guard use meanwhile."""
    result = Result("idle", f"over {IDLE_S:g} s, per rank", ranks)

    def measure(name: str, number: int) -> None:
        with Job(name, "", ranks, failing=-1, BENCHMARK_IDLE="1") as job:
            job.entered(ranks)
            # A rank starts the program that forks the guards; NVRx's monitors are orphans.
            guards = [pid for pid in descendants(os.getpid()) if _is_guard(pid, job.pids)]
            parts = {"rank": job.pids, "guard": guards}
            before = {part: usage(pids) for part, pids in parts.items()}
            job.rest(IDLE_S)
            values = {}
            for part, pids in parts.items():
                used, at_first = usage(pids), before[part]
                share = (used.cpu_ns - at_first.cpu_ns) / IDLE_S / 1e7 / ranks
                waked = (used.wake_ups - at_first.wake_ups) / IDLE_S / ranks
                values[f"{part}: CPU, % of a core"] = share
                values[f"{part}: wake-ups per second"] = waked
                values[f"{part}: PSS, MB"] = used.pss_bytes / 1e6 / ranks
            result.add(name, number, values)

    _in_turns(result, [name for name in contestants() if name != "in-job"], rounds, measure)
    return result


def _is_guard(pid: int, ranks: list[int]) -> bool:
    """Whether a process of ours is none of the ranks, and runs: NVRx leaves zombies."""
    with contextlib.suppress(OSError):
        return pid not in ranks and bool(os.readlink(f"/proc/{pid}/exe"))
    return False


def _ping(rounds: int) -> Result:
    result = Result("ping", "one call, mean of 200,000 in a row", 1)

    def measure(name: str, number: int) -> None:
        with Job(name, "", 1, failing=0) as job:
            job.entered(1)
            result.add(name, number, {"us": job.ping() / 1e3})

    # NVRx's sends each one to another process: so many would fill its queue.
    _in_turns(result, ["undaunted"], rounds, measure)
    return result


def _in_turns(
    result: Result, names: list[str], rounds: int, measure: Callable[[str, int], None]
) -> None:
    for number in range(rounds):
        for name in names:
            print(
                f"{result.name}, {result.ranks} ranks, {result.title}: {name}, "
                f"{number + 1} of {rounds}",
                file=sys.stderr,
            )
            try:
                measure(name, number)
            except JobError as error:
                print(error, file=sys.stderr)
                result.failures.append(f"{name}: {error}")
            end_descendants(STOP_S)


def _renamed(values: dict[str, float], backend: str) -> dict[str, float]:
    found = {"exception to re-entry of all ranks": values["entered"]}
    if backend:
        found["exception to the first all_reduce of all ranks"] = values["ready"]
    return found


# --- one job --------------------------------------------------------------------------------------


class Job:
    """The ranks of one contestant, in a directory of their own; use it as a context manager.

    Attributes:
        pids: of the ranks that have entered last.
    """

    def __init__(
        self, name: str, backend: str, ranks: int, *, failing: int, **environ: str
    ) -> None:
        self._name = name
        self._ranks = ranks
        self._failing = failing
        self._program = [str(PROGRAM), name, backend]
        self._environ = environ
        self._owned = contextlib.ExitStack()
        self._iteration = -1
        self.pids: list[int] = []

    def __enter__(self) -> Job:  # noqa: PYI034 - Self needs Python 3.11
        with contextlib.ExitStack() as undo:
            kept = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
            self._directory = Path(undo.enter_context(kept))
            self._socket = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            self._socket.bind(str(self._directory / "benchmark"))
            undo.callback(self._stop)
            self._processes: list[subprocess.Popen[bytes]] = []
            self._start()
            self._owned = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._owned.close()

    def entered(self, ranks: int, within_s: float = START_S) -> dict[str, int]:
        """Wait until so many ranks are ready in a further iteration; return when the last was.

        Where that fails on the way, it is the iteration in which they succeed.

        Raises:
            JobError: they do not come.
        """
        deadline = time.monotonic() + within_s
        found: dict[int, dict[int, dict[str, int]]] = {}
        while len(ready := found.get(max(found, default=0), {})) < ranks:
            said = self._receive(f"{ranks} ranks after iteration {self._iteration}", deadline)
            if said.get("iteration", -1) > self._iteration:
                found.setdefault(said["iteration"], {})[said["rank"]] = said
        self._iteration = max(found)
        self.pids = [said["pid"] for said in ready.values()]
        return {what: max(said[what] for said in ready.values()) for what in ("entered", "ready")}

    def restart(self, order: str, ranks: int) -> dict[str, float]:
        """Have the failing rank do it; return the seconds until all others have entered again."""
        self._tell(order)
        failed = self._receive("the failure", time.monotonic() + DEADLINE_S)["failed"]
        times = self.entered(ranks, DEADLINE_S)
        return {what: (at - failed) / 1e9 for what, at in times.items()}

    def ping(self) -> float:
        """Return what one call takes, nanoseconds."""
        self._tell("ping")
        return float(self._receive("the time of a call", time.monotonic() + DEADLINE_S)["ping"])

    def rest(self, seconds: float) -> None:
        """Let time pass, in which nothing may be said."""
        self._socket.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            raise JobError(f"{self._name}: said {self._socket.recv(1000)!r} while nothing happens")

    def _tell(self, order: str) -> None:
        round_ = self._iteration if self._name == "in-job" else 0
        address = str(self._directory / f"{self._failing}-{round_}")
        self._socket.sendto(order.encode(), address)

    def _receive(self, what: str, deadline: float) -> dict[str, Any]:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            said: dict[str, Any] = json.loads(self._socket.recv(1000))
        except TimeoutError:
            output = (self._directory / "output").read_text(errors="replace")[-OUTPUT:]
            raise JobError(f"waited in vain for {what}. Its output ends:\n{output}") from None
        return said

    def _start(self) -> None:
        environ = {
            **os.environ,
            "PYTHONPATH": source_path(),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # NVRx polls, and each poll would log and look up names
            "OMP_NUM_THREADS": "1",
            "BENCHMARK_DIRECTORY": str(self._directory),
            "BENCHMARK_RANK": str(self._failing),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(self._ranks),
            **self._environ,
        }
        own = [{"RANK": str(rank)} for rank in range(self._ranks)]
        command = [sys.executable, *self._program]
        if self._name == "in-job":
            options = [f"--nproc-per-node={self._ranks}", "--max-restarts=1000"]
            command = [sys.executable, "-m", "undaunted.cli.main", "run", *options, *self._program]
            own = [{}]
        with (self._directory / "output").open("wb") as output:
            for each in own:
                self._processes.append(
                    subprocess.Popen(
                        command,
                        cwd=self._directory,
                        env={**environ, **each},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                    )
                )

    def _stop(self) -> None:
        for process in self._processes:
            if self._name == "in-job":
                process.terminate()  # it ends its ranks
            else:
                process.kill()
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()  # nothing, if it has ended
            process.wait()


def _free_port() -> int:
    """Return a port that is free, as is the next one."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                other.bind(("127.0.0.1", port + 1))
                return port


if __name__ == "__main__":
    sys.exit(main())
