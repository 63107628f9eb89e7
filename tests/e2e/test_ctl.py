"""`undaunted ctl` asks real launchers, and tells them what to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.coordinator.wire.certificates import make_certificate
from tests.e2e.launcher import Launcher, launched, nodes_of_a_job
from undaunted.coordinator import protocol as p
from undaunted.coordinator.service.asking import answer_of
from undaunted.coordinator.service.questions import MOST_AT_ONCE
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.network import Sockets
from undaunted.fault_tolerance import control_socket

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

STEPS = """
    import os, pathlib, time, undaunted
    os.write(1, "rank {RANK} of {WORLD_SIZE} in round {TORCHELASTIC_RESTART_COUNT}\\n".format(
        **os.environ).encode())
    number = 0
    while not pathlib.Path("finish").exists():
        number += 1
        undaunted.step(number)
        time.sleep(0.02)
"""
# The last rank holds the interpreter's lock in C, where it waits on after a signal: the witness of
# a rank that comes there at once has no name yet, and the main thread takes what asks for stacks.
HELD = """
    import ctypes, os, time, undaunted
    undaunted.step(0)
    os.write(1, f"rank {os.environ['RANK']} is there\\n".encode())
    if os.environ["RANK"] == "2":
        ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
    number = 0
    while True:
        number += 1
        undaunted.step(number)
        time.sleep(0.02)
"""
SAVES = """
    import os, sys, time
    from undaunted.training import Session
    rank = os.environ["RANK"]
    def save(iteration):
        os.write(1, f"rank {rank} saves {iteration}\\n".encode())
    with Session(save=save) as session:
        for iteration in range(100_000):
            with session.step(iteration):
                time.sleep(0.01)
            if iteration == 5:
                os.write(1, f"rank {rank} steps\\n".encode())
            if session.should_stop(iteration):
                break
    sys.exit(session.exit_code)
"""


def ctl(job: Launcher, *words: str, code: int = 0) -> str:
    """Run `undaunted ctl`; return what it prints."""
    command = [sys.executable, "-m", "undaunted.cli.main", "ctl", str(job.run_dir), *words]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == code, told.stdout + told.stderr
    return told.stdout + told.stderr


def test_each_action_on_one_node(tmp_path: Path) -> None:
    with launched(tmp_path, STEPS, "--nproc-per-node", "2", "--node-name", "a") as job:
        for rank in range(2):
            job.wait_for(f"rank {rank} of 2 in round 0")
        (place,) = job.run_dir.glob("ctl-*")
        assert (place.name, place.stat().st_mode & 0o777) == ("ctl-a.sock", 0o600)

        status = json.loads(ctl(job, "status", "--json"))["a"]
        assert (status["state"], status["round"], status["job"]["role"]) == ("running", 0, "alone")
        assert [rank["rank"] for rank in status["ranks"]] == [0, 1]
        limits = {limit["name"]: limit for limit in status["limits"]}
        assert limits["heartbeat"]["source"] == "default"

        assert "limits of all ranks by undaunted ctl" in ctl(job, "limits", "--heartbeat", "10m")
        status = json.loads(ctl(job, "status", "--json"))["a"]
        limits = {limit["name"]: limit for limit in status["limits"]}
        assert limits["heartbeat"]["seconds"] == 600
        assert limits["heartbeat"]["source"].startswith("undaunted ctl")

        first = ctl(job, "stacks", "--rank", "1").split("(most recent call first)")[1]
        assert "train.py" in first, "our own threads come last"
        assert "no rank 7 here, but ranks 0-1" in ctl(job, "stacks", "--rank", "7", code=1)
        assert "ranks 0-1" in ctl(job, "flight"), "nothing is recorded without torch"
        assert "round 0 is stopped, another round follows" in ctl(job, "restart")
        job.wait_for(r"undaunted ctl \(pid \d+\) asked for a restart: round 0 is stopped")
        job.wait_for("rank 0 of 2 in round 1")
        assert "too few would be left" in ctl(job, "exclude", "a", code=1)
        assert "which has a" in ctl(job, "exclude", "nobody", code=1)
        assert "the job ends" in ctl(job, "stop")
        assert job.finish() == 93
        job.wait_for("no restart, 1 restart on request: undaunted ctl")
        command = [sys.executable, "-m", "undaunted.cli.main", "report", str(job.run_dir)]
        report = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert "restarts: 0 of 0, 1 more on request" in report.stdout
        assert not list(job.run_dir.glob("ctl-*")), "the socket is gone"
        assert "no launcher can be asked here" in ctl(job, "status", code=1)


def test_stacks_of_a_rank_that_holds_the_interpreters_lock(tmp_path: Path) -> None:
    with launched(tmp_path, HELD, "--nproc-per-node", "3") as job:
        for rank in range(3):
            job.wait_for(f"rank {rank} is there")
        seen = json.loads(ctl(job, "stacks", "--json"))
        (ranks,) = seen.values()
        assert all("train.py" in each["stacks"] for each in ranks)
        assert ranks[2]["frame"].startswith("<module> (train.py:6")
        assert not list(job.run_dir.glob("stacks-*")), "it is no evidence of a hang"
        assert "no answer from rank 2" in ctl(job, "flight")


# Rank 0 becomes another program, which keeps pid and page but no handler of signals.
EXECS = """
    import os, signal, undaunted
    undaunted.step(0)
    if os.environ["RANK"] == "0":
        os.execv("/bin/sh", ["sh", "-c", "echo another program is there; exec sleep 600"])
    while True:
        signal.pause()
