"""``undaunted ctl``: its words, and what it prints; real launchers are asked in tests/e2e."""

from __future__ import annotations

import json
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from undaunted.attribution.flight.recording import Group, Recording
from undaunted.base.unix_sockets import listen_at
from undaunted.cli import ctl
from undaunted.cli.ctl import main
from undaunted.coordinator.wire.frames import FrameDecoder, encode
from undaunted.fault_tolerance import control_socket as s

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
    """Answers what it is asked, in threads of its own."""

    def __init__(self, place: Path, *bodies: Any, error: str = "") -> None:
        self.asked: list[s.Question] = []
        self.listening = listen_at(str(place), socket.SOCK_STREAM, 8)
        self.node = place.name[4:-5]
        self.bodies, self.error = list(bodies), error
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        for body in self.bodies:
            link, _ = self.listening.accept()
            decoder = FrameDecoder(s.MOST_ASKED)
            with link:
                while (frame := decoder.next()) is None:
                    decoder.feed(link.recv(65536))
                self.asked.append(s.question_of(frame))
                raw = body if isinstance(body, bytes) else encode(self._answer(body))
                link.sendall(raw)

    def _answer(self, body: Any) -> bytes:
        raw = msgspec.Raw(msgspec.json.encode(body))
        return msgspec.json.encode(s.Answer(node=self.node, error=self.error, body=raw))

    def close(self) -> None:
        self.thread.join(10)
        self.listening.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    servers: list[Server] = []

    def start(*bodies: Any, node: str = "a", error: str = "") -> Server:
        servers.append(Server(tmp_path / s.file_name(node), *bodies, error=error))
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


def test_status_for_people(serve: Any, run: Any) -> None:
    serve(STATUS)
    line = "rank      0: pid 71, stepping, iteration 7, last heartbeat 250 ms ago, "
    line += "section save open for 3.0 s"
    assert run("status").splitlines() == [
        "job       job, round 2, leading, running, 1 restart used, 2 left",
        "leader    a at h:29400, epoch 9",
        "member    a: ranks 0-1, votes, lease 4.2 s left",
        "spares    c",
        "excluded  z: its NIC",
        "node      a (leader): running, round 2, pid 70, undaunted 0.1",
        line,
        "rank      1: pid 72, ended: exit code 1",
        "limit     heartbeat: 10 min 00 s (undaunted ctl (pid 7), rank 0)",
        "limit     out_of_section: off (default)",
    ]


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
    assert "node gone: its launcher has ended, or runs on another machine" in told


def test_stacks_of_one_rank(serve: Any, run: Any) -> None:
    seen = [
        s.RankStacks(0, 0, 71, "sleeping", 7, "train.py:3", "all_reduce", "Thread 1\n  frame"),
        s.RankStacks(1, 1, 72, "stopped by a signal", reason="it is stopped"),
    ]
    serve(seen, seen)
    both = run("stacks")
    assert "--- rank 0, pid 71: sleeping, iteration 7, in train.py:3, waits in all_reduce" in both
    assert "(no stacks: it is stopped)" in both
    assert run("stacks", "--rank", "1").count("--- rank") == 1


def test_recordings(serve: Any, run: Any) -> None:
    recordings = [Recording(rank, (Group("0"),), world_size=3) for rank in range(2)]
    said = [s.RankRecording(rank, 70 + rank, one) for rank, one in enumerate(recordings)]
    said += [s.RankRecording(2, 72, deaf=True), s.RankRecording(3, 73)]
    server = serve(said, said)
    told = run("flight")
    assert "2 dumps" in told
    assert "no answer from rank 2" in told
    assert "nothing is recorded of rank 3" in told
    found = json.loads(run("flight", "--json"))
    assert (found["deaf"], len(found["recordings"])) == ([2], 2)
    assert server.asked == [s.Flight(), s.Flight()]


def test_a_dump_is_lines(serve: Any, run: Any) -> None:
    serve([{"machine": "node"}, {"machine": "policy"}])
    assert run("dump") == '{"machine":"node"}\n{"machine":"policy"}\n'


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


def test_an_order_goes_to_the_first_who_takes_it(serve: Any, run: Any) -> None:
    serve(None, error="no ranks run here")
    serve(s.Decision("it is done"), node="b")
    assert run("restart") == "it is done\n"


def test_a_refusal_is_shown(serve: Any, run: Any) -> None:
    serve(None, error="no ranks run here")
    assert run("restart", code=1) == "undaunted ctl restart: node a: no ranks run here\n"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "it has closed the connection"),
        (b"\x00\x00", "it has closed the connection"),
        (b"\xff" * 9, "a frame of"),
        (encode(b"junk"), "malformed"),
        (encode(b'{"body":{"node":1}}'), "another version of undaunted"),
    ],
)
def test_a_launcher_that_makes_no_sense(serve: Any, run: Any, raw: bytes, text: str) -> None:
    serve(raw)
    assert text in run("status", code=1)


def test_a_launcher_that_says_nothing(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctl, "ANSWER_S", 0.02)
    with listen_at(str(tmp_path / "ctl-a.sock"), socket.SOCK_STREAM, 1):
        assert f"its launcher (pid {os.getpid()}) does not answer" in run("status", code=1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "an action is missing: choose status"),
        (["nothing"], "'nothing' is no action"),
        (["RUN", "nothing"], "'nothing' is no action"),
        (["RUN", "stacks", "--rank", "x"], "--rank"),
        (["RUN", "exclude"], "name the node"),
        (["RUN", "limits"], "give a limit"),
        (["RUN", "limits", "--heartbeat", "0"], "--heartbeat"),
        (["RUN", "status", "more"], "unexpected 'more'"),
    ],
)
def test_wrong_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    words = [str(tmp_path) if word == "RUN" else word for word in words]
    assert main(words) == 2
    assert text in capsys.readouterr().err


def test_a_run_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["status"]) == 2
    assert "no run under" in capsys.readouterr().err
    assert main(["none", "status"]) == 2
    assert "none is no directory" in capsys.readouterr().err
    assert main([str(tmp_path), "status"]) == 1
    assert "no launcher can be asked here" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["stacks", "--help"], ["x", "limits", "--help"]])
def test_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Usage: undaunted ctl")
