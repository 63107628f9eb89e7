"""Launchers and disks that do not belong to a job of several nodes: one line, and nothing more."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.e2e.launcher import DEADLINE_S, Launcher, nodes_of_a_job
from undaunted.coordinator.protocol import MAJOR, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

RANK = """
    import os, pathlib, threading
    about = "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n"
    os.write(1, about.format(**os.environ).encode())
    crash = pathlib.Path("crash-{TORCHELASTIC_RESTART_COUNT}".format(**os.environ))
    while not pathlib.Path("finish").exists():
        assert not crash.exists()
        threading.Event().wait(0.02)
"""
# Another version of undaunted, as far as launchers can tell.
OTHER_VERSION = f"""
    import undaunted.coordinator.protocol
    undaunted.coordinator.protocol.MAJOR = {MAJOR + 1}
"""
CONF = "lease=2,timeout=20,join_timeout=20,last_call_timeout=60"


def ends(tmp_path: Path, *launchers: Launcher) -> None:
    """Let all ranks end, and these launchers with them."""
    (tmp_path / "finish").touch()
    assert [each.finish() for each in launchers] == [0] * len(launchers)


def starts(launcher: Launcher) -> list[str]:
    """The rounds whose ranks have begun here."""
    return re.findall(r"rank \d of \d in round (\d)", launcher.text)


def ledger(where: Path) -> Path:
    """Return the file of the job's state, once it is written."""
    until = time.monotonic() + DEADLINE_S
    while not (found := [*where.glob("coordinator-*.json")]):
        assert time.monotonic() < until, [*where.iterdir()]
        threading.Event().wait(0.05)
    (path,) = found
    return path


def test_another_token(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("this is not the token of the job")
    (tmp_path / "other").chmod(0o600)
    with nodes_of_a_job(tmp_path, RANK, "--nnodes", "2") as start:
        one, two = start("one", f"{CONF},is_host=1"), start("two", f"{CONF},is_host=0")
        one.wait_for("in round 0")
        stranger = start("three", f"{CONF},is_host=0", "--coordinator-token-file", "other")
        assert stranger.finish() == 1
        assert "node three has another token" in stranger.seen[-1]
        assert starts(stranger) == []
        ends(tmp_path, one, two)
        assert (starts(one), starts(two)) == (["0"], ["0"])


@pytest.mark.parametrize("new", ["one", "three"])
def test_another_version(tmp_path: Path, new: str) -> None:
    """A node that comes has it, or the coordinator: who comes is refused, and says both."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(textwrap.dedent(OTHER_VERSION))
    path = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    of = {"one": path if new == "one" else {}, "three": path if new == "three" else {}}
    with nodes_of_a_job(tmp_path, RANK, "--nnodes", "2") as start:
        one = start("one", f"{CONF},is_host=1", **of["one"])
        two = start("two", f"{CONF},is_host=0", **of["one"])
        one.wait_for("in round 0")
        other = start("three", f"{CONF},is_host=0", **of["three"])
        assert other.finish() == 1
        assert "node three runs undaunted" in other.seen[-1]
        assert {f"(protocol {MAJOR})", f"(protocol {MAJOR + 1})"} <= set(
            re.findall(r"\(protocol \d+\)", other.seen[-1])
        )
        assert starts(other) == []
        ends(tmp_path, one, two)
        assert (starts(one), starts(two)) == (["0"], ["0"])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def of_another_job(path: Path) -> None:
    path.write_text(path.read_text().replace('"run_id":"job"', '"run_id":"another"'))


@pytest.mark.parametrize("command", ["run", "coordinator"])
@pytest.mark.parametrize("damage", [cut, of_another_job])
def test_the_file_of_the_coordinator(
    tmp_path: Path, command: str, damage: Callable[[Path], None]
) -> None:
    """One that is cut ends the start; one of another job is not gone on from."""
    options = ("--nnodes", "2", "--rdzv-id", "job")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        host = "is_host=0" if command == "coordinator" else "is_host=1"
        one = start("one", f"{CONF},{host}")
        given = one.process.args
        endpoint = given[given.index("--rdzv-endpoint") + 1]

        def coordinate() -> Launcher:
            words = [*options, "--rdzv-endpoint", endpoint, "--run-dir", "run"]
            token = {"UNDAUNTED_TOKEN": "a token of the tests"}
            return Launcher(words, tmp_path, token, command="coordinator")

        first = coordinate() if command == "coordinator" else one
        two = start("two", f"{CONF},is_host=0")
        launchers = [first, two] if first is one else [first, one, two]
        one.wait_for("in round 0")
        ledger(tmp_path / "run")
        # Whoever leads goes first: an agent whose launcher is killed would end the job in order.
        os.kill(first.process.pid if first is not one else one.agent_pid, signal.SIGKILL)
        for each in launchers:
            each.process.kill()
        for each in launchers:
            each.close()
        damage(ledger(tmp_path / "run"))
        again = coordinate() if command == "coordinator" else start("one", f"{CONF},{host}")
        try:
            if damage is cut:
                assert again.finish() == 1
                assert "is no ledger" in again.seen[-1]
                assert str(ledger(tmp_path / "run")) in again.seen[-1]
                return
            names = ("one", "two") if command == "coordinator" else ("two",)
            others = [start(name, f"{CONF},is_host=0") for name in names]
            trains = others if command == "coordinator" else [again, *others]
            assert len([each.wait_for("in round 0") for each in trains]) == 2
            again.wait_for("the state of job another")
            ends(tmp_path, again, *[each for each in trains if each is not again])
        finally:
            again.close()


def committee(where: Path) -> dict[str, str]:
    """Incarnations of those that keep the state of the job, by node, as a leader has noted it."""
    known = msgspec.json.decode(ledger(where).read_bytes(), type=Ledger)
    return {each.node: each.incarnation for each in known.committee}


def test_a_member_whose_disk_has_come_back_old(tmp_path: Path) -> None:
    """It led the first round, as its file says: it neither leads by that nor votes as before."""
    options = ("--nnodes", "2:3", "--max-restarts", "4")
    own = {name: ("--run-dir", f"run-{name}") for name in "abc"}
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        a, b, c = (start(name, f"{CONF},is_host={int(name == 'a')}", *own[name]) for name in own)
        b.wait_for("in round 0")
        old, before = ledger(tmp_path / "run-a").read_bytes(), committee(tmp_path / "run-a")
        os.kill(a.agent_pid, signal.SIGKILL)
        assert a.finish() == 1
        c.wait_for("in round 1")
        leads = c.wait_for("following the coordinator on ([bc])")[1]
        leader, other = (b, c) if leads == "b" else (c, b)
        ledger(tmp_path / "run-a").write_bytes(old)
        back = start("a", f"{CONF},is_host=1", *own["a"])
        deadline = time.monotonic() + DEADLINE_S
        while committee(tmp_path / f"run-{leads}").get("a", before["a"]) == before["a"]:
            assert time.monotonic() < deadline, [each.text for each in (b, c, back)]
            threading.Event().wait(0.05)
        (tmp_path / "crash-1").touch()  # no round begins before that committee holds its table
        for each in (leader, other):
            each.wait_for("in round 2")
        os.kill(leader.agent_pid, signal.SIGKILL)
        assert leader.finish() == 1
        for each in (other, back):
            each.wait_for("in round 3")
        ends(tmp_path, other, back)
        assert (starts(other)[-2:], starts(back)) == (["2", "3"], ["3"])
