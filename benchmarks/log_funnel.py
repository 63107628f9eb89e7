"""What the log server takes: senders in one process flood it over loopback.

    python benchmarks/log_funnel.py [--senders 1 4] [--megabytes 400] [--leaves 0 1]

Shown are MB/s from the first line to the last one that is written, and of the server that writes
its CPU time per 100 MB and its peak memory. Lines have 100 bytes.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from undaunted.coordinator.wire.handshake import Terms
from undaunted.fault_tolerance.funnel.config import FunnelConfig
from undaunted.fault_tolerance.funnel.program import Task
from undaunted.fault_tolerance.funnel.sender import Sender
from undaunted.fault_tolerance.funnel.sent_file import SentFile
from undaunted.fault_tolerance.nodes_config import Nodes

PIECE = (b"x" * 99 + b"\n") * 2500
GRACE_S = 60.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--senders", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--leaves", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    os.environ["UNDAUNTED_TOKEN"] = "a token of a benchmark"
    for leaves in options.leaves:
        for senders in options.senders:
            print(measure(senders, options.megabytes, leaves), flush=True)


def measure(senders: int, megabytes: int, leaves: int) -> str:
    """Return a line about one run."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # no disk
        config = FunnelConfig(root=directory, port=free_port(), leaves=leaves, grace_s=GRACE_S)
        nodes = Nodes(
            min_nodes=senders,
            max_nodes=senders,
            endpoints=["127.0.0.1:1"],
            is_host=True,
            address="127.0.0.1",
        )
        servers = [start(config, nodes, level) for level in range(leaves + 1)]
        ready = [sender(config, nodes, number) for number in range(senders)]
        for each in ready:
            each.put("warm", b"\n", 1.0)
            while each.stalled_s():  # until the server is there
                time.sleep(0.01)
        began = time.monotonic()
        pieces = megabytes * 1_000_000 // len(PIECE) // senders
        threads = [threading.Thread(target=flood, args=(each, pieces)) for each in ready]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
        cpu_s, peak_mib = used(servers[-1].pid)
        for server in servers:
            server.terminate()
            server.wait()
        size = Path(directory, "log").stat().st_size
        assert size == pieces * senders * len(PIECE), "lines are missing"
        rate, cost = size / 1e6 / seconds, cpu_s / (size / 1e8)
        return (
            f"{senders} senders, {leaves} leaves: {rate:.0f} MB/s, "
            f"{cost:.2f} s CPU per 100 MB, peak {peak_mib:.0f} MiB"
        )


def start(config: FunnelConfig, nodes: Nodes, level: int) -> subprocess.Popen[bytes]:
    """Start one level of the server."""
    task = msgspec.json.encode(Task(run_id="job", nodes=nodes, config=config, level=level))
    program = [sys.executable, "-m", "undaunted.fault_tolerance.funnel.program"]
    return subprocess.Popen([*program, task.decode()])


def sender(config: FunnelConfig, nodes: Nodes, number: int) -> Sender:
    """Start a launcher's side."""
    name = f"n{number}"
    terms = Terms("job", "1", node=name)
    one = Sender(nodes, terms, config.entrances("127.0.0.1", name), lambda _: None)
    one.begin()
    return one


def flood(one: Sender, pieces: int) -> None:
    """Send as fast as it goes, until all is written."""
    file = SentFile(one, "log", lambda: 0)
    for _ in range(pieces):
        file.write([PIECE])
        while file.blocked:
            file.flush()
    one.close(GRACE_S)


def used(pid: int) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MiB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in status if line.startswith("VmHWM")).split()[1]
    return ticks / os.sysconf("SC_CLK_TCK"), int(peak) / 1024


def free_port() -> int:
    """Return a port after which some are probably free as well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return min(port, 65000)


if __name__ == "__main__":
    main()
