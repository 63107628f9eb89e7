"""The ranks of a process group come to an agreement.

Rank 0 serves a store. Its address travels once over the process group; afterwards the group is left
alone. Each rank has two connections, as one that waits cannot be used for anything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from undaunted.agreement.agreement import KINDS, Agreeing, Agreement, Alone
from undaunted.agreement.failures import AgreedError
from undaunted.agreement.store import StoreLink
from undaunted.base.deadline import within
from undaunted.base.machine import boot_id
from undaunted.base.torch_ranks import device_of
from undaunted.coordinator.wire.address import is_loopback, own_address, own_host

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.distributed import ProcessGroup

_SESSION_BYTES = 6
_INVITATION_BYTES = 1024
_LOOPBACK = "127.0.0.1"
_LOOK_UP_S = 5.0
_ATTEMPT_S = 5.0
# How long rank 0 waits for the others to have read what it said last.
FAREWELL_S = 5.0


class Connected:
    """The agreements of one rank.

    Attributes:
        session: name of this run, the same on all ranks.
        rank: in the group.
        world_size: of the group.
        main: for the thread of training.
        background: for the thread that saves.
    """

    def __init__(self, main: Agreeing, background: Agreeing, server: Any = None) -> None:
        """Args: see the class; on rank 0 the store with the server, which lives as long as that."""
        self.session = main.session
        self.rank = main.rank
        self.world_size = main.world_size
        self.main = main
        self.background = background
        self._server = server

    def abort(self) -> None:
        """Have all rounds, also those in progress, raise at once. `close` does not wait then."""
        self.main.abort()
        self.background.abort()
        self._server = None

    def close(self, timeout_s: float = FAREWELL_S) -> None:
        """Give the connections back; again and again without harm.

        Args:
            timeout_s: seconds that rank 0, which serves, waits for the others to close theirs.
        """
        if isinstance(self.main, Agreement):
            with contextlib.suppress(AgreedError):
                self.main.leave(timeout_s)
        self._server = None
        self.main.close()
        self.background.close()


class _Invitation(msgspec.Struct, frozen=True, array_like=True):
    """The message of rank 0 to all over the process group."""

    hosts: list[str]
    port: int
    network: str
    session: str
    problem: str = ""


def connect(
    process_group: ProcessGroup | Literal["alone"] | None,
    timeout_s: float,
    kinds: Sequence[type[AgreedError]] = KINDS,
    *,
    may_be_alone: bool = False,
) -> Connected:
    """Connect the ranks of a group; all of them together.

    Args:
        process_group: None means all ranks; or this process alone where ``torch.distributed`` is
            not initialized. "alone" means this process in any case.
        timeout_s: seconds that this may last.
        kinds: of errors, see `Agreement`.
        may_be_alone: whether each process may do its work without the others.

    Raises:
        AgreedError: the first kind of them: not all ranks came together in time; or there are
            others, as the environment says, and ``torch.distributed`` is not initialized yet.
        ValueError: this process is not in the group.
    """
    try:
        return _connect(process_group, timeout_s, kinds, may_be_alone=may_be_alone)
    except AgreedError as error:
        if type(error) in kinds:
            raise
        raise kinds[0](str(error), error.ranks) from error.__cause__


def _connect(
    process_group: ProcessGroup | Literal["alone"] | None,
    timeout_s: float,
    kinds: Sequence[type[AgreedError]],
    *,
    may_be_alone: bool,
) -> Connected:
    import torch.distributed as dist

    if process_group == "alone":
        return _alone(kinds)
    if not (dist.is_available() and dist.is_initialized()):
        if not may_be_alone:
            check_alone('A process that saves by itself is given process_group="alone".')
        return _alone(kinds)
    rank, world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
    if rank < 0:
        raise ValueError("this process is not in the process group that saves")
    if world_size == 1:
        return _alone(kinds)
    deadline = time.monotonic() + timeout_s
    job_ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
    one_machine = _on_one_machine(dist, process_group, timeout_s)
    if rank == 0:
        link, server, invitation = _serve(timeout_s, one_machine)
    else:
        link, server, invitation = None, None, _Invitation([], 0, "", "")
    invitation = _broadcast(dist, process_group, invitation, timeout_s)
    if invitation.problem:
        problem = f"rank {job_ranks[0]} cannot serve the agreement: {invitation.problem}"
        raise AgreedError(problem, job_ranks[:1])
    return _join(rank, job_ranks, invitation, link, server, deadline, kinds)


def check_alone(otherwise: str = "", kind: type[AgreedError] = AgreedError) -> None:
    """Raise an error if there are other ranks; to be asked where there is no process group.

    Args:
        otherwise: another remedy than to make one.
        kind: of the error.
    """
    size = os.environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        raise kind(
            f"WORLD_SIZE is {size}, and this rank cannot reach the others: there is no process "
            "group yet.\nCall torch.distributed.init_process_group before."
            f"{otherwise and ' '}{otherwise}"
        )


def _alone(kinds: Sequence[type[AgreedError]]) -> Connected:
    alone = Alone(os.urandom(_SESSION_BYTES).hex(), kinds)
    return Connected(alone, alone)


def _on_one_machine(dist: Any, group: ProcessGroup | None, timeout_s: float) -> bool:
    """Return whether all ranks are in one network of one machine, joined by loopback."""
    import torch

    name = network().encode() or os.urandom(8)
    mine = int.from_bytes(hashlib.sha256(name).digest()[:7], "big")
    least_and_most = torch.tensor([mine, -mine], device=device_of(dist, group))
    least = dist.ReduceOp.MIN
    _wait(lambda: dist.all_reduce(least_and_most, least, group=group, async_op=True), timeout_s)
    smallest, largest = least_and_most.tolist()
    return bool(smallest == -largest)


def _serve(timeout_s: float, one_machine: bool) -> tuple[StoreLink | None, Any, _Invitation]:
    session = os.urandom(_SESSION_BYTES).hex()
    at = to_serve_at(os.environ, one_machine)
    try:
        link, server = StoreLink.serve(timeout_s, at)
    except (RuntimeError, OSError) as error:
        return None, None, _Invitation([], 0, "", session, str(error)[:200])
    if one_machine:
        return link, server, _Invitation([at], link.port, "", session)
    hosts = own_hosts(os.environ)
    if at:
        return link, server, _Invitation([at, *hosts], link.port, "", session)
    return link, server, _Invitation(hosts, link.port, network(), session)


def _broadcast(
    dist: Any, group: ProcessGroup | None, invitation: _Invitation, timeout_s: float
) -> _Invitation:
    """Tell all ranks; a tensor and no object, which would be a pickle."""
    import torch

    content = msgspec.msgpack.encode(invitation)
    if len(content) > _INVITATION_BYTES:
        raise AgreedError(f"the addresses of this machine are too long: {invitation.hosts}", (0,))
    padded = bytearray(content.ljust(_INVITATION_BYTES, b"\0"))
    tensor = torch.frombuffer(padded, dtype=torch.uint8).to(device_of(dist, group))
    _wait(lambda: dist.broadcast(tensor, group=group, async_op=True, group_src=0), timeout_s)
    received = bytes(tensor.cpu().tolist()).rstrip(b"\0")
    return msgspec.msgpack.decode(received, type=_Invitation)


def _wait(begin: Callable[[], Any], timeout_s: float) -> None:
    """Do something together over the process group."""
    try:
        begin().wait(timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise AgreedError(
            f"the ranks that save did not come together within {timeout_s:g} s: each of them has "
            f"to make the same calls ({error})"
        ) from error


def _join(
    rank: int,
    job_ranks: Sequence[int],
    invitation: _Invitation,
    link: StoreLink | None,
    server: Any,
    deadline: float,
    kinds: Sequence[type[AgreedError]],
) -> Connected:
    """Connect to the store, and see that everybody has."""
    links = [link] if link is not None else []
    try:
        host = _host(invitation, deadline) if link is None else link.host
        stores = [server] if rank == 0 else []
        for _ in range(2 - len(stores)):
            links.append(StoreLink(host, invitation.port))
            stores.append(links[-1].reopen(_left_s(deadline)))
    except (AgreedError, RuntimeError, OSError) as error:
        raise AgreedError(
            f"rank {job_ranks[rank]} cannot reach the agreement that rank {job_ranks[0]} serves: "
            f"{error}",
            (job_ranks[rank],),
        ) from error
    session = invitation.session
    main, background = (
        Agreement(store, rank, len(job_ranks), session, lane, connection, job_ranks, kinds)
        for store, lane, connection in zip(stores, ("main", "background"), links, strict=True)
    )
    connected = Connected(main, background, server)
    try:
        for agreement in (main, background):
            agreement.round("connect", b"", _nothing, _left_s(deadline))
    except BaseException:
        connected.abort()
        connected.close()
        raise
    return connected


def _host(invitation: _Invitation, deadline: float) -> str:
    here = invitation.network and invitation.network == network()
    hosts = [_LOOPBACK] if here else invitation.hosts
    return reachable(hosts, invitation.port, _left_s(deadline))


def _nothing(_: Sequence[bytes]) -> bytes:
    return b""


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


# --- where others reach this process --------------------------------------------------------------


def network() -> str:
    """Name the network this process is in: processes that have the same reach each other locally.

    "" where there is no telling.
    """
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return ""


def to_serve_at(environ: Mapping[str, str], one_machine: bool) -> str:
    """Return the address of this machine at which all ranks reach it; "" = there is no telling.

    Args:
        environ: the environment.
        one_machine: all ranks are here; otherwise it is the address from which this machine would
            speak to ``MASTER_ADDR``, or what its own name says.
    """
    if one_machine:
        return _LOOPBACK
    for name in (environ.get("MASTER_ADDR", ""), socket.gethostname()):
        here = within(_LOOK_UP_S, partial(own_address, name), "") if name else ""
        if here and not is_loopback(here):
            return here
    return ""


def own_hosts(environ: Mapping[str, str]) -> list[str]:
    """Return names and addresses under which others may reach this machine, the best first.

    The first is the address from which this machine would speak to ``MASTER_ADDR``, as that is an
    address all ranks can reach.
    """
    found = []
    master = environ.get("MASTER_ADDR", "")
    if master:
        found.append(within(_LOOK_UP_S, lambda: own_host(master), ""))
    found.append(socket.gethostname())
    return list(dict.fromkeys(host for host in found if host))


def reachable(hosts: Sequence[str], port: int, timeout_s: float) -> str:
    """Return the first host whose port can be connected to.

    Raises:
        OSError: none of them can be reached.
    """
    deadline = time.monotonic() + timeout_s
    why = []
    for host in hosts:
        left_s = min(_ATTEMPT_S, deadline - time.monotonic())
        try:
            with socket.create_connection((host, port), timeout=max(0.001, left_s)):
                return host
        except OSError as error:
            why.append(f"{host}: {error}")
    raise OSError(f"port {port} cannot be reached ({'; '.join(why)})")
