"""The agent's side: events go in, a scraper gets metrics."""

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
from tests.fault_tolerance.agent.round.test_environment import CONFIG, START
from undaunted.fault_tolerance.agent.telling.metrics import Metrics
from undaunted.fault_tolerance.metrics_access import listen
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE, MetricsConfig
from undaunted.journal import events as e
from undaunted.journal.writer import JournalWriter
from undaunted.progress.area import PageArea

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("prometheus_client")

WAIT_S = 30.0


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
def running(tmp_path: Path, wanted: MetricsConfig | None) -> Iterator[Running]:
    config = msgspec.structs.replace(CONFIG, metrics=wanted)
    said: list[str] = []
    journal = JournalWriter(tmp_path / "j", node="a")
    listener = None if wanted is None else listen(wanted)
    with PageArea.create(4) as area:
        metrics = Metrics(config, listener, area, journal, said.append, lambda: True)
        metrics.open()
        try:
            yield Running(metrics, journal, said)
        finally:
            asyncio.run(metrics.close())
            assert journal.close(WAIT_S)


def begun(it: Running) -> None:
    rank: Any = SimpleNamespace(start=START, rank=lambda local: START.first_rank + local)
    it.metrics.begin_round(rank)
    it.journal.record(e.RoundStarted(t=1, round=0, world_size=8, ranks=[4, 5, 6, 7]))


def test_events_and_pages(tmp_path: Path) -> None:
    with running(tmp_path, MetricsConfig(port=0)) as it:
        begun(it)
        it.journal.record(e.RoundBlamed(t=2, number=0, node="b", line="gone"))
        body = it.scrape()
    assert 'undaunted_job_node_failures_total{failed_node="b",node="a"} 1.0' in body
    assert 'undaunted_world_size{node="a"} 8.0' in body
    assert 'undaunted_journal_events_total{event="round_started",node="a"} 1.0' in body
    assert 'undaunted_rank_phase{node="a",phase="empty",rank="7"} 1.0' in body
    assert 'version="0' in body


def test_nobody_wants_any(tmp_path: Path) -> None:
    with running(tmp_path, None) as it:
        begun(it)
        assert it.journal.also is None
        assert it.said == []


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
