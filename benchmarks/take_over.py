"""How long a job takes to run again when its coordinator is lost: `python -m benchmarks.take_over`.

Four launchers on this machine, three train (`--nnodes 3:4`); the one that coordinates is killed
with all its processes, stands still with them (SIGSTOP), or is told to stop. From there to the
first line of all ranks of the next round. `--against` measures the sources of another checkout in
turns with these. With `--etcd`, three members of etcd that are started for it decide who leads, and
the one that leads the others may be killed at the same moment.

With `--hosts`, five launchers are on hosts of their own (network namespaces behind a switch, which
need root; `--nnodes 3:5`), and it is the network of the one that coordinates that fails.
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
from tests.netns.hosts import Hosts, why_not
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NODES, TRAIN = "abcde", 3  # the last one with --hosts
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
    """One way to lose the coordinator.

    Attributes:
        title: in the table.
        signal: for its launcher, 0 = none.
        lease_s: of the job.
        cut: happens to the network before.
        member: the leading member of etcd is killed before.
        far: the network needs 300 ms there and back.
    """

    title: str
    signal: int = 0
    lease_s: float = 5.0
    cut: Callable[[Hosts], None] | None = None
    member: bool = False
    far: bool = False


KINDS = (
    Kind("killed, with all its processes", signal.SIGKILL),
    Kind("told to stop", signal.SIGTERM),
    Kind("stands still, lease of 5 s", signal.SIGSTOP),
    Kind("stands still, lease of 1 s", signal.SIGSTOP, 1.0),
)
ETCD_KINDS = (
    *KINDS,
    Kind("killed, and a member of etcd with it", signal.SIGKILL, member=True),
    Kind("stands still, and a member of etcd is killed", signal.SIGSTOP, member=True),
)
HOST_KINDS = (
    KINDS[0],
    KINDS[1],
    Kind("its host loses power", signal.SIGKILL, cut=lambda hosts: hosts.unplug("a")),
    Kind("the same, lease of 1 s", signal.SIGKILL, 1.0, lambda hosts: hosts.unplug("a")),
    Kind("its cable is pulled out", cut=lambda hosts: hosts.unplug("a")),
    Kind("its interface is shut down", cut=lambda hosts: hosts.link_down("a")),
    Kind("what it sends is lost", cut=lambda hosts: hosts.mute("a")),
    Kind("what is sent to it is lost", cut=lambda hosts: hosts.deafen("a")),
    Kind("it is cut off together with another one", cut=lambda hosts: hosts.divide("a", "b")),
    Kind("killed, 300 ms there and back", signal.SIGKILL, far=True),
    Kind(
        "its host loses power, 300 ms there and back",
        signal.SIGKILL,
        cut=lambda hosts: hosts.unplug("a"),
        far=True,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.take_over", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10, help="of each kind (10)")
    parser.add_argument("--against", action="append", default=[], help="src of another checkout")
    parser.add_argument("--kinds", help="numbers of the kinds, such as 0123 (all)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--etcd", action="store_true", help="etcd decides who leads")
    how.add_argument("--hosts", action="store_true", help="launchers on hosts of their own")
    args = parser.parse_args()
    if args.hosts and (reason := why_not()):
        parser.error(reason)
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
    kinds: tuple[Kind, ...] = KINDS
    if args.hosts or args.etcd:
        kinds = HOST_KINDS if args.hosts else ETCD_KINDS
    if args.kinds:
        kinds = tuple(kinds[int(number)] for number in args.kinds)
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(args.jobs):
        for kind in kinds:
            for source in sources:
                found = seconds.setdefault((kind.title, source), [])
                with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
                    job = Job(Path(folder), source, kind.lease_s, cluster)
                    if args.hosts:
                        job.hosts = Hosts(NODES)
                        opened.callback(job.hosts.close)
                        for name in NODES if kind.far else "":
                            job.hosts.worsen(name, delay_s=0.075)  # a packet takes two lines
                    found.append(measure(kind, job))
                print(f"{kind.title} | {source} | {found[-1]:.2f}", file=sys.stderr, flush=True)
    print(show(seconds, sources))
    print(machine())
    return 0


@dataclass
class Job:
    """Where a job runs, and how."""

    folder: Path
    source: str
    lease_s: float
    cluster: Cluster | None = None
    hosts: Hosts | None = None

    @property
    def nodes(self) -> str:
        return NODES if self.hosts else NODES[:-1]

    def start(self, name: str, where: list[str]) -> subprocess.Popen[bytes]:
        conf = f"lease={self.lease_s:g},last_call_timeout=30"
        if "--rdzv-endpoint" in where:
            conf += f",is_host={int(name == NODES[0])}"
        options = ["--nnodes", f"{TRAIN}:{len(self.nodes)}", *where]
        options += ["--rdzv-id", self.folder.name, "--node-name", name, "--rdzv-conf", conf]
        options += ["--max-restarts", "5", "--nproc-per-node", "1", "--run-dir", "run"]
        enter = self.hosts.enter(name) if self.hosts else ()
        with (self.folder / f"out-{name}").open("wb") as out:
            return subprocess.Popen(
                [*enter, sys.executable, "-m", "undaunted.cli.main", "run", *options, "train.py"],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": self.source, "UNDAUNTED_TOKEN": TOKEN},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    @property
    def where(self) -> list[str]:
        """Where it meets."""
        if self.cluster is not None:
            return ["--coordinator-store", self.cluster.url]
        host = self.hosts.address(NODES[0]) if self.hosts else "127.0.0.1"
        return ["--rdzv-endpoint", f"{host}:{free_ports(1)}"]


def measure(kind: Kind, job: Job) -> float:
    """Return how many seconds it took."""
    (job.folder / "train.py").write_text(SCRIPT)
    where = job.where
    launchers = [job.start(NODES[0], where)]
    again = contextlib.ExitStack()
    try:
        if job.cluster is not None:
            job.cluster.members[0].wait_for(f"/undaunted/{job.folder.name}/leader")
        launchers += [job.start(name, where) for name in job.nodes[1:]]
        _first_lines(job.folder, 0)
        time.sleep(kind.lease_s / 3 * (time.monotonic_ns() % 1000) / 1000)  # any moment of a lease
        tree = _tree(launchers[0].pid)
        member = job.cluster.leader() if job.cluster and kind.member else None
        began_ns = time.monotonic_ns()
        if member is not None:
            again.callback(member.start)
            member.kill()
        if kind.cut is not None:
            assert job.hosts is not None
            kind.cut(job.hosts)
        if kind.signal:
            for pid in tree if kind.signal != signal.SIGTERM else tree[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, kind.signal)
        return (max(_first_lines(job.folder, 1)) - began_ns) / 1e9
    finally:
        for launcher in launchers:
            for pid in _tree(launcher.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            launcher.wait(DEADLINE_S)
        again.close()


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
