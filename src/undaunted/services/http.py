"""The attribution service over HTTP, with the routes, answers and codes of NVRx's."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from undaunted import __version__
from undaunted.base.text import one_line
from undaunted.services.service import AttributionService, ServiceError, Submission

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

_LONGEST_BODY = 64 << 10
_MOST_CLIENTS = 4096  # whose rates are known
_STATUS = {
    "invalid_path": 400,
    "not_regular": 400,
    "empty_file": 400,
    "invalid_request": 400,
    "unauthorized": 401,
    "outside_root": 403,
    "not_readable": 403,
    "logs_dir_not_readable": 403,
    "wrong_host": 403,
    "not_found": 404,
    "fr_dump_not_found": 404,
    "not_allowed": 405,
    "too_long": 413,
    "rate_limited": 429,
    "job_limit_reached": 503,
    "busy": 503,
}
_, _SCHEMAS = msgspec.json.schema_components([Submission])
_BODY = {"content": {"application/json": {"schema": _SCHEMAS["Submission"]}}, "required": True}
_CODES = {404: "not_found", 405: "not_allowed"}


class Rate:
    """So many requests a minute of each client; a minute's worth may come at once.

    Args:
        per_minute: of one client; 0 = any number.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # and since when

    def wait_s(self, client: str, now: float) -> float:
        """Count a request; return 0, or after how many seconds it may come again."""
        if not self._per_minute:
            return 0.0
        left, since = self._left.pop(client, (float(self._per_minute), now))
        per_s = self._per_minute / 60
        left = min(float(self._per_minute), left + (now - since) * per_s)
        self._left[client] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / per_s


class Gate:
    """Stands before all routes: who may ask, and how long a request may be.

    Args:
        app: what is behind it.
        token: what requests must carry, b"" = nothing: then their host must be an address of this
            machine, or ``localhost``, unless `anybody`.
        service: counts requests that are refused.
        anybody: whether requests without a token may come for any host.
    """

    def __init__(
        self, app: ASGIApp, token: bytes, service: AttributionService, *, anybody: bool
    ) -> None:
        self._app = app
        self._token = token
        self._anybody = anybody
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if refusal := self._refusal(headers):
            await _refused(self._service, *refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Mapping[bytes, bytes]) -> tuple[str, str] | None:
        if self._token:
            given = headers.get(b"authorization", b"")
            scheme, _, token = given.partition(b" ")
            is_right = hmac.compare_digest(token.strip(), self._token)
            if scheme.lower() != b"bearer" or not is_right:
                return "unauthorized", "send the token: Authorization: Bearer TOKEN"
        elif not self._anybody and not _is_here(headers.get(b"host", b"")):
            return "wrong_host", "without a token, ask localhost or an address of loopback"
        return None


def _is_here(host: bytes) -> bool:
    """Return whether a request names this machine by its address: browsers may get other names."""
    name = host.decode("latin-1").rpartition(":")[0] or host.decode("latin-1")
    if host.endswith(b"]"):
        name = host.decode("latin-1")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def make_app(
    service: AttributionService,
    *,
    token: bytes = b"",
    anybody: bool = False,
    submits: int = 1200,
    analyses: int = 60,
    previews: int = 120,
) -> ASGIApp:
    """Return the service as an application.

    Args:
        service: begun and closed with the application.
        token: that every request must carry, b"" = none.
        anybody: whether requests without a token may come from other machines.
        submits: logs that a client may submit a minute; 0 = any number.
        analyses: questions that make a log be read, likewise.
        previews: beginnings of logs, likewise.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.begin()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(title="undaunted serve", version=__version__, lifespan=lifespan, redoc_url=None)
    _add_looks(app, service)
    _add_logs(app, service, Rate(submits), Rate(analyses), Rate(previews))
    _add_refusals(app, service)
    return Gate(app, token, service, anybody=anybody)


def _add_looks(app: FastAPI, service: AttributionService) -> None:
    """Add what shows how the service is doing."""

    @app.get("/healthz")
    async def healthz() -> JSONResponse:
        health = service.health()
        return JSONResponse(health, 503 if health["status"] == "fail" else 200)

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        return service.stats()

    @app.get("/jobs")
    async def jobs(
        mode: str = "", limit: int = Query(100, ge=1, le=1000), offset: int = Query(0, ge=0)
    ) -> dict[str, Any]:
        return {**service.jobs(mode.upper(), limit, offset), "limit": limit, "offset": offset}

    @app.get("/inflight")
    async def inflight() -> dict[str, Any]:
        return service.in_flight()


def _add_logs(
    app: FastAPI, service: AttributionService, submits: Rate, analyses: Rate, previews: Rate
) -> None:
    """Add what is about one log."""

    @app.post("/logs", openapi_extra={"requestBody": _BODY})
    async def submit(request: Request) -> dict[str, Any]:
        _count(submits, request)
        return await service.submit(await _submission(request))

    @app.get("/logs")
    async def ask(
        request: Request,
        log_path: str,
        file: str = "",
        wl_restart: int | None = None,
        wait: bool = True,
    ) -> JSONResponse:
        seen = await (service.find(log_path, file) if file else service.look(log_path))
        if service.would_read(seen):
            _count(analyses, request)
        return JSONResponse(await service.ask(seen, wait=wait, restart=wl_restart))

    @app.get("/print")
    async def head(request: Request, log_path: str) -> PlainTextResponse:
        _count(previews, request)
        return PlainTextResponse((await service.head(log_path)).decode(errors="replace"))


def _add_refusals(app: FastAPI, service: AttributionService) -> None:
    """Give all errors the same form."""

    @app.exception_handler(ServiceError)
    async def refuse(_: Request, error: ServiceError) -> JSONResponse:
        return _refused(service, error.code, str(error))

    @app.exception_handler(RequestValidationError)
    async def misunderstood(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return _refused(service, "invalid_request", f"{where}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def nothing_here(_: Request, error: HTTPException) -> JSONResponse:
        return _refused(service, _CODES.get(error.status_code, "invalid_request"), error.detail)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> JSONResponse:
        return _refused(service, "internal", type(error).__name__)


def _count(rate: Rate, request: Request) -> None:
    client = request.client.host if request.client else ""
    if wait_s := rate.wait_s(client, time.monotonic()):
        raise ServiceError("rate_limited", f"too many requests; again in {wait_s:.0f} s")


async def _submission(request: Request) -> Submission:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > _LONGEST_BODY:
            raise ServiceError("too_long", f"a body has at most {_LONGEST_BODY} bytes")
    try:
        return msgspec.json.decode(content, type=Submission)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceError("invalid_request", one_line(f"body: {error}")) from None


def _refused(service: AttributionService, code: str, message: str) -> JSONResponse:
    service.refused(code)
    headers = {"WWW-Authenticate": "Bearer"} if code == "unauthorized" else None
    said = {"error_code": code, "message": one_line(message)}
    return JSONResponse(said, _STATUS.get(code, 500), headers)
