"""The register of a job in etcd, by gRPC; each question has a deadline.

`messages` has etcd's messages; this is the connection: TLS, passwords, and several members of a
cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from undaunted.coordinator.etcd import messages
from undaunted.coordinator.lead.times import (
    LOOK_S,
    REGISTER_AGAIN_S,
    SHORTEST_ENDED_KEPT_S,
    Durations,
)
from undaunted.coordinator.protocol import Ledger
from undaunted.coordinator.service.register import Leads, RegisterError, Won

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from undaunted.coordinator.etcd.store import Access, Store

_T = TypeVar("_T")
# A connection on which nothing comes back is noticed after 10 s and 5 s; etcd does not allow less
# than 5 s between two questions whether the other side lives. Newer builds of gRPC look at
# ping_timeout_ms, and ask seldom where nothing else is sent unless max_pings_without_data is 0.
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
_LONGEST_REASON = 200
# The error says all that gRPC's own lines would say.
_VERBOSITY = "GRPC_VERBOSITY"
# The token is too old: etcd forgets it, or who may do what has changed.
_OLD_TOKEN = ("invalid auth token", "revision of auth store is old")
_NO_AUTHENTICATION = "authentication is not enabled"
_NO_TLS_HERE = ("Socket closed", "Connection reset", "SETTINGS frame", "HTTP/2")


class EtcdError(RegisterError):
    """etcd did not do what it was asked for."""


class _Leader(msgspec.Struct, frozen=True):
    """Value of the leader's key."""

    address: str
    incarnation: str


