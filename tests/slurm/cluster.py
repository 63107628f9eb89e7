"""A Slurm cluster of its own for a test: three nodes and a host where users log in.

Each of them is a whole machine of `tests.netns.hosts`: processes, mounts, a network and a name of
its own. They share all files but /tmp and /dev/shm, as the nodes of a site do. Nothing of the
cluster is outside of one directory, and nothing of the machine's own Slurm is used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.netns import hosts
from tests.netns.hosts import Hosts, child_of
from undaunted.base.inotify import Inotify
from undaunted.base.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "deploy" / "slurm"
DEADLINE_S = 90.0
NODES = ("n1", "n2", "n3")
LOGIN = "login"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "salloc")

SETTINGS = """\
ClusterName=undaunted
SlurmctldHost={login}({address})
SlurmctldPidFile={dir}/slurmctld.pid
SlurmctldLogFile={dir}/slurmctld.log
StateSaveLocation={dir}/state
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmdSpoolDir={dir}/spool-%n
SlurmdLogFile={dir}/slurmd-%n.log
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={dir}/munge.sock,cred_expire=5
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=30
SlurmdTimeout=5
SlurmctldTimeout=10
"""
NODE = "NodeName={} NodeAddr={} CPUs=4 RealMemory=1000"
# Jobs of "urgent" take the nodes of jobs of "requeue" and "cancel" away.
PARTITIONS = """\
PartitionName=debug Nodes=ALL Default=YES PreemptMode=OFF PriorityTier=5
PartitionName=requeue Nodes=ALL PreemptMode=REQUEUE GraceTime={grace} PriorityTier=1
PartitionName=cancel Nodes=ALL PreemptMode=CANCEL GraceTime={grace} PriorityTier=1
PartitionName=urgent Nodes=ALL PreemptMode=OFF PriorityTier=9
"""


class Cluster:
    """A running cluster.

    Args:
        directory: for its files; short, as it holds a socket.
        shared: directories that are to be seen on all of its machines, even if they are in /tmp.
        site: settings that are not as in `SETTINGS`: of slurm.conf, of all partitions (GraceTime)
            and of cgroup.conf (Constrain...).
    """

    def __init__(
        self, directory: Path, shared: Sequence[Path] = (), site: Mapping[str, object] | None = None
    ) -> None:
        self.directory = directory
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SLURM_CONF": str(directory / "slurm.conf"),
            "HOME": str(directory),
        }
        (directory / "hosts").touch()  # what stands there is mounted first
        self.hosts = Hosts([*NODES, LOGIN], boot(directory, shared))
        try:
            self._start(dict(site or {}))
        except BaseException:
            self.close()
            raise

    def _start(self, site: dict[str, object]) -> None:
        here, hosts = self.directory, self.hosts
        names = "".join(f"{hosts.address(name)} {name}\n" for name in hosts.names)
        (here / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + names)
        self._configure(site)
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (here / name).mkdir()
        (here / "munge.key").write_bytes(secrets.token_bytes(128))
        (here / "munge.key").chmod(0o600)
        files = [
            *("--key-file", here / "munge.key", "--pid-file", here / "munge.pid"),
            *("--log-file", here / "munge.log", "--seed-file", here / "munge.seed"),
        ]
        # It goes into the background, and is ready then.
        self.run("munged", "--socket", here / "munge.sock", *files, "--force")
        self._controller = self.start("slurmctld", "-D", "-c")
        for node in NODES:
            self._nodes[node] = self._start_on(node, "slurmd", "-D", "-N", node)
        self.run("srun", "--nodes", len(NODES), "true")  # waits until the nodes are there

    def _configure(self, site: dict[str, object]) -> None:
        here, grace = self.directory, site.pop("GraceTime", 0)
        cgroup = [name for name in site if name.startswith("Constrain")]
        lines = [f"{name}={site.pop(name)}\n" for name in cgroup]
        (here / "cgroup.conf").write_text("".join(lines))
        text = SETTINGS.format(dir=here, login=LOGIN, address=self.hosts.address(LOGIN))
        settings: dict[str, object] = dict(line.split("=", 1) for line in text.splitlines())
        # Cgroups, which all clusters of this machine share, are named by the job.
        settings["FirstJobId"] = self.hosts.pids[0] * 8
        config = [f"{name}={value}\n" for name, value in (settings | site).items()]
        config += [NODE.format(node, self.hosts.address(node)) + "\n" for node in NODES]
        config.append(PARTITIONS.format(grace=grace))
        (here / "slurm.conf").write_text("".join(config))

    def power_off(self, node: str) -> None:
        """Take a node its power: all that runs there is gone, and nobody is told."""
        self.hosts.power_off(node)
        self._nodes[node].wait(DEADLINE_S)

    def power_on(self, node: str) -> None:
        """Start a node again; Slurm takes it back when its daemon has said that it is there."""
        self.hosts.power_on(node)
        self._nodes[node] = self._start_on(node, "slurmd", "-D", "-N", node)

    def cut(self, *nodes: str) -> None:
        """Pull out the cables of nodes."""
        self.hosts.unplug(*nodes)

    def mend(self, *nodes: str) -> None:
        """Undo `cut`."""
        self.hosts.plug_in(*nodes)

    def kill_slurmd(self, node: str) -> None:
        """Kill the daemon of a node; what it has started lives on."""
        kill(self._nodes[node])

    def kill_slurmctld(self, job: str) -> None:
        """Kill the controller when it has saved what it knows; jobs run on.

        Args:
            job: any one; a change of it has the controller save its jobs.
        """
        saved, began = self.directory / "state" / "job_state", time.time_ns()
        watch = Inotify()
        try:
            watch.watch(str(saved.parent))
            self.run("scontrol", "update", f"JobId={job}", "Comment=seen")
            while not saved.exists() or saved.stat().st_mtime_ns < began:
                assert wait_readable(watch.fileno(), DEADLINE_S), "it does not save its jobs"
                watch.drain()
        finally:
            watch.close()
        kill(self._controller)

    def start_slurmctld(self) -> None:
        """Start the controller again, with what it has saved; it answers after a while."""
        self._controller = self.start("slurmctld", "-D")

    def programs(self) -> dict[str, str]:
        """The environment of a program on this machine that calls Slurm's: on the login host."""
        folder = self.directory / "bin"
        folder.mkdir()
        enter = shlex.join(self.hosts.enter(LOGIN))
        for name in ("sacct", "scontrol", "squeue"):
            (folder / name).write_text(f'#!/bin/sh\nexec {enter} {shutil.which(name)} "$@"\n')
            (folder / name).chmod(0o700)
        path = f"{folder}{os.pathsep}{self._environment['PATH']}"
        return {**self._environment, "PATH": path}

    def start(
        self, *command: object, cwd: Path | None = None, stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a command on the login host that ends with the cluster at the latest."""
        return self._start_on(LOGIN, *command, cwd=cwd, stderr=stderr)

    def _start_on(
        self,
        host: str,
        *command: object,
        cwd: Path | None = None,
        stderr: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        daemon = subprocess.Popen(
            self._on(host, command, cwd),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        self._daemons.append(daemon)
        return daemon

    def _on(self, host: str, command: Sequence[object], cwd: Path | None) -> list[str]:
        there = ("env", f"--chdir={cwd or self.directory}")
        return [*self.hosts.enter(host), *there, *(str(word) for word in command)]

    def run(self, *command: object, cwd: Path | None = None, on: str = LOGIN, **env: str) -> str:
        """Run a command on a host; return what it prints."""
        done = subprocess.run(
            self._on(on, command, cwd),
            env={**self._environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        """The last lines of the controller."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "slurmctld.log").read_text()[-2000:]
        return ""

    def submit(self, cwd: Path, *command: object, **env: str) -> Job:
        """Start ``sbatch`` with these arguments."""
        return Job(self, cwd, command, env)

    def close(self) -> None:
        self.hosts.close()
        for daemon in self._daemons:
            daemon.wait(DEADLINE_S)


def boot(directory: Path, shared: Sequence[Path]) -> str:
    """What each machine does first: names of the others, /dev/shm and /tmp of its own."""
    seen = [path for path in (directory, ROOT, Path(sys.prefix), *shared) if path.parts[1] == "tmp"]
    words = [f"mount --bind {shlex.quote(str(directory / 'hosts'))} /etc/hosts"]
    words += ["mount -t tmpfs -o mode=1777 tmpfs /dev/shm", "mount -t tmpfs tmpfs /mnt"]
    # What is to be seen in /tmp is kept in another place meanwhile.
    for i, path in enumerate(seen):
        words += [f"mkdir /mnt/{i}", f"mount --bind {shlex.quote(str(path))} /mnt/{i}"]
    words.append("mount -t tmpfs -o mode=1777 tmpfs /tmp")
    for i, path in enumerate(seen):
        there = shlex.quote(str(path))
        words += [f"mkdir -p {there}", f"mount --move /mnt/{i} {there}"]
    return " && ".join([*words, "umount /mnt"])


def kill(entered: subprocess.Popen[bytes]) -> None:
    """Kill what was started on a host."""
    os.kill(child_of(entered.pid), signal.SIGKILL)
    entered.wait(DEADLINE_S)


class Job:
    """A batch job, followed until it has ended."""

    def __init__(
        self, cluster: Cluster, cwd: Path, command: Sequence[object], env: dict[str, str]
    ) -> None:
        self.cluster, self.cwd = cluster, cwd
        self.output = cwd / "job.out"
        self.output.touch()
        options = ("--parsable", "--output", self.output)
        self.id = cluster.run("sbatch", *options, *command, cwd=cwd, **env).strip()
        self._ended = False
        self._tail = subprocess.Popen(
            ["tail", "--lines=+1", "--follow", str(self.output)], stdout=subprocess.PIPE
        )
        self.text = ""

    def wait_for(self, pattern: str, timeout_s: float = DEADLINE_S) -> re.Match[str]:
        """Wait until a line of the job's output matches."""
        assert self._tail.stdout is not None
        deadline = time.monotonic() + timeout_s
        while True:
            if found := re.search(pattern, self.text, re.MULTILINE):
                return found
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._tail.stdout], [], [], left)
            assert ready, f"no line matches {pattern!r}:\n{self.text}\n{self.cluster.log()}"
            self.text += os.read(self._tail.stdout.fileno(), 65536).decode(errors="replace")

    def end(self) -> int:
        """Wait for the end of the job; return its exit code, or the signal that ended it."""
        try:
            self._wait()
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"job {self.id} does not end:\n{self.output.read_text()}\n{self.cluster.log()}"
            ) from None
        self.text = self.output.read_text()
        return max(map(int, self.shown()["ExitCode"].split(":")))

    def shown(self) -> dict[str, str]:
        """What Slurm shows of the job."""
        text = self.cluster.run("scontrol", "show", "job", self.id)
        return dict(re.findall(r"(\w+)=(.*?)(?=$| \w+=)", text, re.MULTILINE))

    def _wait(self) -> None:
        # sbatch --wait looks less and less often.
        self.cluster.run("srun", f"--dependency=afterany:{self.id}", "true")
        self._ended = True

    def close(self) -> None:
        """Cancel the job if it is still there."""
        if not self._ended:
            self.cluster.run("scancel", "--signal=KILL", "--full", self.id)
            self.cluster.run("scancel", self.id)
            self._wait()
        self._tail.terminate()
        self._tail.wait(DEADLINE_S)
        assert self._tail.stdout is not None
        self._tail.stdout.close()


@functools.cache
def why_not() -> str:
    """Why there can be no cluster here, "" = there can."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed; scripts/system-packages.sh installs Slurm"
    return hosts.why_not()
