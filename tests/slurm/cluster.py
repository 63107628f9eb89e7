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

from tests.e2e.launcher import wait_until_gone
from tests.netns.hosts import Hosts, child_of
from tests.netns.hosts import why_not as why_no_hosts
from undaunted.base.inotify import Inotify
from undaunted.base.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "deploy" / "slurm"
DEADLINE_S = 90.0
STEPS_END_S = 20.0
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
NODE = "NodeName={} NodeAddr={} CPUs={} RealMemory=1000"
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
        site: settings that are not as in `SETTINGS`: of slurm.conf, of all nodes (CPUs), of all
            partitions (GraceTime) and of cgroup.conf (Constrain...).
        nodes: their names.
    """

    def __init__(
        self,
        directory: Path,
        shared: Sequence[Path] = (),
        site: Mapping[str, object] | None = None,
        nodes: Sequence[str] = NODES,
    ) -> None:
        self.directory, self._names = directory, nodes
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SLURM_CONF": str(directory / "slurm.conf"),
            "HOME": str(directory),
        }
        (directory / "hosts").touch()  # what stands there is mounted first
        site = dict(site or {})
        self._cgroup: Path | None = None
        limits = [name for name in site if name.startswith("Constrain")]
        lines = [f"{name}={site.pop(name)}\n" for name in limits]
        if limits and (ours := memory_cgroup()):
            self._cgroup = ours / directory.name
            lines.append(f"CgroupMountpoint={directory / 'cgroup'}\n")
        (directory / "cgroup.conf").write_text("".join(lines))
        self.hosts = Hosts([*self._names, LOGIN], boot(directory, shared, self._cgroup))
        try:
            self._start(site)
        except BaseException:
            self.close()
            raise

    def _start(self, site: dict[str, object]) -> None:
        here, hosts = self.directory, self.hosts
        names = "".join(f"{hosts.address(name)} {name}\n" for name in hosts.names)
        (here / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + names)
        self._configure(site)
        for name in ("state", *(f"spool-{node}" for node in self._names)):
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
        for node in self._names:
            self._nodes[node] = self._start_on(node, "slurmd", "-D", "-N", node)
        self.run("srun", "--nodes", len(self._names), "true")  # waits until the nodes are there

    def _configure(self, site: dict[str, object]) -> None:
        here, grace, cpus = self.directory, site.pop("GraceTime", 0), site.pop("CPUs", 4)
        text = SETTINGS.format(dir=here, login=LOGIN, address=self.hosts.address(LOGIN))
        settings: dict[str, object] = dict(line.split("=", 1) for line in text.splitlines())
        config = [f"{name}={value}\n" for name, value in (settings | site).items()]
        config += [NODE.format(node, self.hosts.address(node), cpus) + "\n" for node in self._names]
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
        entered = subprocess.Popen(
            self._on(on, command, cwd),
            env={**self._environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            text, _ = entered.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            kill(entered)
            raise
        finally:
            entered.stdout.close()
        assert entered.returncode == 0, f"{command}: {entered.returncode}\n{text}\n{self.log()}"
        return text

    def processes(self, host: str) -> dict[int, str]:
        """What runs on a host but its own processes: command lines by their numbers here."""
        namespace = Path(f"/proc/{self.hosts.pid(host)}/ns/pid").readlink()
        found = {}
        for proc in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (proc / "ns/pid").readlink() == namespace:
                    words = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(proc.name)] = words
        own = ("sh -c ip ", "cat ", "slurmd ", "slurmctld ", "munged ")
        return {pid: line for pid, line in found.items() if line and not line.startswith(own)}

    def left_on_nodes(self) -> list[str]:
        """What jobs that have ended have left on the nodes: processes, shared memory, files."""
        left = []
        for node in self._names:
            if not self.hosts.is_on(node):
                continue
            pids = self.processes(node)
            left += [f"{node}: {pids[pid]}" for pid in wait_until_gone([*pids], STEPS_END_S)]
            root = Path(f"/proc/{self.hosts.pid(node)}/root")
            files = [*(root / "dev/shm").iterdir(), *(root / "tmp").glob("*undaunted*")]
            # A launcher that was killed leaves its files of errors to the next one.
            theirs = [path for path in files if not path.name.startswith("undaunted-errors-")]
            left += [f"{node}: {path.relative_to(root)}" for path in theirs]
        return left

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
        if self._cgroup is not None:
            for folder, _, _ in os.walk(self._cgroup, topdown=False):
                Path(folder).rmdir()


def boot(directory: Path, shared: Sequence[Path], cgroup: Path | None) -> str:
    """What each machine does first: names of the others, /dev/shm, /tmp, cgroups of its own."""
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
    words.append("umount /mnt")
    if cgroup is not None:
        # Slurm makes its cgroups below slurm_NODE, and wants to see some files of the root.
        own, there = shlex.quote(str(cgroup)), shlex.quote(str(directory / "cgroup"))
        words += [f"mkdir -p {there} {own}/$0", f"mount -t tmpfs tmpfs {there}"]
        words += [f"mkdir -p {there}/memory/slurm_$0", f"cd {there}/memory"]
        words.append("touch tasks cgroup.procs memory.memsw.limit_in_bytes")
        words += [f"mount --bind {own}/$0/{name} {name}" for name in ("tasks", "cgroup.procs")]
        words.append(f"mount --bind {own}/$0 slurm_$0")
    return " && ".join(words)


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
        self.output = cwd / f"job-{len(list(cwd.glob('job-*.out')))}.out"
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
            with contextlib.suppress(AssertionError):  # it has just ended
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
    return why_no_hosts()


def memory_cgroup() -> Path | None:
    """The cgroup of this process that limits memory, None = there is none that Slurm can use."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        ours = Path(f"/sys/fs/cgroup/memory{path}")
        if kinds == "memory" and os.access(ours / "memory.limit_in_bytes", os.W_OK):
            return ours
    return None
