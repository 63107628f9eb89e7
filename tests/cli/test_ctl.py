"""``undaunted ctl``: its words, and what it prints; real launchers are asked in tests/e2e."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.attribution.flight.recording import Group, Recording
from undaunted.base.unix_sockets import listen_at
from undaunted.cli import asking
from undaunted.cli.ctl import main
from undaunted.coordinator import protocol as p
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.server import Server as WireServer
from undaunted.fault_tolerance import control_socket as s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from undaunted.coordinator.wire.connection import Connection

TOKEN = b"a token of the tests"
LONG = ",".join(f"s{number}:5" for number in range(65))
CLOSES = "the connection"
STATUS = s.NodeStatus(
    node="a",
    pid=70,
    version="0.1",
    run_id="job",
    state="running",
    round=2,
    job=s.JobStatus(
        role="leader",
        state="leading, running",
        leader="a",
        leader_address="h:29400",
        epoch=9,
        round=2,
        restarts_used=1,
        restarts_left=2,
        lease_s=5.0,
        members=[s.MemberStatus("a", [0, 1], votes=True, lease_left_s=4.2)],
        spares=["c"],
        excluded={"z": "its NIC"},
    ),
    ranks=[
        s.RankStatus(0, 0, 71, "stepping", 7, 0.25, {"save": 3.0}),
        s.RankStatus(1, 1, 72, "failed", ended="exit code 1"),
    ],
    limits=[
        s.LimitStatus("heartbeat", 600.0, "undaunted ctl (pid 7)", [0]),
        s.LimitStatus("out_of_section", None, "default", [0, 1]),
    ],
)


class Server:
    """Answers what it is asked, on a loop in a thread of its own; CLOSES ends the connection.

    At a socket with a file, or where ``place`` is None, at a port. A body with the name of a node
    is for who asks that one.
    """

    def __init__(self, place: Path | None, node: str, *bodies: Any, error: str = "") -> None:
        self.asked: list[Any] = []
        self.node, self.bodies, self.error = node, list(bodies), error
        self.place, self.port = place, 0
        self.ready, self.thread = threading.Event(), threading.Thread(target=self._run)
        self.thread.start()
        assert self.ready.wait(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self.over = asyncio.get_running_loop(), asyncio.Event()
        token = b"" if self.place else TOKEN
        server = WireServer("127.0.0.1:0", self, Terms("job", "0.1", token))
        listening = None
        if self.place is not None:
            listening = listen_at(str(self.place), socket.SOCK_STREAM, 8)
            listening.setblocking(False)
        await server.start(listening)
        self.port = 0 if self.place else server.port
        self.ready.set()
        await self.over.wait()
        await server.close("over")

    def opened(self, connection: Connection) -> None:
        """Wait."""

    def received(self, connection: Connection, message: p.Question) -> None:
        question = s.question_of(message.data)
        self.asked.append((message.node, question) if message.node else question)
        body = self.bodies.pop(self._next(message.node or self.node))
        if body is CLOSES:
            connection.close("it closes")
        else:
            ready = isinstance(body, p.Answer | p.Refused | p.Renew)
            connection.send(body if ready else p.Answer(data=self._answer(body)))

    def closed(self, connection: Connection, reason: str) -> None:
        """It has its answer."""

    def _next(self, asked: str) -> int:
        """Where the next body is: nodes are asked at once, their questions come in any order."""
        named = [body[0] if isinstance(body, tuple) else asked for body in self.bodies]
        return named.index(asked)

    def _answer(self, body: Any) -> bytes:
        node, body = body if isinstance(body, tuple) else (self.node, body)
        raw = msgspec.Raw(msgspec.json.encode(body))
        return msgspec.json.encode(s.Answer(node=node, error=self.error, body=raw))

    def close(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join(10)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def start(*bodies: Any, node: str = "a", error: str = "", port: bool = False) -> Server:
        place = None if port else tmp_path / s.file_name(node)
        servers.append(Server(place, node, *bodies, error=error))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str, code: int = 0) -> str:
        assert main([str(tmp_path), *words]) == code
        told = capsys.readouterr()
        return told.out + told.err

    return call


STACKS = [
    s.RankStacks(0, 0, 71, "sleeping", 7, "train.py:3", "all_reduce", "Thread 1\n  frame"),
    s.RankStacks(1, 1, 72, "stopped by a signal", reason="it is stopped"),
]
RECORDINGS = [
    *(s.RankRecording(r, 70 + r, Recording(r, (Group("0"),), world_size=3)) for r in range(2)),
    s.RankRecording(2, 72, deaf=True),
    s.RankRecording(3, 73),
]


def status(**job: Any) -> s.NodeStatus:
    changed = msgspec.structs.replace(STATUS.job, **job)
    return msgspec.structs.replace(STATUS, job=changed, round=changed.round)


ANSWERS: list[tuple[str, str, Any]] = [
    ("a leader", "status", STATUS),
    ("a stop is under way", "status", status(state="stopping", then="then the job ends")),
    ("the first round has not begun", "status", status(round=-1)),
    ("the leader is silent", "status", status(role="follower", lease_left_s=-7.25)),
    ("two ranks", "stacks", STACKS),
    ("one of them", "stacks --rank 1", STACKS),
    ("four ranks, one of them answers nothing", "flight", RECORDINGS),
    ("no rank", "stacks", []),
    ("limits", "limits", STATUS),
]


def test_answers_in_words(serve: Any, run: Any, golden: Any) -> None:
    serve(*(body for _, _, body in ANSWERS))
    session = ""
    for title, action, _ in ANSWERS:
        session += f"# {title}\n\n$ undaunted ctl RUN {action}\n{run(*action.split())}\n"
    golden(Path(__file__).with_name("ctl_answers.txt"), session)


def test_recordings_for_programs(serve: Any, run: Any) -> None:
    server = serve(RECORDINGS)
    found = json.loads(run("flight", "--json"))
    assert (found["deaf"], len(found["recordings"])) == ([2], 2)
    assert server.asked == [s.Flight()]


def test_status_says_until_when_a_job_pauses(serve: Any, run: Any) -> None:
    paused = msgspec.structs.replace(STATUS.job, pause_left_s=7.25)
    serve(msgspec.structs.replace(STATUS, job=paused))
    assert "(7.2 s more" in run("status").partition("pauses until ")[2]


def test_status_of_several_launchers(serve: Any, run: Any) -> None:
    serve(STATUS)
    serve(msgspec.structs.replace(STATUS, node="b"), node="b")
    assert sorted(json.loads(run("status", "--json"))) == ["a", "b"]


def test_one_of_several_launchers(serve: Any, run: Any) -> None:
    serve(node="a")
    serve(STATUS, node="b")
    assert "=== node" not in run("status", "--node", "b")


def test_who_does_not_answer_is_said(serve: Any, run: Any, tmp_path: Path) -> None:
    serve(STATUS)
    listen_at(str(tmp_path / "ctl-gone.sock"), socket.SOCK_STREAM, 1).close()
    told = run("status")
    assert "node      a (leader)" in told
    assert "node gone: no launcher listens at its socket here: it was killed" in told


def test_a_rank_is_all_that_is_shown_of_several_nodes(serve: Any, run: Any) -> None:
    for number, node in enumerate("ab"):
        seen = [s.RankStacks(number, 0, 71, "sleeping")]
        serve(seen, seen, [], node=node)
    assert "node" not in run("stacks", "--rank", "1")
    assert "there is no rank 7 here, but ranks 0-1" in run("stacks", "--rank", "7", code=1)
    assert "there is no rank 0 here, but none" in run("stacks", "--rank", "0", code=1)


def test_a_dump_is_lines_or_one_document(serve: Any, run: Any) -> None:
    lines = [{"machine": "node"}, {"machine": "policy"}]
    serve(lines, lines)
    assert run("dump") == '{"machine":"node"}\n{"machine":"policy"}\n'
    assert json.loads(run("dump", "--json")) == {"a": lines}


# --- through the coordinator of a job -------------------------------------------------------------


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Any:
    """Ask at a port, with the token."""
    monkeypatch.delenv("UNDAUNTED_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "token").write_bytes(TOKEN)
    (tmp_path / "token").chmod(0o600)

    def call(server: Server, *words: str, code: int = 0, token: str = "token") -> str:
        given = ["--token-file", str(tmp_path / token)] if token else []
        assert main([f"127.0.0.1:{server.port}", *given, *words]) == code
        told = capsys.readouterr()
        return told.out + told.err

    return call


def job_of(node: str, *members: str, spares: list[str] | None = None) -> s.NodeStatus:
    job = s.JobStatus("leader", "", members=[s.MemberStatus(each, []) for each in members])
    job = msgspec.structs.replace(job, spares=spares)
    return msgspec.structs.replace(STATUS, node=node, job=job)


def test_all_nodes_answer_through_the_leader(serve: Any, ask: Any) -> None:
    status = job_of("a", "a", "b", spares=["c"])
    stacks = [(node, [s.RankStacks(rank, 0, 7, "")]) for rank, node in enumerate("abc")]
    server = serve(status, *stacks, port=True)
    assert sorted(json.loads(ask(server, "stacks", "--json"))) == ["a", "b", "c"]
    first, *others = server.asked
    assert first == s.Status()
    assert sorted(map(str, others)) == sorted(
        map(str, [s.Stacks(), ("b", s.Stacks()), ("c", s.Stacks())])
    )


def test_nodes_without_ranks_are_named_in_one_line(serve: Any, ask: Any) -> None:
    status = (s.COORDINATOR, job_of(s.COORDINATOR, "a", spares=["c"]))
    idle = msgspec.structs.replace(STATUS, limits=[])
    nothing = "no ranks run on (coordinator), c"
    for action, empty, full in (
        ("stacks", [], [s.RankStacks(0, 0, 71, "sleeping")]),
        ("flight", [], [s.RankRecording(0, 71)]),
        ("limits", idle, STATUS),
    ):
        bodies = [(s.COORDINATOR, empty), ("a", full), ("c", empty)]
        server = serve(status, *bodies, node=s.COORDINATOR, port=True)
        *others, last = ask(server, action).splitlines()
        assert last == nothing
        assert [line for line in others if "===" in line] in ([], ["=== node a ==="])


def test_a_coordinator_alone_is_asked_by_the_name_that_it_has(serve: Any, ask: Any) -> None:
    server = serve((s.COORDINATOR, STATUS), port=True)
    ask(server, "status", "--node", s.COORDINATOR)
    assert server.asked == [(s.COORDINATOR, s.Status())]


def test_at_a_coordinator_alone_it_is_said_who_has_ranks(serve: Any, run: Any) -> None:
    serve([], node=s.COORDINATOR)
    assert "(coordinator); undaunted ctl HOST:PORT asks all nodes" in run("stacks")


def test_an_order_goes_to_the_leader_and_one_that_is_none_says_who_leads(
    serve: Any, ask: Any
) -> None:
    leader = serve(s.Decision("it is done"), port=True)
    where = p.Refused(reason="this node does not lead the job", leader=f"127.0.0.1:{leader.port}")
    follower = serve(where, port=True)
    assert ask(follower, "stop") == "it is done\n"
    assert follower.asked == leader.asked == [s.Stop()]


def test_a_leader_that_is_silent_is_named_by_who_does_not_lead(
    serve: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        leader = f"127.0.0.1:{silent.getsockname()[1]}"
        said = p.Refused(reason="--node b asks this; the job is led by node a", leader=leader)
        follower = serve(said, said, port=True)
        told = ask(follower, "status", code=1)
        for words in ("is led by node a", f"{leader}: no answer within 0.2 s; ask again", "--node"):
            assert words in told
        assert "is not carried out" not in told
        assert "is not carried out" in ask(follower, "restart", code=1)
        told = ask(SimpleNamespace(port=silent.getsockname()[1]), "stop", code=1)
        assert "its launcher may be stopped" in told
        assert "is not carried out" in told


def test_where_the_leader_is_silent_the_next_one_is_asked(
    serve: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has sent the question there knows after a while who leads now."""
    monkeypatch.setattr(asking, "REACH_S", 0.2)
    leader = serve(s.Decision("it is done"), port=True)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        gone = f"127.0.0.1:{silent.getsockname()[1]}"
        reason = "this node does not lead the job"
        follower = serve(
            p.Refused(reason=reason, leader=gone),
            p.Refused(reason=reason, leader=f"127.0.0.1:{leader.port}"),
            port=True,
        )
        assert ask(follower, "stop") == "it is done\n"
    assert leader.asked == [s.Stop()]


