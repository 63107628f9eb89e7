"""The answers of an attribution service about the rounds: shown, and perhaps obeyed.

The service reads the logs and says what went wrong. It gets the name of a round's log when the
round starts (``POST /logs``) and again when the log is complete; then it is asked for its result
(``GET /logs``). A separate thread does that, so a service that is slow or away costs only lines
that say so. `OwnService` is one that this launcher has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from undaunted.base.text import one_line
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.wire.credentials import TokenError, find_token
from undaunted.fault_tolerance.agent.parts import Part
from undaunted.fault_tolerance.output.destinations import round_log_path
from undaunted.journal.events import AttributionResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.fault_tolerance.agent.orders import Orders
    from undaunted.fault_tolerance.agent.own_service import OwnService
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.fault_tolerance.worker.spawner import Spawned
    from undaunted.journal.writer import JournalWriter

OWN = "localhost"  # instead of a URL: a service that this launcher starts
_STOP = "STOP"
_LAST_RESULT_S = 5.0
_QUEUED = 64  # requests
_POST_S = 5.0
_ASK_S = 60.0  # an analysis takes its time
_LONGEST_TEXT = 1000  # characters of a result that are shown


class Attribution(Part):
    """Asks the service of a run about each round.

    Args:
        config: the run; it has a service.
        orders: where advice to stop goes, if that may end the job.
        journal: gets the answers.
        say: shows a line; from any thread.
    """

    def __init__(
        self,
        config: RunConfig,
        orders: Orders,
        journal: JournalWriter,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._orders = orders
        self._journal = journal
        self._say = say
        self._round = -1
        self._advice = ""  # to stop, and why
        self._own: OwnService | None = None
        self._client: AttributionClient | None = None

    def open(self) -> None:
        """Begin to ask; a service of this launcher's own is started."""
        if self._config.attribution_service == OWN:
            from undaunted.fault_tolerance.agent.own_service import OwnService

            self._own = OwnService(self._config, self._say)
        self._client = self._connect()

    def servers(self) -> set[tuple[int, int]]:
        """Pid and start time of a service that is this launcher's own, if it runs."""
        return set() if self._own is None else self._own.processes()

    def ranks_run(self, current: Round, spawned: Spawned) -> None:
        """The log of this round is being written."""
        del spawned
        self._round = current.number
        if self._client is not None:
            self._client.round_began(self._round, self._log(self._round))
        if self._advice:
            self._ask_to_stop()

    def round_over(self, number: int) -> None:
        """The log of this round is complete."""
        if self._client is not None:
            self._client.round_over(number, self._log(number))

    async def close(self) -> None:
        """Wait a little for the last result. Before the journal is closed."""
        client = self._client
        if client is not None and not await asyncio.to_thread(client.close, _LAST_RESULT_S):
            self._say(
                f"the attribution service has no result of round {self._round} yet; "
                f"its log is {self._log(self._round)}"
            )
        if self._own is not None:
            await self._own.close()
        await asyncio.sleep(0)  # what has come is dealt with

    def _connect(self) -> AttributionClient:
        loop = asyncio.get_running_loop()

        def answered(answer: Answer) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._answered, answer)

        user = os.environ.get("SLURM_JOB_USER") or os.environ.get("USER") or str(os.getuid())
        url, token = self._config.attribution_service, b""
        if self._own is not None:
            url, token = self._own.url, self._own.token
        elif self._config.ft.attribution_token_file:
            try:
                token = find_token({}, Path(self._config.ft.attribution_token_file))
            except TokenError as error:
                self._say(f"the attribution service is asked without a token: {error}")
        job = self._config.run_id
        return AttributionClient(url, answered, self._say, user=user, job=job, token=token)

    def _answered(self, answer: Answer) -> None:
        self._journal.record(
            AttributionResult(
                round=answer.round,
                log_path=answer.log_path,
                action=answer.action,
                text=answer.text,
                duration_ns=answer.duration_ns,
            )
        )
        if answer.action == _STOP and self._config.attribution_may_end_job:
            self._advice = f"after round {answer.round}: {answer.text}"
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        """In the round that is on; if none is, nobody takes it, and the next one asks again."""
        by = "the attribution service"
        self._orders.post(
            job.ShutdownRequested(self._config.node, self._round, self._advice, by=by)
        )

    def _log(self, number: int) -> str:
        return round_log_path(self._config.applog_prefix, number)


class Answer(NamedTuple):
    """The answer of the service about a round.

    Attributes:
        round: number of the round.
        log_path: the log that was analysed.
        action: what it recommends: ``RESTART``, ``STOP``, ...; "" if it recommends nothing.
        text: the result in one line.
        duration_ns: how long it took to get it.
    """

    round: int
    log_path: str
    action: str
    text: str
    duration_ns: int = 0


class _Request(NamedTuple):
    round: int
    log_path: str
    is_over: bool


class ServiceError(Exception):
    """The service gave no usable answer; the message says why."""


class _RefusedError(ServiceError):
    """The service answered with an error."""


