"""A job that is scraped while it runs, restarts and ends."""

from __future__ import annotations

import http.server
import os
import queue
import re
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import launched, nodes_of_a_job

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

WAIT_S = 60.0
# Goes on when it is told to; the first round fails.
SCRIPT = """
import os
import undaunted
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for i in range(5):
    undaunted.step(i)
if not restarts:
    # Neither ends before the other has done its steps.
    if os.environ["WORLD_SIZE"] == "2":
        open("both", "r" if os.environ["RANK"] == "0" else "w").close()
    raise SystemExit(3)
if os.environ["RANK"] == "0":
    os.mkfifo("go")
    with undaunted.section("wait"):
        print("waiting", flush=True)
        with open("go") as go:
            go.read()
"""

RANK = """
    import os, signal, undaunted
    rank = os.environ["RANK"]
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if rank == "1":
            raise SystemExit(3)
        signal.pause()
    undaunted.step(int(rank))
    os.mkfifo("go" + rank)
    print("waiting", flush=True)
    with open("go" + rank) as go:
        go.read()
"""


def scrape(url: str) -> dict[str, float]:
    """Each sample by its name and labels, but for the run."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    of_run = re.compile(r',run_id="([^"]+)"')
    assert len({run for line in lines for run in of_run.findall(line)}) == 1
    return {of_run.sub("", name): float(value) for name, value in samples}


def test_a_scrape_of_a_running_job(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    options = ("--nproc-per-node", "2", "--max-restarts", "2", "--node-name", "n0")
    os.mkfifo(tmp_path / "both")
    with launched(tmp_path, SCRIPT, *options, "--metrics-port", "0") as launcher:
        url = launcher.wait_for(r"metrics: (http://127\.0\.0\.1:\d+/metrics)")[1]
        launcher.wait_for("waiting")
        found = scrape(url)
        (tmp_path / "go").write_text("")
        assert launcher.finish() == 0
    assert found['undaunted_round{node="n0"}'] == 1
    assert found['undaunted_restarts_total{node="n0"}'] == 1
    assert found['undaunted_failures_total{kind="crash",node="n0"}'] == 1
    assert found['undaunted_rank_iteration{node="n0",rank="0"}'] == 4
    assert found['undaunted_iteration{node="n0"}'] == 4
    assert found['undaunted_lost_steps_total{node="n0"}'] == 4
    assert 'undaunted_rank_section_open_seconds{node="n0",rank="0",section="wait"}' in found
    assert 0 < found['undaunted_goodput_ratio{node="n0"}'] < 1


def test_each_node_tells_of_its_own_ranks_and_one_of_the_job(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    options = ("--nnodes", "2", "--max-restarts", "1", "--metrics-port", "0")
    with nodes_of_a_job(tmp_path, RANK, *options) as start:
        one, two = start("one", "is_host=1"), start("two", "is_host=0")
        found: dict[str, float] = {}
        for launcher in (one, two):
            launcher.wait_for("waiting")
            url = launcher.wait_for(r"metrics: (http://127\.0\.0\.1:\d+/metrics)")[1]
            found |= scrape(url)
        (tmp_path / "go0").write_text("")
        (tmp_path / "go1").write_text("")
        assert (one.finish(), two.finish()) == (0, 0)
    assert found['undaunted_world_size{node="one"}'] == 2
    assert found['undaunted_rank_iteration{node="one",rank="0"}'] == 0
    assert found['undaunted_rank_iteration{node="two",rank="1"}'] == 1
    of_job = {name: value for name, value in found.items() if "_job_node_failures" in name}
    assert of_job == {'undaunted_job_node_failures_total{failed_node="two",node="one"}': 1}


def test_a_port_that_is_taken_is_said_before_any_rank_starts(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        port = str(other.server_address[1])
        with launched(tmp_path, SCRIPT, "--metrics-port", port) as launcher:
            assert launcher.finish() == 2
    assert f"metrics cannot be served at port {port} of 127.0.0.1" in launcher.text
    assert "choose another --metrics-port" in launcher.text
    assert not list(launcher.run_dir.glob("journal-*"))


class _Taking(http.server.BaseHTTPRequestHandler):
    bodies: queue.Queue[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.bodies.put((self.path, body))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_collector_gets_the_last_state_of_a_short_job(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    _Taking.bodies = queue.Queue()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Taking) as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{collector.server_address[1]}"
        try:
            script = "import undaunted\nundaunted.step(0)\n"
            options = ("--otlp-endpoint", "env")
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
            with launched(tmp_path, script, *options, **variables) as launcher:
                assert launcher.finish() == 0
            sent = dict(_Taking.bodies.get(timeout=WAIT_S) for _ in range(2))
        finally:
            collector.shutdown()
            thread.join(WAIT_S)
    request = ExportMetricsServiceRequest()
    request.ParseFromString(sent["/v1/metrics"])
    names = {metric.name for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    assert {"undaunted_run_info", "undaunted_run_exit_code", "undaunted_time_seconds"} <= names
    traces = ExportTraceServiceRequest()
    traces.ParseFromString(sent["/v1/traces"])
    spans = {span.name: span for span in traces.resource_spans[0].scope_spans[0].spans}
    assert set(spans) == {"undaunted.job", "undaunted.round"}
    assert spans["undaunted.round"].parent_span_id == spans["undaunted.job"].span_id
