"""Whether a job that is told to stop at any moment loses nothing: see `--help`.

`python -m benchmarks.preemption`: of 4 ranks on 2 launchers one, or a launcher, gets a signal at a
random moment. Started again, they must come to the result of an undisturbed run, bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.__main__ import machine
from tests.ports import free_ports

PROGRAM = Path(__file__).resolve().with_name("workloads") / "preemption.py"
RANKS, LIMIT_S, HANGS = 4, 60.0, -99
PHASES, PHASE_S = ("setup", "load", "loader", "evaluation", "save"), 0.15


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preemption", description=__doc__)
    parser.add_argument("--moments", type=int, default=200, help="how many (200)")
    parser.add_argument("--step", type=float, default=0.01, help="seconds of a step (0.01)")
    parser.add_argument("--slow", action="store_true", help="an agent stands still for 1 s")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    args = parser.parse_args()
    chance, counts, wrong = random.Random(args.seed), Counter[tuple[str, str]](), 0
    with job(args.step) as launchers:
        began = time.monotonic()
        assert wait(launchers) == [0, 0], "the undisturbed run"
        expected = results()
        loop_s = min(float(lines(rank)[-2][0]) for rank in range(RANKS)) - began  # until a result
    for number in range(args.moments):
        clear()
        with job(args.step) as launchers:
            if number % 2:
                time.sleep(chance.uniform(0.3, loop_s))
            else:
                wait_for_phase(PHASES[number // 2 % len(PHASES)], chance)
            at = time.monotonic()
            whom = disturb(launchers, chance, slow=args.slow)
            codes = wait(launchers)
        during, verdict = phase_at(at), judged(codes)
        if verdict != "finished before":
            with job(args.step) as launchers:
                codes = wait(launchers)
            verdict += ", same result" if codes == [0, 0] and results() == expected else ", LOST"
        wrong += "LOST" in verdict or "APART" in verdict
        counts[during, verdict] += 1
        print(f"{number}: {whom} during {during}: {verdict}", file=sys.stderr, flush=True)
    print("| signal during | what became of it | moments |")
    print("|---|---|---|")
    for (during, verdict), number in sorted(counts.items()):
        print(f"| {during} | {verdict} | {number} |")
    print(machine())
    return 1 if wrong else 0


@contextlib.contextmanager
def job(step_s: float):  # type: ignore[no-untyped-def]
    """Start both launchers; nothing of them is left afterwards."""
    endpoint = f"127.0.0.1:{free_ports(2)}"
    common = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
        "--rdzv-endpoint",
        endpoint,
        "--run-dir",
        "run",
    ]
    command = [sys.executable, "-m", "undaunted", "run", *common]
    env = {**os.environ, "UNDAUNTED_TOKEN": "a token of the benchmark", "OMP_NUM_THREADS": "1"}
    started = []
    try:
        for node, is_host in (("a", 1), ("b", 0)):
            own = ["--node-name", node, "--rdzv-conf", f"is_host={is_host}"]
            line = [*command, *own, str(PROGRAM), str(step_s)]
            started.append(
                subprocess.Popen(
                    line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
        yield started
    finally:
        for launcher in started:
            launcher.kill()
            launcher.wait()


def wait(launchers: list[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for the ends of both; return their codes, `HANGS` for one that does not end."""
    deadline, codes = time.monotonic() + LIMIT_S, []
    for launcher in launchers:
        left = max(0.1, deadline - time.monotonic())
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(left)
        codes.append(HANGS if launcher.returncode is None else launcher.returncode)
    return codes


def wait_for_phase(name: str, chance: random.Random) -> None:
    """Until some moment in a phase of some rank, any of those that have the name."""
    rank, occurrence = chance.randrange(RANKS), chance.choice([1, 1, 2, 3])
    deadline = time.monotonic() + LIMIT_S
    while len([1 for line in lines(rank) if line[2] == name]) < occurrence:
        if time.monotonic() > deadline or said(rank, "result-"):
            return
        time.sleep(0.005)
    time.sleep(chance.uniform(0.0, PHASE_S))


def disturb(launchers: list[subprocess.Popen[bytes]], chance: random.Random, *, slow: bool) -> str:
    """Send the signal to a launcher, or to a rank if there is one by now; return to whom."""
    agents = [int(children(launcher.pid)[0]) for launcher in launchers if children(launcher.pid)]
    if slow and agents:
        os.kill(agents[-1], signal.SIGSTOP)
    said = {rank: lines(rank) for rank in range(RANKS) if lines(rank)}
    rank = chance.choice([*said, None])
    if not said:  # one that has not joined leaves, and the other one would wait for it
        told = [launcher.pid for launcher in launchers]
    else:
        told = [chance.choice(launchers).pid if rank is None else int(said[rank][-1][1])]
    for pid in told:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    if slow and agents:
        time.sleep(1.0)
        os.kill(agents[-1], signal.SIGCONT)
    return "a launcher" if rank is None else f"rank {rank}"


def children(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def judged(codes: list[int]) -> str:
    """What became of a job that was told to stop; the launchers ended with these codes."""
    stops = [" ".join(said(rank, "stop-")) for rank in range(RANKS)]
    if not any(stops) and all(results()):
        return "finished before"
    if not any(stops) and {*codes} <= {
        75,
        -signal.SIGTERM,
    }:  # a launcher that just began ends by it
        return "stopped before the loop"
    if codes != [75, 75]:
        return f"APART: codes {codes}"
    return "stopped together" if len(set(stops)) == 1 else f"APART: {stops}"


def phase_at(moment: float) -> str:
    """In which phase the rank was that said something last before the moment."""
    before = [line for rank in range(RANKS) for line in lines(rank) if float(line[0]) < moment]
    phase = max(before, default=("", "", "start"), key=lambda line: line[0])[2]
    return phase.partition("-")[0]


def lines(rank: int) -> list[list[str]]:
    path = Path(f"phases-{rank}")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def said(rank: int, prefix: str) -> list[str]:
    return [line[2] for line in lines(rank) if line[2].startswith(prefix)]


def results() -> list[str]:
    return [said(rank, "result-")[-1] if said(rank, "result-") else "" for rank in range(RANKS)]


def clear() -> None:
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.exit(main())
