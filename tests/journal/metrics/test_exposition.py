from __future__ import annotations

import pytest

from undaunted.journal.metrics.exposition import Family, exposition, is_possible

pytest.importorskip("prometheus_client")


def sample_families() -> list[Family]:
    return [
        Family("undaunted_failures_total", "Rounds.").add(2, node='a"\n', kind="hang"),
        Family("undaunted_round", "Number.").add(3, node="a"),
    ]


def test_the_plain_format() -> None:
    text, kind = exposition(sample_families())
    assert kind.startswith("text/plain")
    assert text.decode().splitlines() == [
        "# HELP undaunted_failures_total Rounds.",
        "# TYPE undaunted_failures_total counter",
        'undaunted_failures_total{kind="hang",node="a\\"\\n"} 2.0',
        "# HELP undaunted_round Number.",
        "# TYPE undaunted_round gauge",
        'undaunted_round{node="a"} 3.0',
    ]


def test_a_histogram_counts_what_is_below_each_bound() -> None:
    family = Family("undaunted_x_seconds", "Times.")
    text, _ = exposition([family.observe([0.1, 0.5, 3.0], (0.5, 1), node="a")])
    assert text.decode().splitlines()[1:] == [
        "# TYPE undaunted_x_seconds histogram",
        'undaunted_x_seconds_bucket{le="0.5",node="a"} 2.0',
        'undaunted_x_seconds_bucket{le="1",node="a"} 2.0',
        'undaunted_x_seconds_bucket{le="+Inf",node="a"} 3.0',
        'undaunted_x_seconds_sum{node="a"} 3.6',
        'undaunted_x_seconds_count{node="a"} 3.0',
    ]
    assert not Family("undaunted_x_seconds", "Times.").observe([], (1,)).samples


def test_openmetrics_for_who_asks_for_it() -> None:
    text, kind = exposition(sample_families(), "application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_it_reads_back() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text, _ = exposition(sample_families())
    (failures, number) = text_string_to_metric_families(text.decode())
    assert failures.samples[0].labels == {"node": 'a"\n', "kind": "hang"}
    assert number.samples[0].value == 3


def test_the_package_is_looked_for() -> None:
    assert is_possible()
