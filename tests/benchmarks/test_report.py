from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import report, simulated_job
from undaunted.journal.reader import read_journal

if TYPE_CHECKING:
    from pathlib import Path


def test_a_seed_gives_the_same_journals(tmp_path: Path) -> None:
    size = {"nodes": 2, "slots": 2, "restarts": 3}
    job, again = (simulated_job.simulate(**size, seed=4) for _ in range(2))
    assert [node.events for node in job.nodes] == [node.events for node in again.nodes]
    files = simulated_job.write(job, tmp_path)
    for node, file in zip(job.nodes, files, strict=True):
        journal = read_journal(file)
        assert journal.events == node.events
        assert (journal.unreadable, journal.unknown) == (0, 0)


def test_nothing_happens_before_what_it_comes_after() -> None:
    for seed in range(5):
        for node in simulated_job.simulate(nodes=2, slots=2, restarts=5, seed=seed).nodes:
            rounds = [event.round for event in node.events if event.round >= 0]
            assert rounds == sorted(rounds)


@pytest.mark.e2e
def test_every_way_to_call_the_report_is_measured(tmp_path: Path) -> None:
    simulated_job.write(simulated_job.simulate(nodes=2, slots=2, restarts=1), tmp_path / "journals")
    results = report.measure(tmp_path, 1)
    assert all(took.wall_s > 0 < took.cpu_s for [took] in results.values())
    assert results.keys() == report.WAYS.keys()