"""


def test_looks_leave_a_rank_alone_that_has_become_another_program(tmp_path: Path) -> None:
    with launched(tmp_path, EXECS, "--nproc-per-node", "2") as job:
        job.wait_for("another program is there")
        (ranks,) = json.loads(ctl(job, "stacks", "--json")).values()
        assert not ranks[0]["stacks"]
        assert "exec" in ranks[0]["reason"]
        ctl(job, "flight")
        (status,) = json.loads(ctl(job, "status", "--json")).values()
        assert (status["state"], status["round"]) == ("running", 0)
        assert not job.events("verdict")


def test_a_round_that_does_not_stop_can_be_looked_at(tmp_path: Path) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('hears it'))\n"
    script = stubborn + "import time\nprint('is there', flush=True)\nwhile True: time.sleep(0.1)\n"
    with launched(tmp_path, script, "--workers-stop-timeout", "60") as job:
        job.wait_for("is there")
        ctl(job, "stop")
        job.wait_for("hears it")
        assert "stopping" in ctl(job, "status")
        assert "train.py:5" in ctl(job, "stacks")


def test_a_job_that_pauses_goes_on_or_ends(tmp_path: Path) -> None:
    often = ("--max-restarts", "9", "--restart-intensity", "9/1h")
    with launched(tmp_path, "raise SystemExit(3)", *often) as job:
        job.wait_for(r"waiting 2\.0 s")
        assert "pauses until" in ctl(job, "status")
        assert "the pause before it is over" in ctl(job, "restart")
        job.wait_for(r"waiting 4\.0 s")
        assert "the job ends" in ctl(job, "stop")
        assert job.finish() == 93


def test_ranks_save_before_they_stop(tmp_path: Path) -> None:
    with launched(tmp_path, SAVES, "--nproc-per-node", "2") as job:
        for rank in range(2):
            job.wait_for(f"rank {rank} steps")
        assert "another round follows" in ctl(job, "restart", "--after-checkpoint")
        first = [job.wait_for(rf"rank {rank} saves (\d+)")[1] for rank in range(2)]
        assert first[0] == first[1]
        for _ in range(2):
            job.wait_for_next("rank . steps")
        job.seen.clear()
        assert "asked for a stop" in ctl(job, "stop", "--after-checkpoint")
        last = [job.wait_for(rf"rank {rank} saves (\d+)")[1] for rank in range(2)]
        assert last[0] == last[1]
        assert job.finish() == 75


@pytest.mark.slow
def test_two_launchers_in_one_directory(tmp_path: Path) -> None:
    with nodes_of_a_job(tmp_path, STEPS, "--nnodes", "2:3", "--max-restarts", "1") as start:
        one = start("one", "is_host=1")
        two = start("two", "is_host=0")
        three = start("three", "is_host=0")
        one.wait_for("rank . of 2 in round 0")
        one.wait_for("spare nodes")
        status = json.loads(ctl(one, "status", "--json"))
        assert sorted(status) == ["one", "three", "two"]
        leader = status["one"]["job"]
        assert leader["role"] == "leader"
        (spare,) = leader["spares"]
        member = next(each["node"] for each in leader["members"] if each["node"] != "one")
        assert {each["lease_left_s"] is not None for each in leader["members"]} == {True}
        assert status[member]["job"]["epoch"] == leader["epoch"]
        assert status[member]["job"]["lease_left_s"] > 0
        seen = json.loads(ctl(one, "stacks", "--json", "--node", member))
        assert [each["rank"] for each in seen[member]] == [1]

        # A follower passes an order on; it is carried out everywhere.
        ctl(one, "limits", "--heartbeat", "7m", "--node", member)
        for node in ("one", member):
            asked = json.loads(ctl(one, "status", "--json", "--node", node))[node]
            (limit,) = (each for each in asked["limits"] if each["name"] == "heartbeat")
            assert limit["seconds"] == 420
        assert "another round follows" in ctl(one, "exclude", member, "--node", spare)
        by_name = {"one": one, "two": two, "three": three}
        assert by_name[member].finish() == 1
        by_name[spare].wait_for("rank 1 of 2 in round 1")
        asked = json.loads(ctl(one, "status", "--json", "--node", spare))[spare]
        limits = {each["name"]: each["seconds"] for each in asked["limits"]}
        assert limits["heartbeat"] == 420, "a node that comes later has the limit as well"
        (tmp_path / "dump").write_text(ctl(one, "dump"))
        assert replayed(tmp_path / "dump") == {"node", "follower", "leader", "policy"}
        ctl(one, "stop", "--node", spare)
        assert one.finish() == 93


def test_an_order_to_end_outlives_the_leader_that_took_it(tmp_path: Path) -> None:
    stubborn = "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('no'))\n"
    script = f"{stubborn}print('is there', flush=True)\nwhile True: time.sleep(0.1)\n"
    with nodes_of_a_job(tmp_path, script, "--nnodes", "3", "--max-restarts", "3") as start:
        one, *others = (
            start(name, f"is_host={name == 'one':d}") for name in ("one", "two", "three")
        )
        for job in (one, *others):
            job.wait_for("is there")
        assert "the job ends" in ctl(one, "stop", "--node", "one")
        os.kill(one.agent_pid, signal.SIGKILL)  # the ranks have 15 s to stop, from now on
        assert [job.finish() for job in others] == [93, 93]


def replayed(dump: Path) -> set[str]:
    """Have the simulator repeat a dump; return which machines it has repeated."""
    command = [sys.executable, "-m", "simulator", "--replay", str(dump)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return {line.partition(":")[0] for line in told.stdout.splitlines() if "no diff" in line}


# --- from another machine -------------------------------------------------------------------------


class Job:
    """Two launchers, which are asked over the network by a client without a run directory."""

    def __init__(self, place: Path, one: Launcher, two: Launcher, *tls: str) -> None:
        self.place, self.one, self.two, self.tls = place, one, two, tls
        (place / "token").write_text("a token of the tests\n")
        (place / "token").chmod(0o600)
        nodes = json.loads(ctl(one, "status", "--json"))
        self.address = {name: node["job"]["leader_address"] for name, node in nodes.items()}
        self.leader = nodes["one"]["job"]["leader_address"]
        self.follower = self.address_of("two")

    def address_of(self, node: str) -> str:
        """Where a launcher listens: its port is not told to people otherwise."""
        for line in ctl(self.one, "dump", "--node", node).splitlines():
            made = json.loads(line).get("made", {}).get("config", {})
            if made.get("address") and made.get("node") == node:
                return str(made["address"])
        raise AssertionError(node)

    def ctl(self, address: str, *words: str, code: int = 0, token: str = "token") -> str:
        env = {k: v for k, v in os.environ.items() if not k.startswith("UNDAUNTED")}
        env["XDG_CONFIG_HOME"] = str(self.place / "none")
        given = ["--token-file", str(self.place / token)] if token else []
        command = [sys.executable, "-m", "undaunted.cli.main", "ctl", address, *given, *self.tls]
        told = subprocess.run(
            [*command, *words], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert told.returncode == code, told.stdout + told.stderr
        return told.stdout + told.stderr


@contextlib.contextmanager
def two_nodes(tmp_path: Path, *options: str, tls: tuple[str, ...] = ()) -> Iterator[Job]:
    with nodes_of_a_job(tmp_path, STEPS, "--nnodes", "2", *options) as start:
        one = start("one", "")
        two = start("two", "is_host=0")
        one.wait_for("rank 0 of 2 in round 0")
        two.wait_for("rank 1 of 2 in round 0")
        yield Job(tmp_path, one, two, *tls)


def test_each_action_from_another_machine(tmp_path: Path) -> None:
    with two_nodes(tmp_path, "--max-restarts", "0") as job:
        for address in (job.leader, job.follower):
            status = json.loads(job.ctl(address, "status", "--json"))
            assert sorted(status) == ["one", "two"]
            assert status["one"]["job"]["role"] == "leader"
        (two,) = json.loads(job.ctl(job.leader, "--json", "status", "--node", "two")).values()
        assert [rank["rank"] for rank in two["ranks"]] == [1]
        stacks = json.loads(job.ctl(job.follower, "stacks", "--json"))
        assert {node: [rank["rank"] for rank in found] for node, found in stacks.items()} == {
            "one": [0],
            "two": [1],
        }
        assert "nothing is recorded of ranks 0-1" in job.ctl(job.leader, "flight")
        dump = json.loads(job.ctl(job.leader, "dump", "--json"))
        assert {line["machine"] for line in dump["one"]} == {"node", "follower", "leader", "policy"}
        (tmp_path / "dump").write_text(job.ctl(job.leader, "dump"))
        assert replayed(tmp_path / "dump") == {"node", "follower", "leader", "policy"}

        assert "heartbeat 7 min" in job.ctl(job.follower, "limits", "--heartbeat", "7m")
        assert "heartbeat: 7 min" in job.ctl(job.leader, "limits", "--node", "two")
        assert "too few would be left" in job.ctl(job.leader, "exclude", "two", code=1)
        assert "which has one, two" in job.ctl(job.leader, "status", "--node", "three", code=1)
        told = job.ctl(job.follower, "restart")
        assert "round 0 is stopped, another round follows" in told
        for launcher, rank in ((job.one, 0), (job.two, 1)):
            launcher.wait_for(r"undaunted ctl \(127.0.0.1:\d+\) asked for a restart")
            launcher.wait_for(f"rank {rank} of 2 in round 1")
        assert "the job ends" in job.ctl(job.leader, "stop")
        assert (job.one.finish(), job.two.finish()) == (93, 93)
        assert "connection refused" in job.ctl(job.leader, "status", code=1)


def test_who_has_no_token_or_another_one_is_refused(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as job:
        assert "--token-file" in job.ctl(job.leader, "stop", code=1, token="")
        (tmp_path / "other").write_text("this is another token")
        (tmp_path / "other").chmod(0o600)
        for address in (job.leader, job.follower):
            assert "another token" in job.ctl(address, "stop", code=1, token="other")
        (tmp_path / "other").chmod(0o644)
        assert "others may use it" in job.ctl(job.leader, "stop", code=2, token="other")
        job.one.wait_for("connection from 127.0.0.1:.* closed: who asks has another token")
        status = json.loads(job.ctl(job.leader, "status", "--json"))
        assert {node["round"] for node in status.values()} == {0}


def test_with_tls(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "both", "IP:127.0.0.1")
    files = {"ca": made.cert, "cert": made.cert, "key": made.key}
    launchers = [f"--coordinator-tls-{name}={path}" for name, path in files.items()]
    tls = tuple(f"--tls-{name}={path}" for name, path in files.items())
    with two_nodes(tmp_path, *launchers, tls=tls) as job:
        assert sorted(json.loads(job.ctl(job.follower, "stacks", "--json"))) == ["one", "two"]
        job.tls = tls[:1]
        assert "certificate" in job.ctl(job.leader, "stop", code=1)
        job.tls = ()
        assert "it may use TLS" in job.ctl(job.leader, "stop", code=1)
        job.tls = tls
        assert "the job ends" in job.ctl(job.leader, "stop")
        assert job.one.finish() == 93


def test_a_coordinator_on_a_host_of_its_own(tmp_path: Path) -> None:
    apart_name = control_socket.COORDINATOR
    with (
        nodes_of_a_job(tmp_path, STEPS, "--nnodes", "2") as start,
        contextlib.ExitStack() as opened,
    ):
        one = start("one", "is_host=0")
        endpoint = one.process.args[one.process.args.index("--rdzv-endpoint") + 1]
        place = tmp_path / "apart"
        place.mkdir()
        options = ["--nnodes", "2", "--rdzv-endpoint", endpoint, "--run-dir", "run"]
        token = {"UNDAUNTED_TOKEN": "a token of the tests"}
        apart = Launcher(options, place, token, command="coordinator")
        opened.callback(apart.close)
        two = start("two", "is_host=0")
        one.wait_for("rank . of 2 in round 0")
        two.wait_for("rank . of 2 in round 0")
        apart.process.send_signal(signal.SIGUSR1)  # as schedulers do before the time is over
        job = Job(tmp_path, one, two)
        for address in (endpoint, job.follower):
            status = json.loads(job.ctl(address, "status", "--json"))
            assert sorted(status) == [apart_name, "one", "two"]
        known = status["(coordinator)"]["job"]
        assert known["role"] == "leader"
        leaders = {
            (node["job"]["leader"], node["job"]["leader_address"]) for node in status.values()
        }
        assert leaders == {(apart_name, endpoint)}, status
        assert {each["lease_left_s"] is not None for each in known["members"]} == {True}
        stacks = json.loads(job.ctl(endpoint, "stacks", "--json"))
        assert {node: len(ranks) for node, ranks in stacks.items()} == {
            apart_name: 0,
            "one": 1,
            "two": 1,
        }
        assert "leader" in job.ctl(job.follower, "dump", "--node", apart_name)
        assert "another round follows" in job.ctl(endpoint, "restart")
        apart.wait_for(r"another round follows .*: undaunted ctl \(127.0.0.1:\d+\) asked for a res")
        one.wait_for("rank . of 2 in round 1")
        assert list(json.loads(ctl(apart, "status", "--json"))) == [apart_name]
        assert "the job ends" in ctl(apart, "stop")
        apart.wait_for(r"the job ends .*: undaunted ctl \(pid \d+\) asked for a stop")
        assert (one.finish(), two.finish(), apart.finish()) == (93, 93, 93)
        assert not list(apart.run_dir.glob("ctl-*")), "the socket is gone"


def test_two_hundred_clients_from_another_machine(tmp_path: Path) -> None:
    question = p.Question(data=msgspec.json.encode(control_socket.Status()))
    own = Terms("", "0.1", b"a token of the tests")

    async def ask(address: str) -> str:
        try:
            answer = await answer_of(address, question, Sockets(own), timeout_s=30)
        except WireError as error:
            return str(error)
        return type(answer).__name__

    async def silent(address: str) -> None:
        _, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"\xff" * 3)
        held.append(writer)

    async def all_at_once(address: str) -> list[str]:
        await asyncio.gather(*(silent(address) for _ in range(100)))
        answers = await asyncio.gather(*(ask(address) for _ in range(200)))
        for writer in held:
            writer.close()
        return answers

    held: list[asyncio.StreamWriter] = []
    with two_nodes(tmp_path) as job:
        answers = asyncio.run(all_at_once(job.leader))
        # One whose handshake takes longer than those of the others may have to make room.
        slow = {each for each in answers if "closed the connection" in each}
        assert {*answers} - slow == {"Answer", "Refused"}
        assert answers.count("Answer") >= MOST_AT_ONCE
        before = iteration(job)
        assert iteration(job) > before, "training goes on"
        assert "the job ends" in job.ctl(job.leader, "stop")


# --- clients that behave badly --------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Launcher]:
    with launched(tmp_path, STEPS, "--node-name", "a") as started:
        started.wait_for("rank 0 of 1 in round 0")
        yield started
        # Whatever has happened: it answers, and training goes on to its end.
        assert json.loads(ctl(started, "status", "--json"))["a"]["state"] == "running"
        (tmp_path / "finish").touch()
        assert started.finish() == 0


def connected(job: Launcher) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(30)
    link.connect(str(job.run_dir / "ctl-a.sock"))
    return link


def asked(job: Launcher, data: bytes) -> p.Message:
    """The answer to whatever is asked by somebody who is what he says."""
    address, own = str(job.run_dir / "ctl-a.sock"), Terms("", "0.1")
    return asyncio.run(answer_of(address, p.Question(data=data), Sockets(own), timeout_s=30))


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff garbage",
        b"[" * 60_000,
        b'{"action":"stop","save":"perhaps"}',
        b'{"action":"none of ours"}',
        b'{"action":"status","v":2}',
    ],
    ids=lambda data: f"{len(data)}-bytes",
)
def test_what_makes_no_sense_is_refused(job: Launcher, data: bytes) -> None:
    answer = asked(job, data)
    assert isinstance(answer, p.Answer)
    assert b'"error":"' in answer.data
    assert b'"error":""' not in answer.data


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\xff" * 100_000])
def test_who_does_not_prove_itself_is_left(job: Launcher, data: bytes) -> None:
    with connected(job) as link, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        while link.recv(65536):
            pass


def test_silent_clients_make_room_for_others(job: Launcher) -> None:
    with contextlib.ExitStack() as opened:
        silent = [opened.enter_context(connected(job)) for _ in range(100)]
        assert "running" in ctl(job, "status")
        for link in silent:
            with contextlib.suppress(ConnectionResetError):
                while link.recv(4096):
                    pass


ASKS = """
import asyncio, sys, time
from undaunted.coordinator.protocol import Question
from undaunted.coordinator.wire.client import connect
from undaunted.coordinator.wire.handshake import Terms

