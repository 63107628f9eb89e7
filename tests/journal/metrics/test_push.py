"""A collector gets what it asks for by the protocol; without one, it is said once."""

from __future__ import annotations

import http.server
import queue
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.journal.metrics.exposition import Family
from undaunted.journal.metrics.push import Push, span_data
from undaunted.journal.metrics.spans import JobSpan

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 60.0


class Collector(http.server.ThreadingHTTPServer):
    """Takes requests, answers each with ``status``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.requests: queue.Queue[tuple[str, bytes]] = queue.Queue()
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Taking(http.server.BaseHTTPRequestHandler):
    """One request."""

    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.requests.put((self.path, body))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join(WAIT_S)


def some() -> list[Family]:
    return [
        Family("undaunted_failures_total", "Rounds.").add(2, node="n0", kind="hang"),
        Family("undaunted_run_duration_seconds", "Time.").add(3.5, node="n0"),
        Family("undaunted_x_seconds", "Times.").observe([1, 3], (2.0,), node="n0"),
    ]


def pushed(endpoint: str, **changes: Any) -> tuple[Push, list[str]]:
    said: list[str] = []
    given: dict[str, Any] = {"about": {"undaunted.node": "n0"}, "every_s": 0.01, **changes}
    return Push(endpoint, some, say=said.append, **given), said


def two_spans() -> list[JobSpan]:
    return [
        JobSpan("in-process restart", "restart 1", "job", 2_000, 3_000, {"round": 0}),
        JobSpan("job", "job", "", 1_000, 4_000, {"exit_code": 1}, "rank 1 crashed"),
    ]


def once(spans: list[JobSpan]) -> Callable[[], list[JobSpan]]:
    waiting = [spans]
    return lambda: waiting.pop() if waiting else []


def spans_in(body: bytes) -> Any:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    return request.resource_spans[0]


def decode(body: bytes) -> Any:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    request = ExportMetricsServiceRequest()
    request.ParseFromString(body)
    return request.resource_metrics[0]


def test_a_collector_gets_all_families() -> None:
    with collecting() as collector:
        push, said = pushed(collector.url)
        path, body = collector.requests.get(timeout=WAIT_S)
        assert push.close(WAIT_S)
    assert said == []
    assert path == "/v1/metrics"
    resource = decode(body)
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "undaunted"
    assert about["undaunted.node"] == "n0"
    failures, duration, histogram = resource.scope_metrics[0].metrics
    assert failures.name == "undaunted_failures_total"
    assert failures.sum.is_monotonic
    (point,) = failures.sum.data_points
    assert point.as_double == 2
    assert {one.key: one.value.string_value for one in point.attributes} == {
        "node": "n0",
        "kind": "hang",
    }
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    assert duration.unit == "s"
    assert duration.gauge.data_points[0].as_double == 3.5
    (buckets,) = histogram.histogram.data_points
    assert (buckets.count, buckets.sum) == (2, 4)
    assert (list(buckets.bucket_counts), list(buckets.explicit_bounds)) == ([1, 1], [2.0])
    assert [one.key for one in buckets.attributes] == ["node"]


def test_the_end_is_sent_as_well() -> None:
    with collecting() as collector:
        push, _ = pushed(collector.url, every_s=3600)
        assert push.close(WAIT_S)
        assert collector.requests.get(timeout=WAIT_S)[0] == "/v1/metrics"


def test_a_collector_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{collector.url}/below")
        push, _ = pushed("env")
        assert collector.requests.get(timeout=WAIT_S)[0] == "/below/v1/metrics"
        assert push.close(WAIT_S)


def test_a_collector_that_refuses_is_told_of_once() -> None:
    with collecting() as collector:
        collector.status = 400
        push, said = pushed(collector.url)
        for _ in range(3):
            collector.requests.get(timeout=WAIT_S)
        assert push.close(WAIT_S)
    assert len(said) == 1
    assert f"could not be sent to {collector.url}/v1/metrics" in said[0]
    assert "400" in said[0]


def test_no_collector() -> None:
    with collecting() as collector:
        url = collector.url
    heard = threading.Event()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    push = Push(url, some, about={}, say=say, every_s=3600, send_s=0.05)
    assert push.close(WAIT_S)
    assert heard.is_set()
    assert "the job goes on" in said[0]


def test_metrics_that_cannot_be_read() -> None:
    def broken() -> list[Family]:
        raise ValueError("no pages")

    said: list[str] = []
    push = Push("http://127.0.0.1:1", broken, about={}, say=said.append, every_s=3600)
    assert push.close(WAIT_S)
    assert "ValueError: no pages" in said[0]


def test_a_collector_gets_spans() -> None:
    with collecting() as collector:
        push, said = pushed(collector.url, every_s=3600, spans=once(two_spans()), trace="demo")
        assert push.close(WAIT_S)
        sent = dict(collector.requests.get(timeout=WAIT_S) for _ in range(2))
    assert said == []
    found = spans_in(sent["/v1/traces"])
    about = {one.key: one.value.string_value for one in found.resource.attributes}
    assert about["undaunted.node"] == "n0"
    restart, job = found.scope_spans[0].spans
    assert (restart.name, job.name) == ("undaunted.inprocess_restart", "undaunted.job")
    assert restart.parent_span_id == job.span_id
    assert job.parent_span_id == b""
    assert restart.trace_id == job.trace_id
    assert (job.start_time_unix_nano, job.end_time_unix_nano) == (1_000, 4_000)
    assert (job.status.code, job.status.message) == (2, "rank 1 crashed")
    assert restart.status.code == 0
    assert job.attributes[0].key == "undaunted.exit_code"


def test_launchers_of_one_job_share_a_trace_and_no_span() -> None:
    one, two = (
        span_data(two_spans(), {"service.instance.id": node}, "demo") for node in ("n0", "n1")
    )
    assert one[0].context.trace_id == two[0].context.trace_id
    assert len({span.context.span_id for span in (*one, *two)}) == 4
    (other, _) = span_data(two_spans(), {"service.instance.id": "n0"}, "another")
    assert other.context.trace_id != one[0].context.trace_id


def test_where_no_span_has_ended_nothing_is_sent() -> None:
    with collecting() as collector:
        push, said = pushed(collector.url, every_s=3600, spans=list)
        assert push.close(WAIT_S)
        assert collector.requests.get(timeout=WAIT_S)[0] == "/v1/metrics"
        assert collector.requests.empty()
    assert said == []


def test_no_collector_for_spans() -> None:
    with collecting() as collector:
        url = collector.url
    push, said = pushed(url, every_s=3600, send_s=0.05, spans=two_spans)
    assert push.close(WAIT_S)
    assert [text.split(" ", 1)[0] for text in said] == ["metrics", "spans"]
    assert f"{url}/v1/traces" in said[1]