def test_where_nobody_leads_that_is_said(serve: Any, ask: Any) -> None:
    follower = serve(p.Refused(reason="the job is led by node a"), port=True)
    assert "led by node a" in ask(follower, "status", code=1)


def test_leaders_that_name_each_other_are_not_asked_for_ever(serve: Any, ask: Any) -> None:
    one = serve(*[p.Refused(reason="not me")] * 9, port=True)
    (first,) = {id(each) for each in one.bodies}
    assert first
    one.bodies = [p.Refused(reason="not me", leader=f"127.0.0.1:{one.port}")] * 9
    assert "not me" in ask(one, "stop", code=1)
    assert len(one.asked) == 5


def test_one_node_is_asked_by_its_name(serve: Any, ask: Any) -> None:
    server = serve(STATUS, port=True)
    assert "running" in ask(server, "--node", "b", "status")
    assert server.asked == [("b", s.Status())]


def test_a_token_that_is_wrong_or_missing(serve: Any, ask: Any, tmp_path: Path) -> None:
    server = serve(port=True)
    assert "--token-file" in ask(server, "stop", code=1, token="")
    assert "none: No such file" in ask(server, "stop", code=2, token="none")
    (tmp_path / "undaunted").mkdir()
    (tmp_path / "undaunted" / "token").write_bytes(b"short")
    (tmp_path / "undaunted" / "token").chmod(0o600)
    assert "needs at least" in ask(server, "stop", code=2, token="")
    assert server.asked == []


