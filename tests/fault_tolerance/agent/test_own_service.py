"""An attribution service that the launcher starts and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.base import process
from undaunted.fault_tolerance.agent.own_service import OwnService

DEADLINE_S = 60.0


def config(tmp_path: Path, export_url: str | None = None) -> Any:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("0: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n")
    run_dir = tmp_path / ("long" * 40) / "run"  # longer than a Unix socket's path may be
    run_dir.mkdir(parents=True)
    return SimpleNamespace(
        run_dir=str(run_dir),
        node="n/0",
        applog_prefix=str(logs / "train.log"),
        ft=SimpleNamespace(attribution_export_url=export_url),
    )


def asked(service: OwnService, path: str, token: bytes) -> tuple[int, Any]:
    host = service.url.removeprefix("http://")
    connection = HTTPConnection(host, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token.decode()}"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.e2e
@on_loop
async def test_results_are_sent_where_the_launcher_is_told_to(tmp_path: Path) -> None:
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.put_nowait(await reader.readuntil(b"}"))
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/results"
    service = OwnService(config(tmp_path, url), print)
    path = f"/logs?log_path={tmp_path}/logs/a.log"
    await asyncio.to_thread(asked, service, path, service.token)
    sent = await asyncio.wait_for(got.get(), DEADLINE_S)
    assert sent.startswith(b"POST /results HTTP/1.1\r\n")
    assert b"a.log" in sent
    await service.close()
    server.close()
    await server.wait_closed()


@pytest.mark.e2e
@on_loop
async def test_it_is_there_until_closed(tmp_path: Path) -> None:
    said: list[str] = []
    service = OwnService(config(tmp_path), said.append)
    path = f"/logs?log_path={tmp_path}/logs/a.log"
    assert asked(service, path, b"another token")[0] == 401
    status, answer = asked(service, path, service.token)
    assert (status, answer["recommendation"]["action"]) == (200, "RESTART")
    ((pid, start),) = service.processes()
    assert process.start_time(pid) == start
    assert process.descendants(pid)
    await service.close()
    assert service.processes() == set()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert said == []


@pytest.mark.e2e
@on_loop
async def test_one_that_ends_is_said_and_nothing_else(tmp_path: Path) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    service = OwnService(config(tmp_path), said.put_nowait)
    ((pid, _),) = service.processes()
    os.kill(pid, signal.SIGKILL)
    assert "the job goes on without" in await asyncio.wait_for(said.get(), DEADLINE_S)
    with pytest.raises(OSError, match="refused"):
        asked(service, "/healthz", service.token)
    await service.close()
    assert said.empty()


@on_loop
async def test_one_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    about = config(tmp_path)
    (Path(about.run_dir) / "attribution-n_0").touch()
    service = OwnService(about, said.append)
    assert "cannot be started" in said[0], said
    assert service.processes() == set()
    await service.close()
