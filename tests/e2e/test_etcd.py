"""Jobs whose leader is elected in etcd, with three real members."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.etcd.server import Cluster, Etcd, Way, secured_cluster, skip_without_etcd
from tests.e2e.launcher import DEADLINE_S, Launcher, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from undaunted.coordinator.etcd.store import Access

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# A rank lives until a file appears that says how it ends: its exit code.
RANK = """
    import os, pathlib, threading
    e = os.environ
    number, rank = e["TORCHELASTIC_RESTART_COUNT"], e["RANK"]
    print(f"rank {rank} of {e['WORLD_SIZE']} in round {number}, pid {os.getpid()}", flush=True)
    files = [pathlib.Path("end"), pathlib.Path(f"end-{number}-{rank}")]
    while not (found := [each for each in files if each.exists()]):
        threading.Event().wait(0.02)
    raise SystemExit(int(found[0].read_text() or 0))
"""
_NUMBERS = itertools.count(1)


class Job:
    """Launchers on this host, one per node."""

    def __init__(
        self, cwd: Path, url: str, nnodes: str, restarts: int = 3, access: Access | None = None
    ) -> None:
        self.cwd = cwd
        self._env = {"UNDAUNTED_TOKEN": "a token of the tests"}
        if access is not None:
            self._env["ETCDCTL_USER"] = f"{access.user}:{access.password}"
            files = {"CACERT": access.ca, "CERT": access.cert, "KEY": access.key}
            self._env |= {f"ETCDCTL_{name}": path for name, path in files.items()}
        self.nodes: dict[str, Launcher] = {}
        self.id = f"job{next(_NUMBERS)}"
        (cwd / "train.py").write_text(textwrap.dedent(RANK))
        self._options = ["--nnodes", nnodes, "--max-restarts", str(restarts)]
        self._url = url

    def start(
        self,
        names: str,
        conf: str = "lease=2,join_timeout=60",
        *,
        url: str = "",
        script: str = "train.py",
    ) -> None:
        """Start launchers; ``url``: their way to etcd, if it is another one."""
        for name in names:
            options = ["--rdzv-id", self.id, "--worker-start", "fresh", *self._options]
            options += ["--node-name", name, "--run-dir", f"run-{name}", "--rdzv-conf", conf]
            options += ["--coordinator-store", url or self._url]
            self.nodes[name] = Launcher([*options, script], self.cwd, self._env)

    def __getitem__(self, name: str) -> Launcher:
        return self.nodes[name]

    def runs(self, number: int, names: str) -> list[int]:
        """Wait for the ranks of a round on these nodes; return their pids."""
        line = rf"rank \d of \d in round {number}, pid (\d+)$"
        return [int(self[name].wait_for(line)[1]) for name in names]

    def kill(self, names: str) -> None:
        for name in names:
            os.kill(self[name].agent_pid, signal.SIGKILL)
        for name in names:
            assert self[name].finish() == 1
            self.nodes.pop(name).close()

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    skip_without_etcd()
    members = Cluster(tmp_path_factory.mktemp("etcd"))
    yield members
    members.kill()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with contextlib.ExitStack() as opened:

        def make(url: str, nnodes: str, restarts: int = 3, access: Access | None = None) -> Job:
            job = Job(tmp_path, url, nnodes, restarts, access)
            opened.callback(job.close)
            return job

        yield make


def has_ended(etcd: Cluster | Etcd, job: Job, *access: str) -> None:
    """All that etcd has of the job, for a while, is that it has ended."""
    of_job = f"/undaunted/{job.id}/"
    assert etcd.control(*access, "get", "--prefix", of_job, "--keys-only").split() == [
        f"{of_job}ledger"
    ]
    text = etcd.control(*access, "get", f"{of_job}ledger", "--print-value-only")
    assert json.loads(text)["run_id"] == ""


def ledger(etcd: Cluster | Etcd, job: Job) -> dict[str, object]:
    """What etcd knows of the job."""
    text = etcd.control("get", f"/undaunted/{job.id}/ledger", "--print-value-only")
    found: dict[str, object] = json.loads(text)
    return found


def led_by_a(cluster: Cluster, made: Job, *, url: str = "") -> Job:
    """Round 0 runs on a and b, with c as a spare, and a leads; ``url``: of a's way to etcd."""
    made.start("a", url=url)
    cluster.members[0].wait_for(f"/undaunted/{made.id}/leader")
    made.start("b")
    made.runs(0, "ab")
    made.start("c")
    made["c"].wait_for("spare nodes: c")
    assert ledger(cluster, made)["leader"] == "a"
    return made