class Client:
    """Connection to one member of an etcd cluster; to the next one when it does not answer.

    Args:
        store: the cluster and the prefix of all keys.
        access: how to get in; files are read anew for each connection.
        run_id: the job.
        lease_s: of followers; a question may take a third of it.
        address, incarnation: of this launcher; others see them where it leads. Launchers begin with
            different members of the cluster.
        grpc: stands where that package does; None = that package.
        ended_kept_s: how many seconds etcd knows that the job has ended.

    Raises:
        EtcdError: grpcio is not installed, or a file cannot be read.
    """

    def __init__(
        self,
        store: Store,
        access: Access,
        run_id: str,
        lease_s: float,
        address: str,
        incarnation: str,
        grpc: Any = None,
        ended_kept_s: int = SHORTEST_ENDED_KEPT_S,
    ) -> None:
        self._grpc = grpc or _import_grpc()
        self._access = access
        self._address, self._incarnation = address, incarnation
        lasts = Durations(lease_s)
        self.hold_s, self._limit_s = lasts.hold_s, lasts.register_answers_s
        self._ended_kept_s = ended_kept_s
        self._holds = 0  # the lease to which `held` is bound
        first = zlib.crc32(incarnation.encode()) % len(store.endpoints)
        self._endpoints = [*store.endpoints[first:], *store.endpoints[:first]]
        self._leader_key = store.leader_key(run_id)
        self._held_key = store.held_key(run_id)
        self._ledger_key = store.ledger_key(run_id)
        self._channel: Any = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self._token = ""
        self._worked = False  # etcd has answered a question
        self._credentials()  # raises at once if something is missing

    # --- the operations (see `Register`) --------------------------------------------------------

    async def watch(self) -> AsyncIterator[Leads]:
        """Say who leads: now, and whenever that changes."""
        seen = await self._look()
        yield seen
        request = messages.watch(self._held_key, self._leader_key, seen.as_of + 1)
        async with self._talk(messages.WATCH, "Watch", must_lead=True) as call:
            await call.write(request)
            while answer := await call.read():
                change = _read(messages.change, answer)
                if change.ended:
                    break
                for key, found in change.keys:
                    if key == self._held_key:
                        seen = dataclasses.replace(seen, held=found is not None)
                    elif key == self._leader_key:
                        seen = _leads(found, held=seen.held, revision=change.revision)
                if change.keys:
                    seen = dataclasses.replace(seen, as_of=change.revision)
                    yield seen
        raise EtcdError(self._problem("the watch has ended"))

    async def claim(self, after: int) -> Won | Leads:
        """Replace the leader's key if it is of that epoch; its revision is the next one."""
        lease, held = await self._lease()
        leader = _Leader(self._address, self._incarnation)
        done = await self._transact(
            [
                messages.put(self._leader_key, msgspec.json.encode(leader)),
                held,
                messages.get(self._ledger_key),
            ],
            [messages.get(self._leader_key), messages.get(self._held_key)],
            epoch=after,
        )
        if done.succeeded:
            self._holds = lease
            ledger = done.found[0]
            return Won(done.revision, None if ledger is None else _ledger(ledger.value))
        await self._revoke(lease)
        now, is_held = done.found
        return _leads(now, held=is_held is not None, revision=done.revision)

    async def write(self, epoch: int, ledger: Ledger) -> bool:
        """Write the ledger if the leader's key is of this epoch."""
        put = messages.put(self._ledger_key, msgspec.json.encode(ledger))
        return (await self._transact([put], epoch=epoch)).succeeded

    async def hold(self, epoch: int) -> bool:
        """Renew the lease, or make another one if it was over."""
        if await self._renew(self._holds):
            return True
        lease, held = await self._lease()
        if (await self._transact([held], epoch=epoch)).succeeded:
            self._holds = lease
            return True
        await self._revoke(lease)
        return False

    async def release(self, epoch: int, *, ended: Ledger | None = None) -> None:
        """Delete the keys if the leader's is of this epoch, and give the lease back."""
        changes = [messages.delete(key) for key in (self._leader_key, self._held_key)]
        lease, self._holds = self._holds, 0
        if ended is not None:
            kept = await self._grant(self._ended_kept_s)
            changes.append(messages.put(self._ledger_key, msgspec.json.encode(ended), kept))
        await self._transact(changes, epoch=epoch)
        if lease:
            await self._revoke(lease)

    async def close(self) -> None:
        """Close the connection; questions that wait for an answer are cancelled."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    # --- requests -------------------------------------------------------------------------------

    async def _transact(
        self,
        success: list[bytes],
        failure: list[bytes] | None = None,
        *,
        epoch: int | None = None,
        limit_s: float | None = None,
    ) -> messages.Done:
        """Do it at once; with an ``epoch``: if the leader's key is of that one."""
        unchanged = [] if epoch is None else [(self._leader_key, epoch)]
        request = messages.transaction(success, failure or [], unchanged)
        return _read(messages.done, await self._ask(messages.KV, "Txn", request, limit_s))

    async def _look(self) -> Leads:
        gets = [messages.get(self._leader_key), messages.get(self._held_key)]
        done = await self._transact(gets, limit_s=min(LOOK_S, self._limit_s))
        leader, held = done.found
        return _leads(leader, held=held is not None, revision=done.revision)

    async def _lease(self) -> tuple[int, bytes]:
        """Make a lease; return it, and the request that binds `held` to it."""
        lease = await self._grant_soon(self.hold_s)
        return lease, messages.put(self._held_key, self._incarnation.encode(), lease)

    async def _grant(self, seconds: int) -> int:
        lease = secrets.randbits(62) + 1
        await self._ask(messages.LEASE, "LeaseGrant", messages.grant(lease, seconds))
        return lease

    async def _grant_soon(self, seconds: int) -> int:
        """Make a lease; ask again while there is no answer. One that is not used ends by itself."""
        asked: set[asyncio.Task[int | EtcdError]] = set()
        try:
            while True:
                asked.add(asyncio.create_task(self._try_to_grant(seconds)))
                first = asyncio.FIRST_COMPLETED
                done, _ = await asyncio.wait(asked, timeout=REGISTER_AGAIN_S, return_when=first)
                if done:
                    break
        finally:
            for each in asked:
                each.cancel()
        answer = done.pop().result()
        if isinstance(answer, EtcdError):
            raise answer
        return answer

    async def _try_to_grant(self, seconds: int) -> int | EtcdError:
        try:
            return await self._grant(seconds)
        except EtcdError as error:
            return error

    async def _renew(self, lease: int) -> bool:
        """Renew a lease; return whether etcd knows it still."""
        async with self._talk(messages.LEASE, "LeaseKeepAlive", limit_s=self._limit_s) as call:
            await call.write(messages.of_lease(lease))
            answer = await call.read()
        if not answer:
            raise EtcdError(self._problem("no answer"))
        return bool(_read(messages.seconds_left, answer))

    async def _revoke(self, lease: int) -> None:
        """Give a lease back: keys that are bound to it are deleted. None of that is certain."""
        with contextlib.suppress(EtcdError):
            await self._ask(messages.LEASE, "LeaseRevoke", messages.of_lease(lease))

    # --- the connection -------------------------------------------------------------------------

    async def _ask(
        self, service: str, method: str, request: bytes, limit_s: float | None = None
    ) -> bytes:
        """One question, one answer; once more where the token was too old."""
        again = bool(self._access.user)
        while True:
            try:
                return await self._ask_once(service, method, request, limit_s or self._limit_s)
            except _OldTokenError as error:
                if not again:
                    raise EtcdError(str(error)) from None
                again = False

    async def _ask_once(self, service: str, method: str, request: bytes, limit_s: float) -> bytes:
        with self._translated() as sent:
            metadata = sent[:] = await self._metadata()
            call = self._open().unary_unary(messages.method(service, method))
            answer: bytes = await call(request, timeout=limit_s, metadata=metadata)
            self._worked = True
            return answer

    @contextlib.asynccontextmanager
    async def _talk(
        self, service: str, method: str, *, limit_s: float | None = None, must_lead: bool = False
    ) -> AsyncIterator[Any]:
        """Questions and answers; `must_lead`: not with a member that is cut off from the others."""
        with self._translated() as sent:
            metadata = sent[:] = await self._metadata()
            if must_lead:
                metadata = [*metadata, ("hasleader", "true")]
            call = self._open().stream_stream(messages.method(service, method))(
                timeout=limit_s, metadata=metadata
            )
            try:
                yield call
            finally:
                call.cancel()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[list[tuple[str, str]]]:
        """Raise EtcdError for what gRPC raises; the metadata go into what is yielded."""
        channel = self._open()
        sent: list[tuple[str, str]] = []
        try:
            yield sent
        except self._grpc.aio.AioRpcError as error:
            raise self._failed(error, channel, dict(sent).get("token", "")) from None
        except asyncio.InvalidStateError:
            raise EtcdError(self._problem("the connection has ended")) from None
        except asyncio.CancelledError:
            if self._closed or channel is self._channel:
                raise
            raise EtcdError(self._problem("another member is asked")) from None

    def _open(self) -> Any:
        if self._channel is None:
            target, credentials = self._endpoints[0], self._credentials()
            with _silent():
                if credentials is None:
                    self._channel = self._grpc.aio.insecure_channel(target, options=_OPTIONS)
                else:
                    self._channel = self._grpc.aio.secure_channel(
                        target, credentials, options=_OPTIONS
                    )
        return self._channel

    def _credentials(self) -> Any:
        """Read the certificates as they are now: they are renewed while jobs run."""
        access = self._access
        if not access.ca:
            return None
        try:
            ca, cert, key = (
                Path(each).read_bytes() if each else None
                for each in (access.ca, access.cert, access.key)
            )
        except OSError as error:
            raise EtcdError(f"{error.filename}: {error.strerror}", final=True) from None
        return self._grpc.ssl_channel_credentials(ca, key, cert)

    async def _metadata(self) -> list[tuple[str, str]]:
        access = self._access
        if access.user and not self._token:
            request = messages.authenticate(access.user, access.password)
            call = self._open().unary_unary(messages.method(messages.AUTH, "Authenticate"))
            try:
                answer = await call(request, timeout=self._limit_s)
            except self._grpc.aio.AioRpcError as error:
                if self._worked and _NO_AUTHENTICATION in (error.details() or ""):
                    return []  # it was switched off
                raise
            self._token = _read(messages.token, answer)
        return [("token", self._token)] if self._token else []

    def _failed(self, error: Any, channel: Any, token: str) -> EtcdError:
        """Say what is wrong; the next question goes to the next member of the cluster."""
        codes, code, details = self._grpc.StatusCode, error.code(), error.details() or ""
        late = code == codes.DEADLINE_EXCEEDED
        reason = "no answer in time" if late else self._reason(details or code.name, code)
        problem = self._problem(reason)
        if (late or code == codes.UNAVAILABLE) and channel is self._channel:
            self._ask_the_next()
        old = code == codes.UNAUTHENTICATED or any(each in details for each in _OLD_TOKEN)
        if token and old:
            self._token = "" if self._token == token else self._token
            return _OldTokenError(problem)
        wrong = code in {codes.PERMISSION_DENIED, codes.UNAUTHENTICATED, codes.INVALID_ARGUMENT}
        return EtcdError(problem, final=wrong or _NO_AUTHENTICATION in details)

    def _reason(self, details: str, code: Any) -> str:
        """The words of gRPC, and their meaning for people."""
        reason = _short(details)
        if code != self._grpc.StatusCode.UNAVAILABLE or "refused" in details:
            return reason
        if not self._access.ca and any(each in details for each in _NO_TLS_HERE):
            return f"no etcd answers there, or one that wants TLS (ETCDCTL_CACERT): {reason}"
        if self._access.ca and not any(each in details for each in ("timed out", "lookup")):
            return (
                f"no TLS connection: {reason}; ETCDCTL_CACERT must hold the authority of etcd's "
                "certificate, and ETCDCTL_CERT and ETCDCTL_KEY a certificate that etcd accepts"
            )
        return reason

    def _ask_the_next(self) -> None:
        """With one member: a new connection, which reads the certificates anew."""
        self._endpoints.append(self._endpoints.pop(0))
        channel, self._channel = self._channel, None
        task = asyncio.get_running_loop().create_task(channel.close(self._limit_s))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _problem(self, reason: str) -> str:
        return f"etcd at {self._endpoints[0]}: {reason}"


