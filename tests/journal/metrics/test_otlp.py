from __future__ import annotations

import pytest

from undaunted.journal.metrics.otlp import is_possible, metrics_url


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


def test_the_packages_are_looked_for() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    assert is_possible()
