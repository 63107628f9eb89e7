"""Metrics of a launcher, and what pages become in them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import re
import ssl
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.coordinator.wire.certificates import make_certificate
from tests.fault_tolerance.agent.test_environment import CONFIG, START
from undaunted.fault_tolerance.agent.metrics import Metrics, now_of
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE, MetricsConfig, listen
from undaunted.journal import events as e
from undaunted.journal.metrics.families import Now, RankNow
from undaunted.journal.writer import JournalWriter
from undaunted.progress.area import PageArea
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("prometheus_client")

WAIT_S = 30.0
S = 1_000_000_000
PAGE = PageSnapshot(
    pid=1,
    phase=Phase.STEPPING,
    heartbeat_ns=90 * S,
    heartbeat_max_ns=3 * S,
    iteration=25,
    iteration_ns=80 * S,
    first_iteration=5,
    first_step_ns=40 * S,
    sections={
        "open": SectionSnapshot("open", open_since_ns=99 * S),
        "closed": SectionSnapshot("closed", count=3),
    },
)


@dataclasses.dataclass
class Running:
    metrics: Metrics
    journal: JournalWriter
    said: list[str]

    def scrape(self, token: str = "", tls: ssl.SSLContext | None = None) -> str:
        """Status and body."""
        place = re.fullmatch(r"metrics: https?://(.*):(\d+)/metrics", self.said[0])
        assert place is not None
        where, port = place[1], int(place[2])
        if tls is None:
            connection = http.client.HTTPConnection(where, port, timeout=WAIT_S)
        else:
            connection = http.client.HTTPSConnection(where, port, timeout=WAIT_S, context=tls)
        with contextlib.closing(connection):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request("GET", "/metrics", headers=headers)
            with connection.getresponse() as answer:
                return f"{answer.status}\n{answer.read().decode()}"


@contextlib.contextmanager
def running(tmp_path: Path, wanted: MetricsConfig) -> Iterator[Running]:
    config = msgspec.structs.replace(CONFIG, metrics=wanted)
    said: list[str] = []
    journal = JournalWriter(tmp_path / "j", node="a")
    listener = listen(wanted)
    orders: Any = SimpleNamespace(leads=True)
    with PageArea.create(4) as area:
        metrics = Metrics(config, listener, area, journal, said.append, orders)
        metrics.open()
        try:
            yield Running(metrics, journal, said)
        finally:
            asyncio.run(metrics.close())
            assert journal.close(WAIT_S)


def begun(it: Running) -> None:
    rank: Any = SimpleNamespace(start=START, rank=lambda local: START.first_rank + local)
    it.metrics.round_begins(rank)
    it.journal.record(e.RoundStarted(t=1, round=0, world_size=8, ranks=[4, 5, 6, 7]))


def test_events_and_pages(tmp_path: Path) -> None:
    with running(tmp_path, MetricsConfig(port=0)) as it:
        begun(it)
        it.journal.record(e.RoundBlamed(t=2, number=0, node="b", line="gone"))
        body = it.scrape()
    assert 'undaunted_job_node_failures_total{failed_node="b",node="a",run_id=""} 1.0' in body
    assert 'undaunted_world_size{node="a",run_id=""} 8.0' in body
    assert 'undaunted_journal_events_total{event="round_started",node="a",run_id=""} 1.0' in body
    assert 'undaunted_rank_phase{node="a",phase="empty",rank="7",run_id=""} 1.0' in body
    assert 'version="0' in body


def test_token_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "0123456789abcdef")
    made = make_certificate(tmp_path, "server", "IP:127.0.0.1")
    wanted = MetricsConfig(port=0, tls_cert=str(made.cert), tls_key=str(made.key))
    trusting = ssl.create_default_context(cafile=str(made.cert))
    with running(tmp_path, wanted) as it:
        begun(it)
        assert it.scrape("0123456789abcdef", trusting).startswith("200\n# HELP")
        assert it.scrape("0123456789abcdeX", trusting).startswith("401")
        with pytest.raises((OSError, http.client.HTTPException)):
            it.scrape("0123456789abcdef")
    assert it.said[0].startswith("metrics: https://127.0.0.1:")


def test_a_token_that_is_gone_by_now(tmp_path: Path) -> None:
    wanted = MetricsConfig(port=0, token_file=str(tmp_path / "none"))
    with running(tmp_path, wanted) as it:
        assert "metrics are not served: token file" in it.said[0]


def test_a_rank_in_the_middle_of_its_work() -> None:
    now = now_of({7: PAGE}, 100 * S, 2)
    assert now == Now(
        t=100 * S,
        steps=(5, 25, 80 * S),
        events_lost=2,
        ranks=(
            RankNow(
                rank=7,
                phase="stepping",
                iteration=25,
                step_s=2.0,
                heartbeat_age_s=10.0,
                heartbeat_longest_s=3.0,
                sections={"open": 1.0},
            ),
        ),
    )


def test_the_farthest_rank_tells_how_far_the_node_is() -> None:
    behind = dataclasses.replace(PAGE, iteration=24, iteration_ns=85 * S, first_iteration=4)
    assert now_of({0: PAGE, 1: behind}, 100 * S, 0).steps == (4, 25, 80 * S)


@pytest.mark.parametrize(
    "changes",
    [{"first_step_ns": None}, {"iteration": 5}, {"iteration": 3}, {"first_iteration": None}],
)
def test_a_step_time_that_is_not_known(changes: dict[str, int | None]) -> None:
    (rank,) = now_of({0: dataclasses.replace(PAGE, **changes)}, 100 * S, 0).ranks
    assert rank.step_s is None


def test_pages_that_say_little_or_nonsense() -> None:
    assert now_of({0: PageSnapshot()}, 1, 0).ranks == (RankNow(rank=0, phase="empty", sections={}),)
    assert now_of({0: PageSnapshot(problem="damaged")}, 1, 0) == Now(t=1)
    future = dataclasses.replace(PAGE, heartbeat_ns=200 * S)
    assert now_of({0: future}, 100 * S, 0).ranks[0].heartbeat_age_s == 0