def test_this_users_own_token_is_taken(serve: Any, ask: Any, tmp_path: Path) -> None:
    (tmp_path / "undaunted").mkdir()
    (tmp_path / "token").rename(tmp_path / "undaunted" / "token")
    server = serve(s.Decision("it is done"), port=True)
    assert ask(server, "stop", token="") == "it is done\n"


def test_where_nobody_listens(serve: Any, ask: Any) -> None:
    server = serve(port=True)
    server.close()
    told = ask(server, "status", code=1)
    assert f"127.0.0.1:{server.port}: connection refused; nobody listens there" in told


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (["restart"], s.Restart()),
        (["restart", "--after-checkpoint"], s.Restart(save=True)),
        (["stop", "--after-checkpoint"], s.Stop(save=True)),
        (["exclude", "b"], s.Exclude(target="b")),
        (
            ["limits", "--heartbeat", "10m", "--sections", "save:none,step:5"],
            s.Limits(limits={"heartbeat": 600.0, "section:save": None, "section:step": 5.0}),
        ),
        (
            ["limits", "--initial-heartbeat", "none", "--out-of-section", "1h"],
            s.Limits(limits={"initial_heartbeat": None, "out_of_section": 3600.0}),
        ),
    ],
)
def test_orders(serve: Any, run: Any, words: list[str], question: s.Question) -> None:
    server = serve(s.Decision("it is done"), s.Decision("no", done=False))
    assert run(*words) == "it is done\n"
    assert json.loads(run(*words, "--json", code=1)) == {"node": "a", "line": "no", "done": False}
    assert server.asked == [question, question]


