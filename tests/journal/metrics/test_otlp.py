from __future__ import annotations

import pytest

from undaunted.journal.metrics.otlp import is_possible, metrics_url, spans_url, wants_spans


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:4318", "http://h:4318/v1/metrics"),
        ("http://h:4318/", "http://h:4318/v1/metrics"),
        ("https://h/otlp/v1/metrics", "https://h/otlp/v1/metrics"),
        ("env", None),
    ],
)
def test_where_metrics_go(endpoint: str, url: str | None) -> None:
    assert metrics_url(endpoint) == url
    assert spans_url(endpoint) == (url and url.replace("metrics", "traces"))


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        ("http://h:4318", {}, True),
        ("http://h:4318", {"OTEL_TRACES_EXPORTER": "none"}, False),
        ("env", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, True),
        ("env", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/t"}, True),
        ("env", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h/m"}, False),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, False),
    ],
)
def test_whether_spans_are_sent(endpoint: str, environ: dict[str, str], wanted: bool) -> None:
    assert wants_spans(endpoint, environ) == wanted


def test_the_packages_are_looked_for() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    assert is_possible()
