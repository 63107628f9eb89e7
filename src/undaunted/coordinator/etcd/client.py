"""What a campaign asks of etcd, by gRPC; each question has a deadline.

aetcd brings etcd's messages and stubs. The connection is made here, since that package's own client
has neither TLS nor more than one member of a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.timers import lease_clock_ns
from undaunted.coordinator.etcd import campaign
from undaunted.coordinator.protocol import Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from undaunted.coordinator.etcd.store import Access, Store

# A connection on which nothing comes back is noticed after 10 s and 5 s; etcd does not allow less
# than 5 s between two questions whether the other side lives.
_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class EtcdError(Exception):
    """etcd did not do what it was asked for; ``final``: trying again will not help."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class _Leader(msgspec.Struct, frozen=True):
    """Value of the leader's key."""

    address: str
    incarnation: str


class Client:
    """Connection to one member of an etcd cluster; to the next one when it does not answer.

    Args:
        store: the cluster and the prefix of all keys.
        access: how to get in.
        run_id: the job.
        lease_s: of a leader, whole seconds; also what a question may take, times a third.

    Raises:
        EtcdError: aetcd is not installed, or a file cannot be read.
    """

    def __init__(self, store: Store, access: Access, run_id: str, lease_s: int) -> None:
        try:
            from aetcd import rpc
        except ImportError as error:
            raise EtcdError(
                f"--coordinator-store needs aetcd ({error}): pip install 'undaunted[etcd]'",
                final=True,
            ) from None
        self._rpc = rpc
        self._access = access
        self._endpoints = list(store.endpoints)
        self._leader_key = store.leader_key(run_id)
        self._ledger_key = store.ledger_key(run_id)
        self._lease_s = lease_s
        self._limit_s = lease_s / 3
        self._credentials = _credentials(access)
        self._channel: Any = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False
        self._token = ""

    # --- what a campaign asks -------------------------------------------------------------------

    async def leader(self) -> campaign.Seen:
        """Read the leader's key."""
        found = await self._ask("KV", "Range", self._rpc.RangeRequest(key=self._leader_key))
        leader = _leadership(found.kvs[0]) if found.kvs else None
        return campaign.Seen(leader, found.header.revision)

    async def changes(self, revision: int) -> AsyncIterator[campaign.Seen]:
        """Watch the leader's key from a revision on, until the connection breaks."""
        rpc = self._rpc
        create = rpc.WatchCreateRequest(key=self._leader_key, start_revision=revision)
        async with self._talk("Watch", "Watch", must_lead=True) as call:
            await call.write(rpc.WatchRequest(create_request=create))
            while (answer := await call.read()) and not answer.canceled:
                for event in answer.events:
                    gone = event.type == rpc.Event.DELETE
                    leader = None if gone else _leadership(event.kv)
                    yield campaign.Seen(leader, event.kv.mod_revision)
        raise EtcdError(self._problem("the watch has ended"))

    async def claim(self, address: str, incarnation: str) -> campaign.Won | campaign.NotWon:
        """Make the leader's key, bound to a new lease, if there is none."""
        rpc, asked_ns = self._rpc, lease_clock_ns()
        lease = secrets.randbits(62) + 1
        await self._ask("Lease", "LeaseGrant", rpc.LeaseGrantRequest(TTL=self._lease_s, ID=lease))
        value = msgspec.json.encode(_Leader(address, incarnation))
        put = rpc.PutRequest(key=self._leader_key, value=value, lease=lease)
        request = rpc.TxnRequest(
            compare=[self._leader_is(0)],
            success=[self._op(put=put), self._op(get=self._ledger_key)],
            failure=[self._op(get=self._leader_key)],
        )
        done = await self._ask("KV", "Txn", request)
        kvs = done.responses[-1].response_range.kvs
        if done.succeeded:
            ledger = _ledger(kvs[0].value) if kvs else None
            return campaign.Won(lease, done.header.revision, asked_ns, ledger)
        await self.release(lease)
        return campaign.NotWon(_leadership(kvs[0]) if kvs else None)

    async def renew(self, lease: int) -> campaign.Renewed | campaign.LeaseGone:
        """Renew a lease."""
        asked_ns = lease_clock_ns()
        async with self._talk("Lease", "LeaseKeepAlive", limit_s=self._limit_s) as call:
            await call.write(self._rpc.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
        if not answer:
            raise EtcdError(self._problem("no answer"))
        return campaign.Renewed(lease, asked_ns) if answer.TTL > 0 else campaign.LeaseGone(lease)

    async def write(self, ledger: Ledger, revision: int) -> campaign.Written | campaign.NotWritten:
        """Write the ledger if the leader's key is of ``revision``."""
        value = msgspec.json.encode(ledger)
        put = self._rpc.PutRequest(key=self._ledger_key, value=value)
        done = await self._while_leading(revision, self._op(put=put))
        return campaign.Written(ledger.version) if done else campaign.NotWritten()

    async def erase(self, revision: int) -> None:
        """Delete the ledger if the leader's key is of ``revision``."""
        delete = self._rpc.DeleteRangeRequest(key=self._ledger_key)
        await self._while_leading(revision, self._rpc.RequestOp(request_delete_range=delete))

    async def release(self, lease: int) -> None:
        """Give a lease back: keys that are bound to it are deleted. None of that is certain."""
        with contextlib.suppress(EtcdError):
            await self._ask("Lease", "LeaseRevoke", self._rpc.LeaseRevokeRequest(ID=lease))

    async def close(self) -> None:
        """Close the connection; questions that wait for an answer are cancelled."""
        self._closed = True
        if self._channel is not None:
            await self._channel.close()
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    # --- requests -------------------------------------------------------------------------------

    def _op(self, *, put: Any = None, get: bytes = b"") -> Any:
        if put is not None:
            return self._rpc.RequestOp(request_put=put)
        return self._rpc.RequestOp(request_range=self._rpc.RangeRequest(key=get))

    def _leader_is(self, revision: int) -> Any:
        """Compare: the leader's key was made at ``revision``; 0 = there is none."""
        compare = self._rpc.Compare
        return compare(
            key=self._leader_key,
            target=compare.CREATE,
            result=compare.EQUAL,
            create_revision=revision,
        )

    async def _while_leading(self, revision: int, operation: Any) -> bool:
        request = self._rpc.TxnRequest(compare=[self._leader_is(revision)], success=[operation])
        return bool((await self._ask("KV", "Txn", request)).succeeded)

    # --- the connection -------------------------------------------------------------------------

    async def _ask(self, service: str, method: str, request: Any) -> Any:
        """One question, one answer."""
        with self._translated():
            metadata = await self._metadata()
            call = getattr(self._stub(service), method)
            return await call(request, timeout=self._limit_s, metadata=metadata)

    @contextlib.asynccontextmanager
    async def _talk(
        self, service: str, method: str, *, limit_s: float | None = None, must_lead: bool = False
    ) -> AsyncIterator[Any]:
        """Questions and answers; `must_lead`: not with a member that is cut off from the others."""
        with self._translated():
            metadata = await self._metadata()
            if must_lead:
                metadata = (*metadata, ("hasleader", "true"))
            call = getattr(self._stub(service), method)(timeout=limit_s, metadata=metadata)
            try:
                yield call
            finally:
                call.cancel()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise EtcdError for what gRPC raises."""
        channel = self._open()
        try:
            yield
        except self._rpc.AioRpcError as error:
            raise self._failed(error, channel) from None
        except asyncio.InvalidStateError:
            raise EtcdError(self._problem("the connection has ended")) from None
        except asyncio.CancelledError:
            if self._closed or channel is self._channel:
                raise
            raise EtcdError(self._problem("another member is asked")) from None

    def _stub(self, service: str) -> Any:
        return getattr(self._rpc, f"{service}Stub")(self._open())

    def _open(self) -> Any:
        if self._channel is None:
            target = self._endpoints[0]
            if self._credentials is None:
                self._channel = self._rpc.insecure_channel(target, options=_OPTIONS)
            else:
                self._channel = self._rpc.secure_channel(
                    target, self._credentials, options=_OPTIONS
                )
        return self._channel

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        access = self._access
        if access.user and not self._token:
            request = self._rpc.AuthenticateRequest(name=access.user, password=access.password)
            answer = await self._stub("Auth").Authenticate(request, timeout=self._limit_s)
            self._token = answer.token
        return (("token", self._token),) if self._token else ()

    def _failed(self, error: Any, channel: Any) -> EtcdError:
        """Say what is wrong; the next question goes to the next member of the cluster."""
        codes, code = self._rpc.StatusCode, error.code()
        late = code == codes.DEADLINE_EXCEEDED
        reason = "no answer in time" if late else _short(error.details() or code.name)
        problem = self._problem(reason)
        expired = code == codes.UNAUTHENTICATED and bool(self._token)  # tokens last five minutes
        self._token = ""
        if (late or code == codes.UNAVAILABLE) and channel is self._channel:
            self._ask_the_next()
        wrong = {codes.PERMISSION_DENIED, codes.UNAUTHENTICATED, codes.INVALID_ARGUMENT}
        return EtcdError(problem, final=code in wrong and not expired)

    def _ask_the_next(self) -> None:
        if len(self._endpoints) == 1:
            return  # the channel connects again by itself
        self._endpoints.append(self._endpoints.pop(0))
        channel, self._channel = self._channel, None
        task = asyncio.get_running_loop().create_task(channel.close(self._limit_s))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _problem(self, reason: str) -> str:
        return f"etcd at {self._endpoints[0]}: {reason}"


def _credentials(access: Access) -> Any:
    if not access.ca:
        return None
    from grpc import ssl_channel_credentials

    try:
        ca, cert, key = (
            Path(each).read_bytes() if each else None
            for each in (access.ca, access.cert, access.key)
        )
    except OSError as error:
        raise EtcdError(f"{error.filename}: {error.strerror}", final=True) from None
    return ssl_channel_credentials(ca, key, cert)


def _leadership(kv: Any) -> campaign.Leadership:
    try:
        leader = msgspec.json.decode(kv.value, type=_Leader)
    except msgspec.MsgspecError as error:
        raise EtcdError(f"{kv.key.decode()} in etcd is not ours ({error})", final=True) from None
    return campaign.Leadership(leader.address, leader.incarnation, kv.lease, kv.create_revision)


def _ledger(value: bytes) -> Ledger:
    try:
        return msgspec.json.decode(value, type=Ledger)
    except msgspec.MsgspecError as error:
        raise EtcdError(f"the ledger in etcd is none ({error}); delete it", final=True) from None


def _short(text: str) -> str:
    """The last part of what gRPC has to say."""
    for before in ("; last error: ", "Failed to connect to remote host: ", "etcdserver: "):
        text = text.rpartition(before)[2]
    return text[:200]
