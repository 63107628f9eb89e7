"""The page of metrics names all of them with their labels, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.journal.sample import MS, RUN, at
from tests.journal.test_launch import told
from undaunted.journal import events as e
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.rank_time import Price
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.launch import LaunchState
from undaunted.journal.metrics.families import Now, RankNow, families, job_families
from undaunted.journal.reader import Journal

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROWS = [line.split("|") for line in PAGE.splitlines() if line.startswith("| `undaunted_")]
RANK = RankNow(
    rank=0,
    phase="stepping",
    iteration=1,
    step_s=1.0,
    heartbeat_age_s=1.0,
    heartbeat_longest_s=1.0,
    sections={"x": 1.0},
)
BLAMED = e.RoundBlamed(t=1, number=0, node="other", line="")
EVENTS = [
    *RUN,
    told("saved step=1"),
    at(1, e.NodeChecked),
    at(1, e.LimitsChanged, limits={"heartbeat": 1.0}),
    at(1, e.RankEventsLost, rank=1, count=1),
    at(1, e.SlowRank, rank=0, on="n0", line="rank 0 is slow", slower=0.2),
    BLAMED,
]


def names(cell: str) -> list[str]:
    return re.findall(r"`(undaunted_\w+)`", cell)


def test_every_metric_is_described_with_its_labels() -> None:
    job = summarize_job(launches_of([Journal(Path("j"), RUN)]), price=Price(1.0, "EUR"))
    found = [
        *families(LaunchState.of(EVENTS), "n", Now(9999 * MS, (RANK,), leads=True)),
        *job_families(job),
    ]
    described = {name: row for row in ROWS for name in names(row[1])}
    assert described.keys() == {family.name for family in found}
    for family in found:
        labels = family.samples[0].labels.keys() - {"node", "run_id"}
        assert all(f"`{label}`" in described[family.name][2] for label in labels), family.name


def test_names_elsewhere_on_the_page_are_right() -> None:
    described = {name for row in ROWS for name in names(row[1])}
    assert set(re.findall(r"undaunted_[a-z_]+[a-z]", PAGE)) <= described


def test_configurations_on_the_page_can_be_read() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    scrape, alerts = blocks
    assert scrape["scrape_configs"][0]["job_name"]
    (group,) = alerts["groups"]
    assert all(rule.keys() == {"alert", "expr", "annotations"} for rule in group["rules"])