class _OldTokenError(EtcdError):
    """etcd does not know the token any more: sign in again."""


def _import_grpc() -> Any:
    try:
        with _silent():
            import grpc.aio
    except ImportError as error:
        raise EtcdError(
            f"--coordinator-store needs grpcio ({error}): pip install 'undaunted[etcd]'",
            final=True,
        ) from None
    return grpc


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep gRPC from writing to standard error by itself; ranks do not inherit that."""
    known = os.environ.get(_VERBOSITY)
    os.environ[_VERBOSITY] = known or "NONE"
    try:
        yield
    finally:
        if known is None:
            del os.environ[_VERBOSITY]


def _read(reader: Callable[[bytes], _T], data: bytes) -> _T:
    try:
        return reader(data)
    except ValueError as error:
        raise EtcdError(f"etcd's answer cannot be read: {error}") from None


def _leads(found: messages.KeyValue | None, *, held: bool, revision: int) -> Leads:
    if found is None:
        return Leads(revision)
    try:
        leader = msgspec.json.decode(found.value, type=_Leader)
    except msgspec.MsgspecError as error:
        name = found.key.decode(errors="replace")
        raise EtcdError(f"{name} in etcd is not ours ({error})", final=True) from None
    return Leads(revision, found.revision, leader.address, leader.incarnation, held)


def _ledger(value: bytes) -> Ledger:
    try:
        return msgspec.json.decode(value, type=Ledger)
    except msgspec.MsgspecError as error:
        raise EtcdError(f"the ledger in etcd is none ({error}); delete it", final=True) from None


def _short(text: str) -> str:
    """The last part of what gRPC has to say."""
    for before in ("; last error: ", "Failed to connect to remote host: ", "etcdserver: "):
        text = text.rpartition(before)[2]
    return text[:_LONGEST_REASON]
