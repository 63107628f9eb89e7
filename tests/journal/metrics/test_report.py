from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.journal.sample import RUN
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.rank_time import Price
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.metrics.families import render_prometheus, report_families
from undaunted.journal.reader import Journal

pytest.importorskip("prometheus_client")


def journals() -> list[Journal]:
    """Two nodes; the first has an earlier launch as well."""
    opened = msgspec.structs.replace(RUN[0], pid=41)
    earlier = [opened, RUN[1]]
    other = [msgspec.structs.replace(event, node="n1") for event in RUN]
    return [Journal(Path("a"), [*earlier, *RUN]), Journal(Path("b"), other)]


def samples(of: list[Journal]) -> dict[str, dict[tuple[str, ...], float]]:
    launches = launches_of(of)
    job = summarize_job(launches, price=Price(2.0, "EUR"))
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in report_families(job, launches)
    }


def test_the_job() -> None:
    found = samples([Journal(Path("a"), RUN)])
    assert found["undaunted_job_info"] == {("demo", "finished"): 1}
    assert found["undaunted_job_failures_total"]["crash",] == 1
    assert found["undaunted_job_lost_steps_total"] == {(): 60}
    assert found["undaunted_job_restarts_total"] == {(): 2}
    assert 0 < found["undaunted_job_goodput_ratio"][()] < 1
    assert found["undaunted_job_cost"]["productive", "EUR"] > 0


def test_its_nodes() -> None:
    found = samples(journals())
    assert found["undaunted_round"] == {("n0", "demo"): 2, ("n1", "demo"): 2}
    assert found["undaunted_failures_total"]["hang", "n1", "demo"] == 1


def test_counts_are_of_the_last_launch() -> None:
    found = samples(journals())
    assert found["undaunted_journal_events_total"]["journal_opened", "n0", "demo"] == 1


def test_a_text_that_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    launches = launches_of(journals())
    text = render_prometheus(summarize_job(launches), launches)
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert "undaunted_job_cost" not in names


def test_journals_without_events() -> None:
    launches = launches_of([Journal(Path("a"))])
    assert "undaunted_job_info" in render_prometheus(summarize_job(launches), launches)