class Client:
    def opened(self, connection):
        connection.send(Question(data=b'{"action":"stacks"}'))

async def ask():
    await connect(sys.argv[1], Client(), Terms("", "0.1"))
    print("asked", flush=True)
    time.sleep(1000)

asyncio.run(ask())
"""


def test_a_client_that_is_killed_or_stopped_while_it_is_answered(job: Launcher) -> None:
    place = str(job.run_dir / "ctl-a.sock")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        client = subprocess.Popen([sys.executable, "-c", ASKS, place], stdout=subprocess.PIPE)
        assert client.stdout is not None
        with client, client.stdout:
            assert client.stdout.readline() == b"asked\n"
            client.send_signal(number)
            before = iteration(job)
            assert "train.py" in ctl(job, "stacks"), "others are answered meanwhile"
            assert iteration(job) > before
            client.kill()


def iteration(job: Launcher | Job) -> int:
    launcher = job if isinstance(job, Launcher) else job.one
    first, *_ = json.loads(ctl(launcher, "status", "--json")).values()
    return int(first["ranks"][0]["iteration"])


def test_a_launcher_that_is_stopped_does_not_answer(
    job: Launcher, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from undaunted.cli import asking
    from undaunted.cli import ctl as command

    monkeypatch.setattr(asking, "ANSWER_S", 0.5)
    os.kill(job.agent_pid, signal.SIGSTOP)
    try:
        assert command.main([str(job.run_dir), "status"]) == 1
        assert f"kill -CONT {job.agent_pid}" in capsys.readouterr().err
        assert command.main([str(job.run_dir), "restart"]) == 1
    finally:
        os.kill(job.agent_pid, signal.SIGCONT)
    monkeypatch.undo()
    status = json.loads(ctl(job, "status", "--json"))
    assert [node["round"] for node in status.values()] == [0], "nobody waits for an answer any more"


def test_a_directory_with_a_long_name_and_an_old_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("long-" * 30) / ("name-" * 30)
    deep.mkdir(parents=True)
    with launched(deep, STEPS, "--node-name", "n" * 90) as job:
        job.wait_for("rank 0 of 1 in round 0")
        (place,) = job.run_dir.glob("ctl-*")
        assert "running" in ctl(job, "status")
        assert "running" in ctl(job, "status", "--node", "n" * 90)
        os.kill(job.agent_pid, signal.SIGKILL)
        assert job.finish() == 1
        assert "no launcher listens at its socket here" in ctl(job, "status", code=1)
    assert place.is_socket(), "a launcher that was killed leaves it"
    with launched(deep, STEPS, "--node-name", "n" * 90) as job:
        job.wait_for("rank 0 of 1 in round 0")
        assert "running" in ctl(job, "status")


def test_where_no_socket_can_be_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ctl-a.sock").write_text("not ours")
    (tmp_path / "finish").touch()
    with launched(tmp_path, STEPS, "--node-name", "a") as job:
        job.wait_for("undaunted ctl cannot ask here")
        assert job.finish() == 0