class AttributionClient:
    """Talks to one service until closed. Its methods never block and never raise."""

    def __init__(
        self,
        url: str,
        on_answer: Callable[[Answer], None],
        say: Callable[[str], None],
        *,
        user: str = "",
        job: str = "",
        token: bytes = b"",
        post_s: float = _POST_S,
        ask_s: float = _ASK_S,
    ) -> None:
        """Start the thread.

        Args:
            url: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:///PATH``.
            on_answer: called in the thread with each result.
            say: shows a line; called in the thread, once for each problem.
            user: whose job it is, for the service.
            job: which job it is.
            token: sent with each request, b"" = none.
            post_s: longest wait for the service to take notice of a log, seconds.
            ask_s: longest wait for a result, seconds.
        """
        self._url = url
        self._on_answer = on_answer
        self._say = say
        self._user = user
        self._job = job
        self._token = token
        self._post_s = post_s
        self._ask_s = ask_s
        self._said = ""  # the problem that was said last
        self._requests: queue.Queue[_Request | None] = queue.Queue(_QUEUED)
        self._thread = threading.Thread(target=self._run, name="undaunted-attribution", daemon=True)
        self._thread.start()

    def round_began(self, round_no: int, log_path: str) -> None:
        """Tell the service soon which log the round writes."""
        self._put(_Request(round_no, log_path, is_over=False))

    def round_over(self, round_no: int, log_path: str) -> None:
        """Ask soon what the log shows, now that it is complete."""
        self._put(_Request(round_no, log_path, is_over=True))

    def close(self, timeout_s: float) -> bool:
        """Wait for results that are outstanding; return whether all of them came in time.

        A request that still waits then is given up with the process.
        """
        if not self._put(None):
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _put(self, request: _Request | None) -> bool:
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            return False  # it has been said that the service does not answer
        return True

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            self._handle(request)

    def _handle(self, request: _Request) -> None:
        try:
            if request.is_over:
                with contextlib.suppress(ServiceError):  # the question shows whether it matters
                    self._post_log(request)
                self._on_answer(self._ask(request))
                self._said = ""
            else:
                self._post_log(request)
        except (OSError, ValueError, ServiceError) as error:
            self._say_once(error)

    def _post_log(self, request: _Request) -> None:
        about = {
            "log_path": request.log_path,
            "user": self._user,
            "job_id": self._job,
            "cycle_id": request.round,
            "analysis_intent": "terminal" if request.is_over else "progressive",
        }
        with contextlib.suppress(_RefusedError):  # the log is empty as yet
            self._exchange("POST", "/logs", json.dumps(about), self._post_s)

    def _ask(self, request: _Request) -> Answer:
        query = urlencode({"log_path": request.log_path, "wait": "true"})
        began_ns = time.monotonic_ns()
        body = self._exchange("GET", f"/logs?{query}", None, self._ask_s)
        answer = read_answer(request, body)
        return answer._replace(duration_ns=time.monotonic_ns() - began_ns)

    def _exchange(self, method: str, path: str, body: str | None, limit_s: float) -> bytes:
        return _exchange(self._url, method, path, body, limit_s, self._token)

    def _say_once(self, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if reason != self._said:
            self._said = reason
            self._say(one_line(f"the attribution service {self._url}: {reason}"))


def read_answer(request: _Request, body: bytes) -> Answer:
    """Read what the service says.

    Raises:
        ServiceError: it is no result.
    """
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise ServiceError(f"the answer is not JSON: {body[:80]!r}") from None
    if not isinstance(said, dict):
        raise ServiceError(f"the answer is no result: {body[:80]!r}")
    status = said.get("status", "completed")
    if status != "completed":
        raise ServiceError(f"no result for {request.log_path}: {status}")
    action, text = read_result(said)
    return Answer(request.round, request.log_path, action, text)


def read_result(said: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a service recommends, "" = nothing, and the result in a line."""
    result = said.get("result")
    inner = result if isinstance(result, dict) else {}
    text = inner.get("result", result)
    text = text if isinstance(text, str) else json.dumps(text)
    return _action(said) or _action(inner), one_line(text, longest=_LONGEST_TEXT) or "nothing"


def _action(said: Mapping[str, Any]) -> str:
    recommendation = said.get("recommendation")
    if isinstance(recommendation, dict):
        recommendation = recommendation.get("action")
    return one_line(recommendation, longest=80) if isinstance(recommendation, str) else ""


def _exchange(
    url: str,
    method: str,
    path: str,
    body: str | None,
    limit_s: float,
    token: bytes = b"",
) -> bytes:
    """Send one request, return the body of the answer.

    Raises:
        OSError: the service cannot be reached.
        ServiceError: it does not answer, with an error, or too much.
    """
    from undaunted.base.http_client import NoAnswerError, exchange

    try:
        response = exchange(url, method, path, body, limit_s=limit_s, token=token)
    except (TimeoutError, NoAnswerError) as error:
        raise ServiceError(f"{method} /logs: {error}") from None
    if response.status >= 300:
        raise _RefusedError(f"{method} /logs: {response.status} {error_text(response.body)}")
    return response.body


def error_text(content: bytes) -> str:
    """Return the service's own words about an error, in one line."""
    try:
        said = json.loads(content)
        text = said.get("message") or said.get("detail") or said
    except (ValueError, RecursionError, AttributeError):
        text = content.decode(errors="replace")
    return one_line(str(text), longest=200)