def test_a_crash_and_a_good_end(cluster: Cluster, job: Callable[..., Job]) -> None:
    both = job(cluster.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    both.end(3, of="0-1")
    both.runs(1, "ab")
    assert ledger(cluster, both)["restarts_used"] == 1
    both.end()
    both.ends("ab")
    has_ended(cluster, both)


def test_the_leader_is_killed_and_the_leading_member_of_etcd_freezes(
    cluster: Cluster, job: Callable[..., Job]
) -> None:
    three = led_by_a(cluster, job(cluster.url, "2:3"))
    member = cluster.leader()
    member.pause()
    try:
        three.kill("a")
        three.runs(1, "bc")
        three.end()
        three.ends("bc")
    finally:
        member.resume()
    found = "this node takes over the coordination of the job from node a"
    assert sum(found in three[name].text for name in "bc") == 1


@pytest.mark.slow
def test_users_certificates_and_the_leader_lost_with_a_member(
    tmp_path: Path, job: Callable[..., Job]
) -> None:
    """From start to end with TLS and passwords; the leading member and a's launcher are killed."""
    skip_without_etcd()
    (tmp_path / "etcd").mkdir()
    secured = secured_cluster(tmp_path / "etcd")
    try:
        three = job(secured.cluster.url, "2:3", access=secured.access)
        three.start("a", conf="lease=2,join_timeout=60,last_call_timeout=60")
        three["a"].wait_for("1 of 2 nodes are here")
        three.start("bc")
        (rank,) = three.runs(0, "a")
        member = secured.leader()
        member.kill()
        three.kill("a")
        assert not wait_until_gone([rank], 10.0)
        for name in "bc":
            three[name].wait_for(r"rank \d of 2 in round 1, pid")
        found = "this node takes over the coordination of the job from node a"
        assert sum(found in three[name].text for name in "bc") == 1
        three.end()
        three.ends("bc")
        left = next(each for each in secured.cluster.members if each is not member)
        has_ended(left, three, *secured.admin)
    finally:
        secured.cluster.kill()


def test_the_leader_leaves_in_order(cluster: Cluster, job: Callable[..., Job]) -> None:
    three = led_by_a(cluster, job(cluster.url, "2:3"))
    three["a"].process.send_signal(signal.SIGTERM)
    three.runs(1, "bc")
    three.ends("a", code=75)
    three.end()
    three.ends("bc")
    assert "round 2" not in three["b"].text
    has_ended(cluster, three)


def test_etcd_is_away_for_longer_than_a_lease(cluster: Cluster, job: Callable[..., Job]) -> None:
    """With a spare and no restart: what runs goes on. A crash meanwhile waits for etcd."""
    three = led_by_a(cluster, job(cluster.url, "2:3", restarts=0))
    cluster.pause()
    three["a"].wait_for("etcd does not hear this launcher")
    cluster.resume()
    three["a"].wait_for("etcd answers again")
    three.end()
    three.ends("abc")
    assert not [name for name in "abc" if "round 1" in three[name].text]
    has_ended(cluster, three)


def test_a_crash_while_etcd_is_away(cluster: Cluster, job: Callable[..., Job]) -> None:
    both = job(cluster.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    cluster.pause()
    both.end(3, of="0-1")
    for name in "ab":
        both[name].wait_for("first cause in round 0")
    cluster.resume()
    both.runs(1, "ab")
    both.end()
    both.ends("ab")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Etcd]:
    skip_without_etcd()
    server = Etcd(tmp_path)
    yield server
    server.kill()


def test_an_etcd_that_has_lost_everything(alone: Etcd, job: Callable[..., Job]) -> None:
    both = job(alone.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    alone.kill()
    alone.forget()
    alone.start()
    for name in "ab":
        both[name].wait_for_next("following the coordinator on")
    both.end(3, of="0-1")
    both.runs(1, "ab")
    assert (ledger(alone, both)["round"], ledger(alone, both)["restarts_used"]) == (1, 1)
    both.end()
    both.ends("ab")


def test_there_is_no_etcd(job: Callable[..., Job]) -> None:
    both = job("etcd://127.0.0.1:1", "2")
    both.start("a", conf="timeout=2")
    began = time.monotonic()
    both.ends("a", code=1)
    assert time.monotonic() - began < DEADLINE_S / 2
    assert "etcd at 127.0.0.1:1: Connection refused" in both["a"].text
    assert "no coordinator for 2 s (etcd://127.0.0.1:1)" in both["a"].text


def test_a_leader_that_stands_still(cluster: Cluster, job: Callable[..., Job]) -> None:
    """Only its agent does: the other half of its launcher ends the ranks, and it comes back."""
    three = job(cluster.url, "2:3")
    led_by_a(cluster, three)
    (rank,) = three.runs(0, "a")
    agent = three["a"].agent_pid
    os.kill(agent, signal.SIGSTOP)
    try:
        three.runs(1, "bc")
        assert not wait_until_gone([rank], 0.0)
    finally:
        os.kill(agent, signal.SIGCONT)
    three["a"].wait_for("following the coordinator on")
    three.end()
    three.ends("abc")
    assert "in round 1" not in three["a"].text


def test_the_leader_alone_cannot_reach_etcd(cluster: Cluster, job: Callable[..., Job]) -> None:
    """It goes on until a round waits for etcd; then another launcher, which can, leads."""
    way = Way(cluster.members[0])
    try:
        three = led_by_a(cluster, job(cluster.url, "2:3"), url=way.url)
        way.block()
        three["a"].wait_for("etcd does not hear this launcher")
        three.end(3, of="0-0")
        three.runs(1, "ab")
        assert ledger(cluster, three)["leader"] in {"b", "c"}
        way.open()
        three.end()
        three.ends("abc")
    finally:
        way.close()


def test_a_job_that_was_killed_begins_anew(cluster: Cluster, job: Callable[..., Job]) -> None:
    both = job(cluster.url, "2", restarts=0)
    both.start("ab")
    both.runs(0, "ab")
    both.kill("ab")
    both.start("ab")
    both.runs(0, "ab")
    both.end()
    both.ends("ab")


def test_another_job_of_the_same_id(cluster: Cluster, job: Callable[..., Job]) -> None:
    both = job(cluster.url, "2")
    both.start("ab")
    both.runs(0, "ab")
    (both.cwd / "other.py").write_text("raise SystemExit")
    both.start("x", script="other.py")
    both.ends("x", code=1)
    assert "--rdzv-id" in both["x"].text
    both.end()
    both.ends("ab")
