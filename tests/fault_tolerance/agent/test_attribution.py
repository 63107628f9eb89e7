"""The client of an attribution service, against real servers over TCP and Unix sockets."""

from __future__ import annotations

import http.server
import json
import queue
import socket
import socketserver
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.base import http_client
from undaunted.fault_tolerance.agent import attribution
from undaunted.fault_tolerance.agent.attribution import (
    Answer,
    AttributionClient,
    ServiceError,
    read_answer,
)
from undaunted.fault_tolerance.worker.spawner import Spawned

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 20.0
RESULT = {
    "status": "completed",
    "result": {"module": "log", "result": "rank 3: out\nof memory", "state": "timeout"},
    "recommendation": {"action": "RESTART", "source": "rules"},
}


class Service:
    """Answers every request with `status` and `body`, and keeps the requests."""

    def __init__(self, server: socketserver.BaseServer, url: str) -> None:
        self.server = server
        self.url = url
        self.requests: queue.Queue[tuple[str, str, Any]] = queue.Queue()
        self.status = {"POST": 200, "GET": 200}
        self.body = json.dumps(RESULT).encode()
        self.held: threading.Event | None = None  # answers wait for it
        self.tokens: list[str | None] = []


def handler(found: list[Service]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, sent: Any) -> None:
            service = found[0]
            service.tokens.append(self.headers["Authorization"])
            service.requests.put((self.command, self.path, sent))
            if service.held is not None:
                assert service.held.wait(DEADLINE_S)
                return
            self.send_response(service.status[self.command])
            self.send_header("Content-Length", str(len(service.body)))
            self.end_headers()
            self.wfile.write(service.body)

        def log_message(self, *_: Any) -> None:
            pass

        def address_string(self) -> str:
            return "client"

    return Handler


class UnixServer(socketserver.UnixStreamServer):
    pass


@pytest.fixture(params=["http", "unix"])
def service(request: Any, tmp_path: Path) -> Iterator[Service]:
    found: list[Service] = []
    server: socketserver.BaseServer
    if request.param == "http":
        server = http.server.HTTPServer(("127.0.0.1", 0), handler(found))
        url = f"http://127.0.0.1:{server.server_port}"
    else:
        server = UnixServer(str(tmp_path / "s"), handler(found))
        url = f"unix://{tmp_path / 's'}"
    found.append(Service(server, url))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield found[0]
    if found[0].held is not None:
        found[0].held.set()
    server.shutdown()
    thread.join(DEADLINE_S)
    server.server_close()


class Heard:
    def __init__(self) -> None:
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.problems: queue.Queue[str] = queue.Queue()

    def client(self, url: str, **limits: Any) -> AttributionClient:
        return AttributionClient(url, self.answers.put, self.problems.put, **limits)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_log_is_named_at_the_start_and_its_result_fetched_at_the_end(
    service: Service, heard: Heard
) -> None:
    client = heard.client(service.url, user="me", job="job7", token=b"0123456789abcdef")
    client.round_began(0, "/logs/a b_cycle0.log")
    client.round_over(0, "/logs/a b_cycle0.log")
    answer = heard.answers.get(timeout=DEADLINE_S)
    assert 0 < answer.duration_ns < DEADLINE_S * 1e9
    assert answer._replace(duration_ns=0) == Answer(
        0, "/logs/a b_cycle0.log", "RESTART", "rank 3: out of memory"
    )
    assert client.close(DEADLINE_S)
    told, over, asked = (service.requests.get() for _ in range(3))
    about = {"log_path": "/logs/a b_cycle0.log", "user": "me", "job_id": "job7", "cycle_id": 0}
    assert told == ("POST", "/logs", {**about, "analysis_intent": "progressive"})
    assert over == ("POST", "/logs", {**about, "analysis_intent": "terminal"})
    assert asked[0] == "GET"
    assert service.tokens == ["Bearer 0123456789abcdef"] * 3
    assert parse_qs(urlsplit(asked[1]).query) == {
        "log_path": ["/logs/a b_cycle0.log"],
        "wait": ["true"],
    }
    assert heard.problems.empty()


