"""An attribution service is asked about each round; what it says is told and may end the job."""

from __future__ import annotations

import http.server
import json
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

DEADLINE_S = 60.0
CRASH_ONCE = """
import os, signal
print("round", os.environ["TORCHELASTIC_RESTART_COUNT"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("bad batch")
if "WAIT" in os.environ:
    signal.pause()
"""


class Service:
    """Reads the log it is asked about and answers with its first line and `action`."""

    def __init__(self) -> None:
        self.action = "RESTART"
        self.told: list[str] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if sent["analysis_intent"] == "terminal":
                    service.told.append(sent["log_path"])
                self._answer({"submitted": True})

            def do_GET(self) -> None:
                (path,) = parse_qs(urlsplit(self.path).query)["log_path"]
                with open(path) as log:  # noqa: PTH123
                    found = f"saw {log.readline().strip()}"
                self._answer({"result": found, "recommendation": {"action": service.action}})

            def _answer(self, said: Any) -> None:
                body = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join(DEADLINE_S)
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def test_each_round_is_analysed(tmp_path: Path, service: Service) -> None:
    options = ["--ft-attrsvc-host", "127.0.0.1", "--ft-attrsvc-port", str(service.port)]
    restart = ["--worker-start", "fresh", "--max-restarts", "1"]
    with launched(tmp_path, CRASH_ONCE, *options, *restart) as launcher:
        assert launcher.finish() == 0
        assert "attribution of round 0 (it recommends RESTART): saw 0: round 0" in launcher.text
        assert "attribution of round 1 (it recommends RESTART): saw 0: round 1" in launcher.text
        found = launcher.events("attribution_result")
        assert [(event["round"], event["action"]) for event in found] == [
            (0, "RESTART"),
            (1, "RESTART"),
        ]
        logs = [str(tmp_path / "run" / "logs" / f"ranks_cycle{n}.log") for n in range(2)]
        assert service.told == [event["log_path"] for event in found] == logs


def test_advice_to_stop_may_end_the_job(tmp_path: Path, service: Service) -> None:
    service.action = "STOP"
    options = [
        f"--ft-attribution-endpoint=http://127.0.0.1:{service.port}",
        "--ft-attribution-stop-action=no-restart",
        f"--ft-per-cycle-applog-prefix={tmp_path}/app.log",
    ]
    restart = ["--worker-start", "fresh", "--max-restarts", "9"]
    with launched(tmp_path, CRASH_ONCE, *options, *restart, WAIT="1") as launcher:
        assert launcher.finish() == 93
        assert "the attribution service on node" in launcher.text
        assert "asked for a shutdown: after round 0: saw 0: round 0" in launcher.text


def test_a_service_of_the_launchers_own(tmp_path: Path) -> None:
    options = ["--ft-attribution-endpoint=localhost", "--ft-attribution-llm-model=none"]
    restart = ["--worker-start", "fresh", "--max-restarts", "1"]
    with launched(tmp_path, CRASH_ONCE, *options, *restart) as launcher:
        assert launcher.finish() == 0
        assert "attribution of round 0 (it recommends RESTART): conclusion: " in launcher.text
        assert "bad batch" in launcher.text.partition("attribution of round 0")[2]
        found = launcher.events("attribution_result")
        assert [(event["round"], event["action"]) for event in found] == [
            (0, "RESTART"),
            (1, "CONTINUE"),
        ]
    (directory,) = (tmp_path / "run").glob("attribution-*")
    assert {path.name for path in directory.iterdir()} == {"ledger.jsonl", "lock", "token"}
    assert (directory / "token").stat().st_mode & 0o777 == 0o600
    records = [json.loads(line) for line in (directory / "ledger.jsonl").read_text().splitlines()]
    assert {record["cycle"] for record in records} == {0, 1}
    assert {record["path"] for record in records} == {event["log_path"] for event in found}


def test_service_that_is_away_costs_a_line(tmp_path: Path, service: Service) -> None:
    service.close()
    options = [f"--ft-attribution-endpoint=http://127.0.0.1:{service.port}"]
    restart = ["--worker-start", "fresh", "--max-restarts", "1"]
    with launched(tmp_path, CRASH_ONCE, *options, *restart) as launcher:
        assert launcher.finish() == 0
        assert launcher.text.count("Connection refused") == 1
