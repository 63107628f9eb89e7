"""Jobs that are started over SSH: a real sshd on each host, and a person at a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import DEADLINE_S
from tests.netns.hosts import NET, Hosts, why_not
from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SSHD, SSH = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"), shutil.which("ssh")


def why_no_ssh() -> str:
    if SSHD is None or SSH is None or shutil.which("ssh-keygen") is None:
        return "OpenSSH is not installed; scripts/system-packages.sh installs it"
    return why_not()


pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(why_no_ssh()), reason=why_no_ssh()),
]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOGIN = "login"
SCRIPT = """
    import os, pathlib, signal, sys, threading
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    about = "rank {RANK}/{WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}".format(**os.environ)
    os.write(1, f"{about} begins\\n".encode())
    while not pathlib.Path("finish").exists():
        if told.wait(0.02):
            os.write(1, f"{about} saved\\n".encode())
            sys.exit(1)
    os.write(1, f"{about} ends\\n".encode())
"""


class Net:
    """Hosts ``a``, ``b`` and so on, where sshd lets ``login`` in, and one job of these.

    They share a directory, as the script asks for. Who comes to the host ``bare`` does not find
    undaunted.
    """

    def __init__(self, names: str, folder: Path, bare: str = "") -> None:
        self.folder, self.run_dir = folder, folder / "undaunted-runs" / "job"
        private = folder / "ssh"
        private.mkdir(mode=0o700)
        for key in ("host", "user"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", private / key]
            subprocess.run(keygen, check=True)
        for name in [*names, LOGIN]:
            shutil.copy(private / "user.pub", private / f"may-enter-{name}")
            path = "/usr/bin:/bin" if name == bare else f"{BIN}:{os.environ['PATH']}"
            variables = f'"PATH={path}" "PYTHONPATH={ROOT / "src"}:{ROOT}" OMP_NUM_THREADS=1'
            (private / f"sshd-{name}").write_text(
                f"HostKey {private}/host\nAuthorizedKeysFile {private}/may-enter-{name}\n"
                f"PidFile /run/sshd.pid\nSetEnv {variables}\nStrictModes no\nUsePAM no\n"
                "PermitRootLogin yes\nLogLevel ERROR\n"
            )
        addresses = {name: f"{NET}.{i}" for i, name in enumerate([*names, LOGIN], 1)}
        (private / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in addresses.items())
        )
        (private / "known").write_text(f"* {(private / 'host.pub').read_text()}")
        (private / "config").write_text(
            f"IdentityFile {private}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {private}/known\nStrictHostKeyChecking yes\n"
            + "".join(f"Host {name}\nHostName {at}\n" for name, at in addresses.items())
        )
        (folder / "bin").mkdir()
        # What ssh is told first counts.
        soon = "-o ServerAliveInterval=2 -o ServerAliveCountMax=1 -o ConnectTimeout=3"
        (folder / "bin" / "ssh").write_text(
            f'#!/bin/sh\nexec {SSH} -F {private}/config {soon} "$@"\n'
        )
        (folder / "bin" / "ssh").chmod(0o755)
        (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
        here = shlex.quote(str(private))
        boot = [
            f"mount --bind {here}/hosts /etc/hosts",
            "mount -t tmpfs none /run",
            "mkdir /run/sshd",
            f'{SSHD} -f {here}/sshd-"$0"',
            "timeout 20 sh -c 'until [ -s /run/sshd.pid ]; do sleep 0.02; done'",
        ]
        self.hosts = Hosts([*names, LOGIN], " && ".join(boot))

    def refuse(self, name: str) -> None:
        """Have the key be none of those that may enter."""
        (self.folder / "ssh" / f"may-enter-{name}").write_text("")

    def finish(self) -> None:
        """Let all ranks end."""
        (self.folder / "finish").touch()

    def sessions(self) -> list[int]:
        """What sshd has started for those who have come in."""
        found = []
        for name in self.hosts.names:
            if not self.hosts.is_on(name):
                continue
            below = process.descendants(self.hosts.pid(name))
            named = [pid for pid in below if comm(pid) == "sshd"]
            found += named[1:]  # the first one listens
        return found

    def launchers(self) -> list[int]:
        """All that lives of the job."""
        return [
            pid
            for name in self.hosts.names
            if self.hosts.is_on(name)
            for pid in process.descendants(self.hosts.pid(name))
            if b"undaunted" in command(pid)
        ]

    def output(self, name: str) -> str:
        """What the launcher of a host has printed."""
        return (self.run_dir / f"out-{name}").read_text()

    def ended(self) -> dict[str, str]:
        """The outcome of each launcher that has ended, by its node."""
        found = {}
        for path in self.run_dir.glob("journal-*.jsonl"):
            for event in map(json.loads, path.read_text().splitlines()):
                if event["event"] == "job_ended":
                    found[event["node"]] = event["outcome"]
        return found

    def close(self) -> None:
        self.hosts.close()


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Terminal:
    """``examples/deploy/ssh/train.sh`` at a terminal of the host ``login``."""

    def __init__(self, net: Net, hosts: str, **env: str) -> None:
        self._outer, inner = pty.openpty()
        pid = str(net.hosts.pid(LOGIN))
        enter = ("nsenter", "--target", pid, "--net", "--uts", "--", "setsid", "--ctty")
        path = [net.folder / "bin", BIN, os.environ["PATH"]]
        variables = {"PATH": ":".join(map(str, path)), "HOSTS": hosts, "JOB": "job", **env}
        script = ROOT / "examples" / "deploy" / "ssh" / "train.sh"
        conf = ("--rdzv-conf", "lease=2,join_timeout=40")
        options = ("--nproc-per-node", "1", "--worker-start", "fresh", "--max-restarts", "3")
        self.process = subprocess.Popen(
            [*enter, script, *options, *conf, "train.py"],
            cwd=net.folder,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **variables},
            stdin=inner,
            stdout=inner,
            stderr=inner,
        )
        os.close(inner)
        self.text = ""

    def wait_for(self, *patterns: str) -> None:
        """Wait until all of them are to be seen."""
        deadline = time.monotonic() + DEADLINE_S
        while missing := [one for one in patterns if not re.search(one, self.text, re.MULTILINE)]:
            assert self._read(deadline), f"the script has ended without {missing}:\n{self.text}"

    def press_ctrl_c(self) -> None:
        os.write(self._outer, b"\x03")

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self._outer)
        self._outer = -1
        self.process.wait(DEADLINE_S)

    def finish(self) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + DEADLINE_S
        while self._read(deadline):
            pass
        return self.process.wait(DEADLINE_S)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._outer], [], [], max(0, deadline - time.monotonic()))
        assert ready, f"nothing within the deadline:\n{self.text}"
        try:
            read = os.read(self._outer, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        self.text += read.decode(errors="replace").replace("\r\n", "\n")
        return bool(read)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        if self._outer >= 0:
            os.close(self._outer)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Callable[..., Net]]:
    """``net("ab")`` makes these hosts."""
    with contextlib.ExitStack() as opened:

        def make(names: str, **kind: str) -> Net:
            made = Net(names, tmp_path, **kind)
            opened.callback(made.close)
            return made

        yield make


@pytest.fixture
def start(net: Callable[..., Net]) -> Iterator[Callable[..., Terminal]]:
    """``start(net, "a b", NODES="1")`` runs the script."""
    with contextlib.ExitStack() as opened:

        def run(net: Net, hosts: str, **env: str) -> Terminal:
            terminal = Terminal(net, hosts, **env)
            opened.callback(terminal.close)
            return terminal

        yield run


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.05)


BEGIN = (r"^rank 0/2 in round 0 begins$", r"^rank 1/2 in round 0 begins$")


def test_connections_are_cut(net: Callable[..., Net], start: Callable[..., Terminal]) -> None:
    """The job goes on; what is printed meanwhile is shown after all, once."""
    hosts = net("ab")
    terminal = start(hosts, "a b")
    terminal.wait_for(*BEGIN)
    cut = hosts.sessions()
    assert len(cut) >= 2
    for pid in cut:
        with contextlib.suppress(ProcessLookupError):  # one may end with another
            os.kill(pid, signal.SIGKILL)
    until(lambda: set(hosts.sessions()) - set(cut), "the script does not connect again")
    hosts.hosts.unplug(LOGIN)
    hosts.finish()
    until(lambda: len(hosts.ended()) == 2, "the job does not end by itself")
    hosts.hosts.plug_in(LOGIN)
    assert terminal.finish() == 0, terminal.text
    for name in "ab":
        assert "in round 0 ends\n" in hosts.output(name)
    for rank in range(2):
        assert terminal.text.count(f"rank {rank}/2 in round 0 ends\n") == 1, terminal.text
        assert terminal.text.count(f"rank {rank}/2 in round 0 begins\n") == 1, terminal.text


def test_the_terminal_is_closed(net: Callable[..., Net], start: Callable[..., Terminal]) -> None:
    hosts = net("ab")
    terminal = start(hosts, "a b")
    terminal.wait_for(*BEGIN)
    terminal.hang_up()
    hosts.finish()
    until(lambda: len(hosts.ended()) == 2, "the job does not end by itself")
    assert set(hosts.ended().values()) == {"finished"}
    for name in "ab":
        assert "in round 0 ends\n" in hosts.output(name)
    until(lambda: not hosts.launchers(), "launchers are left")


def test_ctrl_c_lets_ranks_save(net: Callable[..., Net], start: Callable[..., Terminal]) -> None:
    hosts = net("ab")
    terminal = start(hosts, "a b")
    terminal.wait_for(*BEGIN)
    terminal.press_ctrl_c()
    assert terminal.finish() == 75, terminal.text
    for rank in range(2):
        assert terminal.text.count(f"rank {rank}/2 in round 0 saved\n") == 1, terminal.text
    assert hosts.launchers() == []


def test_hosts_that_cannot_be_used_are_done_without(
    net: Callable[..., Net], start: Callable[..., Terminal]
) -> None:
    """One refuses the key, one has no power, and one has no undaunted."""
    hosts = net("abcd", bare="d")
    hosts.refuse("b")
    hosts.hosts.power_off("c")
    hosts.finish()
    terminal = start(hosts, "a b c d", NODES="1")
    assert terminal.finish() == 0, terminal.text
    assert "rank 0/1 in round 0 ends" in terminal.text
    for name in "bcd":
        assert re.search(f"^{name}: no launcher was started", terminal.text, re.MULTILINE)


def test_a_host_loses_its_power(net: Callable[..., Net], start: Callable[..., Terminal]) -> None:
    """A spare takes its place, and the script does not wait for it when the job has ended."""
    hosts = net("abc")
    terminal = start(hosts, "a b c", NODES="2")
    terminal.wait_for(*BEGIN)
    hosts.hosts.power_off("b")
    terminal.wait_for("^rank 0/2 in round 1 begins$", "^rank 1/2 in round 1 begins$")
    hosts.finish()
    assert terminal.finish() == 0, terminal.text