def test_refusals_are_said_but_not_of_a_log_that_has_only_begun(
    service: Service, heard: Heard
) -> None:
    service.status = {"POST": 400, "GET": 403}
    service.body = b'{"error_code": "outside_root", "message": "not\\u001b[31m below /logs"}'
    client = heard.client(service.url)
    for number in range(3):  # said once
        client.round_began(number, "/x")
        client.round_over(number, "/x")
    assert client.close(DEADLINE_S)
    problem = heard.problems.get_nowait()
    assert problem == (
        f"the attribution service {service.url}: GET /logs: 403 not\\x1b[31m below /logs"
    )
    assert heard.problems.empty()
    assert heard.answers.empty()


def test_service_that_does_not_answer_costs_nothing(service: Service, heard: Heard) -> None:
    service.held = threading.Event()
    client = heard.client(service.url, post_s=0.05, ask_s=0.05)
    client.round_over(0, "/x")
    assert "no answer within 0.05 s" in heard.problems.get(timeout=DEADLINE_S)
    assert client.close(DEADLINE_S)


def test_end_does_not_wait_for_a_service_that_hangs(service: Service, heard: Heard) -> None:
    service.held = threading.Event()
    client = heard.client(service.url)
    client.round_over(0, "/x")
    service.requests.get(timeout=DEADLINE_S)
    assert not client.close(0.01)
    for number in range(200):  # bounded, and never blocks
        client.round_over(number, "/x")
    service.held.set()
    client._thread.join(DEADLINE_S)


def test_endless_answer_is_given_up(
    service: Service, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "_LONGEST_ANSWER", 1 << 10)
    service.body = bytes(1 << 12)
    client = heard.client(service.url)
    client.round_over(0, "/x")
    assert "the answer is longer than" in heard.problems.get(timeout=DEADLINE_S)
    assert client.close(DEADLINE_S)


def test_nobody_there(heard: Heard, tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}", f"unix://{tmp_path / 'none'}"):
            client = heard.client(url)
            client.round_began(0, "/x")
            assert url in heard.problems.get(timeout=DEADLINE_S)
            assert client.close(DEADLINE_S)


REQUEST = attribution._Request(4, "/log", is_over=True)


@pytest.mark.parametrize(
    ("said", "action", "text"),
    [
        ({"result": "all well"}, "", "all well"),
        ({"result": {"result": ["a", 1], "recommendation": "STOP"}}, "STOP", '["a", 1]'),
        ({"result": None, "recommendation": {"action": 5}}, "", "null"),
        ({"result": ""}, "", "nothing"),
        ({}, "", "null"),
    ],
)
def test_results_of_other_shapes(said: Any, action: str, text: str) -> None:
    assert read_answer(REQUEST, json.dumps(said).encode()) == Answer(4, "/log", action, text)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "no result"),
        (b'{"status": "in_flight"}', "no result for /log: in_flight"),
    ],
)
def test_what_is_no_result(body: bytes, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        read_answer(REQUEST, body)


STARTED = Spawned([], "warm")


class Client:
    """In place of the client: never asked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def round_began(self, round_no: int, log_path: str) -> None:
        pass


@on_loop
async def test_advice_to_stop_that_comes_between_two_rounds_holds_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attribution, "AttributionClient", Client)
    posted: list[Any] = []
    config: Any = SimpleNamespace(
        node="a",
        run_id="job7",
        attribution_service="http://x",
        attribution_may_end_job=True,
        applog_prefix="/l",
        ft=SimpleNamespace(attribution_token_file=None),
    )
    this: Any = SimpleNamespace(post=posted.append, record=lambda _: None)
    it = attribution.Attribution(config, this, this, lambda _: None)
    it.open()
    it.ranks_run(cast("Any", SimpleNamespace(number=0)), STARTED)
    it._answered(Answer(0, "/l", "STOP", "the data are broken"))
    it.ranks_run(cast("Any", SimpleNamespace(number=1)), STARTED)
    assert [event.round for event in posted] == [0, 1]
    assert all("the data are broken" in event.description for event in posted)
