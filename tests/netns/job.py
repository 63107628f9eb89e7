"""A job on several hosts: one launcher each, and what its ranks wrote down about themselves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import textwrap
import threading
import time
from typing import TYPE_CHECKING

from tests.e2e.launcher import DEADLINE_S, Launcher

if TYPE_CHECKING:
    from pathlib import Path

    from tests.netns.hosts import Hosts

LEASE_S = 2.0
TOKEN = "a token of the tests"

# Each rank keeps the times at which it lived in a file, until it is told to finish or to do more.
RANK = """
    import os, struct, sys, threading, time, pathlib
    e = os.environ
    me = "{TORCHELASTIC_RESTART_COUNT}-{RANK}-{GROUP_RANK}".format(**e)
    own, finish = open(f"ranks/{me}", "wb", buffering=0), pathlib.Path("finish")
    first = time.monotonic_ns()
    line = "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n"
    sys.stdout.write(line.format(**e))  # in one piece
    while not finish.exists():
        own.seek(0)
        own.write(struct.pack("<qq", first, time.monotonic_ns()))
        todo = pathlib.Path("todo-" + me)
        if todo.exists():
            exec(todo.read_text())
        threading.Event().wait(0.02)
"""


class Node(Launcher):
    """The launcher of one host."""

    def __init__(
        self, name: str, args: list[str], cwd: Path, enter: tuple[str, ...], command: str = "run"
    ) -> None:
        self.name = name
        super().__init__(args, cwd, {"UNDAUNTED_TOKEN": TOKEN}, enter=enter, command=command)

    def events(self, kind: str | None = None) -> list[dict[str, object]]:
        """Events of this node's journal."""
        text = (self.run_dir / f"journal-{self.name}.jsonl").read_text()
        found = [json.loads(line) for line in text.splitlines()]
        return [event for event in found if kind in (None, event["event"])]

    def begins(self, number: int) -> None:
        """Wait until ranks of round ``number`` run here."""
        self.wait_for(rf"rank \d+ of \d+ in round {number}\b")

    def lose_power(self) -> None:
        """End everything at once. Nobody hears of it if the cable has been pulled out before."""
        os.kill(self.agent_pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(10)


class Job:
    """A job whose coordinator is on the first host.

    Args:
        hosts: where.
        cwd: working directory of all launchers.
        nnodes: ``--nnodes``.
        options: more options, of all launchers.
        script: what the ranks run.
    """

    def __init__(
        self, hosts: Hosts, cwd: Path, nnodes: str, *options: str, script: str = RANK
    ) -> None:
        self.hosts, self.cwd = hosts, cwd
        self.nodes: dict[str, Node] = {}
        self._opened = contextlib.ExitStack()
        self._options = [
            *("--nnodes", nnodes, "--rdzv-id", "job", "--max-restarts", "5", "--run-dir", "run"),
            *("--rdzv-endpoint", f"{hosts.address(hosts.names[0])}:29400"),
            *("--worker-start", "fresh", "--rdzv-conf", f"lease={LEASE_S:g},join_timeout=40"),
            *options,
        ]
        (cwd / "ranks").mkdir()
        (cwd / "train.py").write_text(textwrap.dedent(script))

    def start(self, *names: str) -> None:
        """Start launchers on these hosts; no names: on all."""
        for name in names or self.hosts.names:
            self.start_as(name, name)

    def start_as(self, name: str, host: str, *options: str) -> Node:
        """Start the launcher of node ``name`` on a host, with options that override others."""
        args = [*self._options, "--node-name", name, *options, "train.py"]
        node = Node(name, args, self.cwd, self._enter(host))
        self._opened.callback(node.close)
        self.nodes[name] = node
        return node

    def coordinate(self) -> Node:
        """Start a coordinator on the first host, which trains nothing."""
        host = self.hosts.names[0]
        node = Node(host, self._options, self.cwd, self._enter(host), "coordinator")
        self._opened.callback(node.close)
        self.nodes[host] = node
        return node

    def _enter(self, host: str) -> tuple[str, ...]:
        # Who enters a whole machine is in its topmost directory.
        return (*self.hosts.enter(host), "env", "-C", str(self.cwd))

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def begins(self, number: int, *names: str) -> None:
        """Wait until ranks of a round run on these nodes."""
        for name in names:
            self[name].begins(number)

    def lasts(self, number: int, ranks: int, more_s: float = 0.1) -> None:
        """Wait until so many ranks of a round have gone on for ``more_s`` from now."""
        until_ns = time.monotonic_ns() + round(more_s * 1e9)
        deadline = time.monotonic() + more_s + DEADLINE_S
        while True:
            lives = self._lives(number)
            if len([last for _, last in lives if last >= until_ns]) == ranks:
                return
            assert time.monotonic() < deadline, (lives, self.text(*self.nodes))
            threading.Event().wait(0.05)

    def tell(self, number: int, rank: int, group_rank: int, code: str) -> None:
        """Have a rank run a line of Python."""
        draft = self.cwd / "draft"
        draft.write_text(code)
        draft.rename(self.cwd / f"todo-{number}-{rank}-{group_rank}")

    def finish(self) -> None:
        """Let all ranks end with 0."""
        (self.cwd / "finish").touch()

    def ends(self, *names: str, code: int = 0) -> None:
        """Wait for the end of these launchers."""
        codes = {name: self[name].finish() for name in names}
        assert set(codes.values()) == {code}, (codes, self.text(*names))

    def text(self, *names: str) -> str:
        return "\n".join(f"--- {name}\n{self[name].text}" for name in names)

    def one_world(self) -> None:
        """Check that no rank of a round lived at the same time as one of a later round."""
        numbers = {int(path.name.split("-")[0]) for path in (self.cwd / "ranks").iterdir()}
        over = 0
        for number in sorted(numbers):
            if not (times := self._lives(number)):
                continue
            firsts, lasts = zip(*times, strict=True)
            assert min(firsts) >= over, f"round {number} began while ranks of another one lived"
            over = max(over, *lasts)

    def _lives(self, number: int) -> list[tuple[int, int]]:
        """When each rank of a round lived, from and to."""
        found = [path.read_bytes() for path in (self.cwd / "ranks").glob(f"{number}-*")]
        return [struct.unpack("<qq", written) for written in found if len(written) == 16]

    def close(self) -> None:
        """End whatever still runs, all at once."""
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGINT)
        self._opened.close()
        for node in self.nodes.values():
            node.finish()  # takes in the lines that nobody has waited for