def test_limits_at_a_time_are_bounded(run: Any) -> None:
    assert "--sections: 65 limits" in run("limits", "--sections", LONG, code=2)


def test_an_order_goes_to_the_first_who_takes_it(serve: Any, run: Any) -> None:
    serve(None, error="no ranks run here")
    serve(s.Decision("it is done"), node="b")
    assert run("restart") == "it is done\n"


def test_a_refusal_is_shown(serve: Any, run: Any) -> None:
    serve(None, error="no ranks run here")
    assert run("restart", code=1) == "undaunted ctl restart: node a: no ranks run here\n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (CLOSES, "the other side closed the connection"),
        (p.Renew(epoch=1), "has not answered the question"),
        (p.Answer(data=b"junk"), "makes no sense"),
        (p.Refused(reason="8 others ask"), "node a: 8 others ask"),
        (p.Answer(data=b'{"body":{"node":1}}'), "another version of undaunted"),
    ],
)
def test_a_launcher_that_makes_no_sense(serve: Any, run: Any, answer: Any, text: str) -> None:
    serve(answer, answer)
    assert text in run("status", code=1)
    assert ("is not known" in run("stop", code=1)) == (answer is CLOSES)


def test_a_launcher_that_says_nothing(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER_S", 0.1)
    with listen_at(str(tmp_path / "ctl-a.sock"), socket.SOCK_STREAM, 8):
        assert f"its launcher (pid {os.getpid()}) does not answer" in run("status", code=1)
        assert "is not carried out" in run("stop", code=1)
