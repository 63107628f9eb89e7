"""Routes, codes, tokens and rates of the service, asked as clients do, without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.coordinator.wire.talk import on_loop
from tests.services.test_service import OOM, Place
from undaunted.services.http import Rate, make_app

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = b"0123456789abcdef"


class Client:
    """Asks an application over a place of logs."""

    def __init__(self, directory: Path, *, base: str = "http://127.0.0.1", **options: Any) -> None:
        self.place = Place(directory)
        app = make_app(self.place.service, **options)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=base)

    async def get(self, url: str, **query: Any) -> Any:
        return await self.http.get(url, params=query or None)

    async def code(self, url: str, **query: Any) -> tuple[int, str]:
        return code(await self.get(url, **query))

    async def close(self) -> None:
        await self.http.aclose()
        await self.place.service.close()


def code(response: httpx.Response) -> tuple[int, str]:
    said = response.json()
    assert said.keys() == {"error_code", "message"}
    assert said["message"]
    return response.status_code, said["error_code"]


@on_loop
async def test_a_log_is_submitted_and_asked_about(tmp_path: Path) -> None:
    client = Client(tmp_path)
    path = client.place.put("a.log", findings=(OOM,), step=5)
    said = await client.http.post("/logs", json={"log_path": path, "user": "me", "job_id": "7"})
    assert (said.status_code, said.json()["normalized_path"]) == (200, path)
    answer = (await client.get("/logs", log_path=path)).json()
    assert (answer["status"], answer["recommendation"]["action"]) == ("completed", "RESTART")
    assert (await client.get("/logs", log_path=path, wait="false")).json() == answer
    assert (await client.get("/logs", log_path=f"{tmp_path}/logs/b", file="a.log")).json() == answer
    assert (await client.get("/print", log_path=path)).text == "content\n"
    jobs = (await client.get("/jobs", mode="single", limit=1)).json()
    assert (jobs["total"], jobs["limit"], jobs["offset"]) == (1, 1, 0)
    assert jobs["jobs"][0]["job_id"] == "7"
    assert (await client.get("/inflight")).json() == {"inflight": []}
    assert (await client.get("/healthz")).json() == {"status": "ok", "issues": []}
    assert (await client.get("/stats")).json()["submitted"] == 1
    await client.close()


@on_loop
async def test_codes_of_what_is_refused(tmp_path: Path) -> None:
    client = Client(tmp_path)
    empty = client.place.put("empty", "")
    for path, expected in {
        "/etc/passwd": (403, "outside_root"),
        f"{tmp_path}/logs/../gone": (403, "outside_root"),
        f"{tmp_path}/logs/gone": (404, "not_found"),
        f"{tmp_path}/logs": (400, "not_regular"),
        empty: (400, "empty_file"),
        "logs/a": (400, "invalid_path"),
        "": (400, "invalid_path"),
    }.items():
        assert await client.code("/logs", log_path=path) == expected, path
        assert code(await client.http.post("/logs", json={"log_path": path})) == expected, path
    assert await client.code("/print", log_path="/etc/passwd") == (403, "outside_root")
    path = client.place.put("a.log")
    for number in (1, -1):
        asked = client.code("/logs", log_path=path, wl_restart=number)
        assert await asked == (404, "not_found"), number
    for fr_path, expected in {
        f"{tmp_path}/logs/gone": (404, "fr_dump_not_found"),
        f"{tmp_path}/logs": (404, "fr_dump_not_found"),
        path: (404, "fr_dump_not_found"),
        "/proc/self": (403, "outside_root"),
    }.items():
        said = await client.http.post("/logs", json={"log_path": path, "fr_path": fr_path})
        assert code(said) == expected, fr_path
    assert (await client.get("/stats")).json()["refused"] == 21
    await client.close()


@on_loop
async def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for content in (b"", b"no json", b"[]", b'{"log_path": 7}', b"\xff", b"[" * 10_000):
        said = await client.http.post("/logs", content=content)
        assert code(said) == (400, "invalid_request"), content[:20]
    path = client.place.put("a.log")
    for about in ({"cycle_id": "x"}, {"cycle_id": -1}, {"cycle_id": 10**9}, {"cycle_id": True}):
        said = await client.http.post("/logs", json={"log_path": path, **about})
        assert code(said) == (400, "invalid_request"), about
    said = await client.http.post("/logs", json={"log_path": path, "analysis_intent": "now"})
    assert code(said) == (400, "invalid_request")
    for url in (
        *("/logs", "/logs?log_path=/a&wait=perhaps", "/logs?log_path=/a&wl_restart=x"),
        *("/jobs?limit=0", "/jobs?limit=1001", "/jobs?mode=foo"),
    ):
        assert await client.code(url) == (400, "invalid_request"), url
    assert await client.code("/gone") == (404, "not_found")
    assert code(await client.http.put("/logs")) == (405, "not_allowed")
    await client.close()


@on_loop
async def test_the_routes_are_described(tmp_path: Path) -> None:
    client = Client(tmp_path)
    described = (await client.get("/openapi.json")).json()
    assert {"/logs", "/print", "/healthz", "/stats", "/jobs", "/inflight"} <= set(
        described["paths"]
    )
    body = described["paths"]["/logs"]["post"]["requestBody"]["content"]["application/json"]
    assert "log_path" in body["schema"]["properties"]
    assert "$ref" not in str(body)
    assert "/openapi.json" in (await client.get("/docs")).text
    await client.close()


@on_loop
async def test_a_body_that_does_not_end_is_cut_short(tmp_path: Path) -> None:
    client = Client(tmp_path)
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 4096

    assert code(await client.http.post("/logs", content=endless())) == (413, "too_long")
    assert sent < 20
    await client.close()


@pytest.mark.parametrize(
    "path", ["/healthz", "/logs?log_path=/etc/passwd", "/stats", "/openapi.json", "/gone"]
)
@on_loop
async def test_without_the_token_nothing_is_answered(tmp_path: Path, path: str) -> None:
    client = Client(tmp_path, base="http://node7:8000", token=TOKEN)
    for header in (None, "Bearer", "Bearer x", "Basic 0123456789abcdef", "Bearer 0123456789abcdeF"):
        headers = {} if header is None else {"Authorization": header}
        said = await client.http.get(path, headers=headers)
        assert code(said) == (401, "unauthorized"), header
        assert said.headers["www-authenticate"] == "Bearer"
    said = await client.http.get(path, headers={"Authorization": "bearer 0123456789abcdef"})
    assert said.status_code in {200, 403, 404}
    await client.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("http://localhost", 200), ("http://127.0.0.1:8000", 200), ("http://127.1.2.3", 200)),
        *(("http://[::1]", 200), ("http://[::1]:8000", 200)),
        *(("http://evil.example", 403), ("http://localhost.evil.example:8000", 403)),
        *(("http://10.0.0.1", 403), ("http://[fe80::1]:80", 403)),
    ],
)
@on_loop
async def test_without_a_token_only_addresses_of_loopback_are_answered(
    tmp_path: Path, host: str, status: int
) -> None:
    client = Client(tmp_path, base=host)
    assert (await client.get("/healthz")).status_code == status
    await client.close()


@on_loop
async def test_insecure_answers_anybody(tmp_path: Path) -> None:
    client = Client(tmp_path, base="http://node7", anybody=True)
    assert (await client.get("/healthz")).status_code == 200
    await client.close()


@on_loop
async def test_rates(tmp_path: Path) -> None:
    client = Client(tmp_path, submits=3, analyses=2, previews=1)
    paths = [client.place.put(name) for name in ("a", "b", "c")]
    for path in paths[:2]:
        for _ in range(5):  # what is known costs nothing
            assert (await client.get("/logs", log_path=path)).status_code == 200
    assert await client.code("/logs", log_path=paths[2]) == (429, "rate_limited")
    for _ in range(3):
        assert (await client.http.post("/logs", json={"log_path": paths[2]})).status_code == 200
    assert code(await client.http.post("/logs", json={"log_path": paths[2]})) == (
        *(429, "rate_limited"),
    )
    assert (await client.get("/print", log_path=paths[0])).status_code == 200
    assert await client.code("/print", log_path=paths[0]) == (429, "rate_limited")
    await client.close()


@on_loop
async def test_an_error_of_ours_is_told_without_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path)
    monkeypatch.setattr(client.place.service, "stats", lambda: {}["secret"])
    assert await client.code("/stats") == (500, "internal")
    await client.close()


def test_a_rate_of_each_client() -> None:
    rate = Rate(60)
    assert [rate.wait_s("a", 0.0) for _ in range(61)] == [0.0] * 60 + [1.0]
    assert rate.wait_s("b", 0.0) == 0
    assert rate.wait_s("a", 0.5) == pytest.approx(0.5)
    assert rate.wait_s("a", 1.0) == 0
    assert rate.wait_s("a", 1.0) == pytest.approx(1.0)
    assert [rate.wait_s("a", 1e6) for _ in range(61)][-2:] == [0.0, pytest.approx(1.0)]
    for number in range(5000):
        rate.wait_s(str(number), 1e6)
    assert len(rate._left) == 4096
    assert all(Rate(0).wait_s("a", 0.0) == 0 for _ in range(1000))


@on_loop
async def test_nothing_need_be_said_of_a_log_but_its_path(tmp_path: Path) -> None:
    client = Client(tmp_path)
    path = client.place.put("a.log")
    names = ("user", "job_id", "cycle_id", "analysis_intent", "fr_path")
    for nothing in ("", None):
        said = {"log_path": path, **dict.fromkeys(names, nothing)}
        assert (await client.http.post("/logs", json=said)).status_code == 200
    (row,) = (await client.get("/jobs")).json()["jobs"]
    assert (row["user"], row["job_id"], row["cycle_id"], row["mode"]) == ("", None, None, "PENDING")
    await client.close()
