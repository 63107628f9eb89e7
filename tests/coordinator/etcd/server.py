"""A real etcd for a test: of its own, on free ports, in a directory of its own."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.coordinator.wire.certificates import make_certificate
from tests.ports import free_ports
from undaunted.coordinator.etcd.store import Access

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0
_READY = ("serving insecure client requests", "serving client requests", "serving client traffic")


class Etcd:
    """One member; `kill` and `start` are a restart, since its data stays.

    Args:
        directory: for its data.
        options: more of its command line; with a certificate the scheme is https.
        port: of its clients; the next one is for other members. 0 = a free one.
        cluster: members as the command line has them, "" = this one alone.
    """

    def __init__(self, directory: Path, *options: str, port: int = 0, cluster: str = "") -> None:
        self._directory, self._options, self._cluster = directory, options, cluster
        self.port = port or free_ports(2)
        self._peer_port = self.port + 1
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        if not cluster:
            self.start()

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it; it is not ready before a majority of its cluster is."""
        scheme = "https" if "--cert-file" in self._options else "http"
        here, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        name = f"e{self.port}"
        self._process = subprocess.Popen(
            [
                *("etcd", "--data-dir", str(self._directory / name), "--name", name),
                *("--listen-client-urls", here, "--advertise-client-urls", here),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", self._cluster or f"{name}={peer}"),
                *("--heartbeat-interval", "50", "--election-timeout", "500"),
                *self._options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        args = (self._process, self._lines)
        self._reader = threading.Thread(target=_read, args=args, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        seen: list[str] = []
        while not seen or not any(text in seen[-1] for text in _READY):
            seen.append(self._lines.get(timeout=max(0.0, deadline - time.monotonic())))
            assert seen[-1], "etcd has ended:\n" + "".join(seen)

    def kill(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def forget(self) -> None:
        """Lose all data; not while it runs."""
        shutil.rmtree(self._directory / f"e{self.port}")

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def control(self, *words: str) -> str:
        """Run etcdctl; return what it prints. ``words`` may hold its options, as for TLS."""
        scheme = "https" if "--cert-file" in self._options else "http"
        done = subprocess.run(
            ["etcdctl", "--endpoints", f"{scheme}://127.0.0.1:{self.port}", *words],
            env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait_for(self, key: str) -> None:
        """Wait until a key has been made."""
        watch = subprocess.Popen(
            [
                *("timeout", f"{DEADLINE_S:g}", "etcdctl"),
                *("--endpoints", f"127.0.0.1:{self.port}", "watch", key, "--rev", "1"),
            ],
            env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline() == "PUT\n", f"nobody has made {key}"
        finally:
            watch.terminate()
            watch.wait(DEADLINE_S)
            watch.stdout.close()


class Cluster:
    """Three members; ``options`` are of each of them."""

    def __init__(self, directory: Path, *options: str) -> None:
        first = free_ports(6)
        ports = [first, first + 2, first + 4]
        cluster = ",".join(f"e{port}=http://127.0.0.1:{port + 1}" for port in ports)
        self.members = [Etcd(directory, *options, port=each, cluster=cluster) for each in ports]
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_ready()

    @property
    def url(self) -> str:
        return "etcd://" + ",".join(f"127.0.0.1:{member.port}" for member in self.members)

    def leader(self, *options: str) -> Etcd:
        """The member that leads the others; ``options``: of etcdctl."""
        for member in self.members:
            words = member.control(*options, "endpoint", "status", "-w", "fields").splitlines()
            found = dict(line.split(" : ", 1) for line in words if " : " in line)
            if found['"MemberID"'] == found['"Leader"']:
                return member
        raise AssertionError("no member leads")

    def control(self, *words: str) -> str:
        return self.members[0].control(*words)

    def pause(self) -> None:
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        for member in self.members:
            member.resume()

    def kill(self) -> None:
        for member in self.members:
            member.resume()
            member.kill()


class Secured(NamedTuple):
    """Three members that want certificates of clients, users and passwords."""

    cluster: Cluster
    access: Access
    admin: tuple[str, ...]  # options of etcdctl

    def control(self, *words: str) -> str:
        return self.cluster.control(*self.admin, *words)

    def leader(self) -> Etcd:
        return self.cluster.leader(*self.admin)


def secured_cluster(directory: Path) -> Secured:
    """Start them, with a user that may use the keys of jobs and nothing else."""
    server = make_certificate(directory, "server", "IP:127.0.0.1")
    own = make_certificate(directory, "own", "DNS:own")
    cluster = Cluster(
        directory,
        *("--cert-file", str(server.cert), "--key-file", str(server.key)),
        *("--client-cert-auth", "--trusted-ca-file", str(own.cert)),
    )
    tls = ("--cacert", str(server.cert), "--cert", str(own.cert), "--key", str(own.key))
    for words in (
        "role add jobs",
        "role grant-permission jobs --prefix=true readwrite /undaunted/",
        "user add root:root",
        "user grant-role root root",
        "user add me:secret",
        "user grant-role me jobs",
        "auth enable",
    ):
        cluster.control(*tls, *words.split())
    access = Access("me", "secret", str(server.cert), str(own.cert), str(own.key))
    return Secured(cluster, access, (*tls, "--user", "root:root"))


_FORWARDER = """
import asyncio, sys

async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
    finally:
        writer.close()

async def forward(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)

async def main():
    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class Way:
    """A way to an etcd that can be blocked: what is sent there waits."""

    def __init__(self, etcd: Etcd) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORWARDER, str(etcd.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"etcd://127.0.0.1:{int(self._process.stdout.readline())}"

    def block(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def open(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def skip_without_etcd() -> None:
    for program, package in (("etcd", "etcd-server"), ("etcdctl", "etcd-client")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not there (Debian: {package}; make system installs it)")


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.put(line)
    lines.put("")
