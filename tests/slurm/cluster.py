"""A Slurm cluster of its own for a test: all of its daemons, on this machine, with free ports.

Nothing of it is outside of one directory, and nothing of the machine's own Slurm is used. The names
of its nodes mean this machine, which /etc/hosts says in a mount namespace of each slurmd.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.launcher import wait_until_gone
from tests.ports import free_ports
from undaunted.base.inotify import Inotify
from undaunted.base.process import wait_readable

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = Path(__file__).parents[2] / "examples" / "deploy" / "slurm"
DEADLINE_S = 90.0
STEPS_END_S = 10.0
NODES = ("n1", "n2", "n3")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "salloc", "unshare")

CONFIG = """\
ClusterName=undaunted
FirstJobId={port}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
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
TaskProlog={dir}/prolog
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=30
SlurmdTimeout=5
SlurmctldTimeout=10
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={} NodeHostname={} NodeAddr=127.0.0.1 Port={} CPUs=4 RealMemory=1000"
# All nodes are this machine, so that each of them would be the host of the coordinator.
PROLOG = """\
#!/bin/sh
[ "$SLURM_NODEID" = 0 ] || echo export PET_RDZV_CONF=is_host=0
"""
NAMED = 'mount --bind "$0" /etc/hosts && exec "$@"'


class Cluster:
    """A running cluster.

    Args:
        directory: for its files; short, as it holds a socket.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._open = contextlib.ExitStack()
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SLURM_CONF": str(directory / "slurm.conf"),
            "HOME": str(directory),
        }
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        here = self.directory
        names = Path("/etc/hosts").read_text() + f"\n127.0.0.1 {' '.join(NODES)}\n"
        (here / "hosts").write_text(names)
        host, port = socket.gethostname(), free_ports(1 + len(NODES))
        nodes = "\n".join(NODE.format(node, host, port + i) for i, node in enumerate(NODES, 1))
        config = CONFIG.format(dir=here, host=host, port=port, nodes=nodes)
        (here / "slurm.conf").write_text(config)
        (here / "prolog").write_text(PROLOG)
        (here / "prolog").chmod(0o700)
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
        self._open.callback(end, int((here / "munge.pid").read_text()))
        self._controller = self.start("slurmctld", "-D", "-c")
        for node in NODES:
            enter = ("unshare", "--mount", "sh", "-c", NAMED, here / "hosts")
            self._nodes[node] = self.start(*enter, "slurmd", "-D", "-N", node)
        self._open.callback(self._end_steps)
        self.run("srun", "--nodes", len(NODES), "true")  # waits until the nodes are there

    def _end_steps(self) -> None:
        """Nobody else ends what a step has left: without daemons it looks for them for long."""
        pids = []
        for proc in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = f"SLURM_CONF={self.directory}/".encode() in (proc / "environ").read_bytes()
                if ours and (proc / "cmdline").read_bytes().startswith(b"slurmstepd"):
                    pids.append(int(proc.name))
        for pid in wait_until_gone(pids, STEPS_END_S):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill_slurmd(self, node: str) -> None:
        """Kill the daemon of a node; what it has started lives on."""
        self._nodes[node].kill()
        self._nodes[node].wait(DEADLINE_S)

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
        self._controller.kill()
        self._controller.wait(DEADLINE_S)

    def start_slurmctld(self) -> None:
        """Start the controller again, with what it has saved; it answers after a while."""
        self._controller = self.start("slurmctld", "-D")

    @property
    def environment(self) -> dict[str, str]:
        """What programs need to find this cluster."""
        return self._environment

    def start(
        self, *command: object, cwd: Path | None = None, stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """Start a command that ends with the cluster at the latest."""
        daemon = subprocess.Popen(
            [str(word) for word in command],
            env=self._environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )

        def end() -> None:
            daemon.kill()  # told in order, the controller looks for lost nodes first
            daemon.wait(DEADLINE_S)

        self._open.callback(end)
        return daemon

    def run(self, *command: object, cwd: Path | None = None, **env: str) -> str:
        """Run a command of Slurm; return what it prints."""
        done = subprocess.run(
            [str(word) for word in command],
            env={**self._environment, **env},
            cwd=cwd or self.directory,
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
        self._open.close()


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


def end(pid: int) -> None:
    """End a process and wait until it has ended."""
    os.kill(pid, signal.SIGTERM)
    left = wait_until_gone([pid], DEADLINE_S)
    assert not left, f"process {left} has not ended"


@functools.cache
def why_not() -> str:
    """Why there can be no cluster here, "" = there can."""
    if os.geteuid() != 0:
        return "a Slurm cluster of one's own needs root"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed; scripts/system-packages.sh installs Slurm"
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"],
        capture_output=True,
        check=False,
    )
    return "" if tried.returncode == 0 else "mount namespaces are not permitted here"
