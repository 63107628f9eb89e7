"""Jobs whose leader is elected in etcd, with a real one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.etcd.server import Etcd, Way, skip_without_etcd
from tests.e2e.launcher import DEADLINE_S, Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# A rank lives until a file appears that says how it ends: its exit code.
RANK = """
    import os, pathlib, threading
    e = os.environ
    number, rank = e["TORCHELASTIC_RESTART_COUNT"], e["RANK"]
    print(f"rank {rank} of {e['WORLD_SIZE']} in round {number}", flush=True)
    files = [pathlib.Path("end"), pathlib.Path(f"end-{number}-{rank}")]
    while not (found := [each for each in files if each.exists()]):
        threading.Event().wait(0.02)
    raise SystemExit(int(found[0].read_text() or 0))
"""


class Job:
    """Launchers on this host, one per node."""

    def __init__(self, cwd: Path, url: str, nnodes: str) -> None:
        self.cwd = cwd
        self.nodes: dict[str, Launcher] = {}
        (cwd / "train.py").write_text(textwrap.dedent(RANK))
        self._options = [
            *("--nnodes", nnodes, "--rdzv-id", "job", "--max-restarts", "3"),
            *("--worker-start", "fresh"),
        ]
        self._url = url

    def start(self, names: str, conf: str = "lease=2,join_timeout=60", *, url: str = "") -> None:
        """Start launchers; ``url``: their way to etcd, if it is another one."""
        for name in names:
            options = ["--node-name", name, "--run-dir", f"run-{name}", "--rdzv-conf", conf]
            options += ["--coordinator-store", url or self._url]
            env = {"UNDAUNTED_TOKEN": "a token of the tests"}
            args = [*self._options, *options, "train.py"]
            self.nodes[name] = Launcher(args, self.cwd, env)

    def __getitem__(self, name: str) -> Launcher:
        return self.nodes[name]

    def runs(self, number: int, names: str) -> None:
        for name in names:
            self[name].wait_for(rf"rank \d of \d in round {number}$")

    def end(self, code: int = 0, *, of: str = "") -> None:
        """Have all ranks end, or ``of`` one: ``ROUND-RANK``."""
        draft = self.cwd / "draft"
        draft.write_text(str(code))
        draft.rename(self.cwd / (f"end-{of}" if of else "end"))

    def ends(self, names: str, code: int = 0) -> None:
        codes = {name: self[name].finish() for name in names}
        texts = "\n".join(f"--- {name}\n{self[name].text}" for name in names)
        assert set(codes.values()) == {code}, (codes, texts)

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGINT)
        for node in self.nodes.values():
            node.close()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    skip_without_etcd()
    server = Etcd(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with contextlib.ExitStack() as opened:

        def make(url: str, nnodes: str) -> Job:
            job = Job(tmp_path, url, nnodes)
            opened.callback(job.close)
            return job

        yield make


def ledger(etcd: Etcd) -> dict[str, object]:
    """What etcd knows of the job."""
    text = etcd.control("get", "/undaunted/job/ledger", "--print-value-only")
    found: dict[str, object] = json.loads(text)
    return found


def test_a_crash_and_a_good_end(etcd: Etcd, job: Callable[..., Job]) -> None:
    both = job(etcd.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    both.end(3, of="0-1")
    both.runs(1, "ab")
    assert ledger(etcd)["restarts_used"] == 1
    both.end()
    both.ends("ab")
    assert etcd.control("get", "--prefix", "/undaunted") == ""


def test_the_leader_is_killed_in_the_middle_of_a_round(etcd: Etcd, job: Callable[..., Job]) -> None:
    three = led_by_a(etcd, job)
    os.kill(three["a"].agent_pid, signal.SIGKILL)
    assert three["a"].finish() == 1
    three.runs(1, "bc")
    three.end()
    three.ends("bc")
    found = "this node takes over the coordination of the job from node a"
    assert sum(found in three[name].text for name in "bc") == 1


def test_the_leader_leaves_in_order(etcd: Etcd, job: Callable[..., Job]) -> None:
    three = led_by_a(etcd, job)
    three["a"].process.send_signal(signal.SIGTERM)
    three.runs(1, "bc")
    three.ends("a", code=75)
    three.end()
    three.ends("bc")
    assert "round 2" not in three["b"].text
    assert etcd.control("get", "--prefix", "/undaunted") == ""


def led_by_a(etcd: Etcd, job: Callable[..., Job], way: str = "") -> Job:
    """Round 0 runs on a and b, with c as a spare, and a leads; ``way``: of a to etcd."""
    three = job(etcd.url, "2:3")
    three.start("a", url=way)
    etcd.wait_for("/undaunted/job/leader")
    three.start("bc")
    three.runs(0, "ab")
    assert ledger(etcd)["leader"] == "a"
    return three


def test_a_pause_longer_than_the_lease_does_not_disturb_the_ranks(
    etcd: Etcd, job: Callable[..., Job]
) -> None:
    both = job(etcd.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    leader = str(ledger(etcd)["leader"])
    etcd.pause()
    both[leader].wait_for("coordinates the job no more: etcd could not be reached for 2 s")
    etcd.resume()
    for name in "ab":
        both[name].wait_for_next("following the coordinator on")
    both.end()
    both.ends("ab")
    for name in "ab":
        assert "round 1" not in both[name].text


def test_a_restart_of_etcd(etcd: Etcd, job: Callable[..., Job]) -> None:
    both = job(etcd.url, "2")
    both.start("ab", conf="lease=30")
    both.runs(0, "ab")
    etcd.kill()
    leader = next(iter(both.nodes))
    both[leader].wait_for("etcd at 127.0.0.1:")
    both.end(3, of="0-1")
    etcd.start()
    both.runs(1, "ab")
    both.end()
    both.ends("ab")


def test_an_etcd_that_has_lost_everything(etcd: Etcd, job: Callable[..., Job]) -> None:
    both = job(etcd.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    etcd.kill()
    etcd.forget()
    etcd.start()
    for name in "ab":
        both[name].wait_for_next("following the coordinator on")
    both.end(3, of="0-1")
    both.runs(1, "ab")
    assert (ledger(etcd)["round"], ledger(etcd)["restarts_used"]) == (1, 1)
    both.end()
    both.ends("ab")


def test_there_is_no_etcd(job: Callable[..., Job]) -> None:
    both = job("etcd://127.0.0.1:1", "2")
    both.start("a", conf="timeout=2")
    began = time.monotonic()
    both.ends("a", code=1)
    assert time.monotonic() - began < DEADLINE_S / 2
    assert "etcd at 127.0.0.1:1: Connection refused; it is tried again" in both["a"].text
    assert "no coordinator for 2 s (etcd://127.0.0.1:1)" in both["a"].text


def test_a_leader_that_is_stopped_for_a_while(etcd: Etcd, job: Callable[..., Job]) -> None:
    three = led_by_a(etcd, job)
    agent = three["a"].agent_pid
    os.kill(agent, signal.SIGSTOP)
    three.runs(1, "bc")
    os.kill(agent, signal.SIGCONT)
    three["a"].wait_for("this node coordinates the job no more")
    three["a"].wait_for("following the coordinator on")
    three.end()
    three.ends("abc")
    assert "in round 1" not in three["a"].text


def test_the_leader_alone_cannot_reach_etcd(etcd: Etcd, job: Callable[..., Job]) -> None:
    way = Way(etcd)
    try:
        three = led_by_a(etcd, job, way.url)
        way.block()
        three["a"].wait_for("coordinates the job no more: etcd could not be reached for 2 s")
        for name in "ab":
            three[name].wait_for("following the coordinator on [bc]")
        three.end(3, of="0-0")
        three.runs(1, "ab")
        way.open()
        three.end()
        three.ends("abc")
    finally:
        way.close()
