"""How long a job takes to run again when its coordinator is lost: `python -m benchmarks.take_over`.

Four launchers on this machine, three train (`--nnodes 3:4`); the one that coordinates is killed
with all its processes, stands still with them (SIGSTOP), or is told to stop. From there to the
first line of all ranks of the next round. `--against` measures the sources of another checkout in
turns with these. With `--etcd`, three members of etcd that are started for it decide who leads.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.__main__ import machine
from benchmarks.table import cell
from tests.coordinator.etcd.server import Cluster
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NODES, TRAIN = "abcd", 3
DEADLINE_S = 60.0
TOKEN = "a token of the benchmark"
HERE = str(Path(__file__).resolve().parents[1] / "src")
# Each rank says when it has come to its first line, in a file of its own.
SCRIPT = """
import os, threading, time
name = "{TORCHELASTIC_RESTART_COUNT}-{RANK}".format(**os.environ)
with open("new-" + name, "w") as file:
    file.write(str(time.monotonic_ns()))
os.rename("new-" + name, "first-" + name)
threading.Event().wait()
"""


@dataclass(frozen=True)
class Kind:
    """One way to lose the coordinator."""

    title: str
    signal: int
    lease_s: float = 5.0


KINDS = (
    Kind("killed, with all its processes", signal.SIGKILL),
    Kind("told to stop", signal.SIGTERM),
    Kind("stands still, lease of 5 s", signal.SIGSTOP),
    Kind("stands still, lease of 1 s", signal.SIGSTOP, 1.0),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.take_over", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10, help="of each kind (10)")
    parser.add_argument("--against", action="append", default=[], help="src of another checkout")
    parser.add_argument("--kinds", default="0123", help="numbers of the kinds (0123)")
    parser.add_argument("--etcd", action="store_true", help="etcd decides who leads")
    args = parser.parse_args()
    with contextlib.ExitStack() as opened:
        cluster = opened.enter_context(_cluster()) if args.etcd else None
        return compare(args, cluster)


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.kill()


def compare(args: argparse.Namespace, cluster: Cluster | None) -> int:
    sources = [*args.against, HERE]
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.jobs):
        for kind in (KINDS[int(number)] for number in args.kinds):
            for source in sources:
                found = seconds.setdefault((kind.title, source), [])
                with tempfile.TemporaryDirectory() as folder:
                    found.append(measure(kind, Path(folder), source, cluster))
                print(f"{kind.title} | {source} | {found[-1]:.2f}", file=sys.stderr, flush=True)
    print(show(seconds, sources))
    print(machine())
    return 0


def measure(kind: Kind, folder: Path, source: str, cluster: Cluster | None) -> float:
    """Return how many seconds it took."""
    (folder / "train.py").write_text(SCRIPT)
    port = free_ports(1)
    where = ["--rdzv-endpoint", f"127.0.0.1:{port}"]
    if cluster is not None:
        where = ["--coordinator-store", cluster.url]
    launchers = [_start(NODES[0], folder, source, where, kind.lease_s)]
    try:
        if cluster is not None:
            cluster.members[0].wait_for(f"/undaunted/{folder.name}/leader")
        launchers += [_start(name, folder, source, where, kind.lease_s) for name in NODES[1:]]
        _first_lines(folder, 0)
        time.sleep(kind.lease_s / 3 * (time.monotonic_ns() % 1000) / 1000)  # any moment of a lease
        tree = _tree(launchers[0].pid)
        began_ns = time.monotonic_ns()
        for pid in tree if kind.signal != signal.SIGTERM else tree[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, kind.signal)
        return (max(_first_lines(folder, 1)) - began_ns) / 1e9
    finally:
        for launcher in launchers:
            for pid in _tree(launcher.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            launcher.wait(DEADLINE_S)


def _start(
    name: str, folder: Path, source: str, where: list[str], lease_s: float
) -> subprocess.Popen[bytes]:
    conf = f"lease={lease_s:g},last_call_timeout=30"
    if "--rdzv-endpoint" in where:
        conf += f",is_host={int(name == NODES[0])}"
    options = ["--nnodes", f"{TRAIN}:{len(NODES)}", *where]
    options += ["--rdzv-id", folder.name, "--node-name", name, "--rdzv-conf", conf]
    options += ["--max-restarts", "5", "--nproc-per-node", "1", "--run-dir", "run"]
    with (folder / f"out-{name}").open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "undaunted.cli.main", "run", *options, "train.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": source, "UNDAUNTED_TOKEN": TOKEN},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def _first_lines(folder: Path, after: int) -> list[int]:
    """Wait for all ranks of a round, of number ``after`` or later; return when each was there."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        rounds: dict[int, list[int]] = {}
        for path in folder.glob("first-*"):
            number = int(path.name.split("-")[1])
            if number >= after:
                rounds.setdefault(number, []).append(int(path.read_text()))
        for times in rounds.values():
            if len(times) == TRAIN:
                return times
        time.sleep(0.02)
    texts = "\n".join(path.read_text() for path in sorted(folder.glob("out-*")))
    raise TimeoutError(f"round {after} does not run:\n{texts}")


def _tree(pid: int) -> list[int]:
    """A process and all that come from it."""
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def show(seconds: dict[tuple[str, str], list[float]], sources: Sequence[str]) -> str:
    """Return a markdown table."""
    names = ["this code" if source == HERE else source for source in sources]
    lines = [f"| the coordinator | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for title in dict.fromkeys(title for title, _ in seconds):
        cells = [cell(seconds[title, source]) for source in sources]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
