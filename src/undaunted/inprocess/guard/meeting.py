"""Guards of a job find its controller outside of `undaunted run`.

The rank finds out, before its guard serves, as torch's stores are in the rank.

| the job has | the controller is |
|---|---|
| one rank | in its guard, and listens nowhere |
| a store (of a custom `store_factory`, or of torchrun) | where rank 0 says in that store |
| all ranks on one machine | at an abstract Unix socket, named after user and ``MASTER_PORT`` |
| a port in `store_kwargs` | there, at its ``host_name`` |
| else | where rank 0 says in a store at ``MASTER_PORT`` |

The last store exists already, or else rank 0 serves it until all ranks have read in it: then the
port is free again for the function.

In a store of the job, rank 0 also leaves a random token. On one machine none is needed. Else the
token is in the environment.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base import threads, torch_store
from undaunted.base.deadline import within
from undaunted.base.sizes import whole
from undaunted.coordinator.wire.address import UNIX, Address, is_loopback, own_address, own_host
from undaunted.coordinator.wire.credentials import TOKEN_VARIABLE, TokenError, find_token
from undaunted.inprocess.exception import InternalError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KEY = "undaunted/inprocess/controller"

_READERS = "readers"
_FOR_A_MOMENT = "undaunted/inprocess/meeting"  # in a store that ends when all have read
_ALL_HAVE_READ = "all have read"
_LOOK_UP_S = 10.0
_TAKEN_S = 10.0  # for an answer at a port that is taken


class Place(NamedTuple):
    """The place of the controller, for a guard; see `startup.Begin`."""

    hosts: bool
    address: str = ""
    run: str = ""
    token: bytes = b""


class Meeting:
    """Finds the place of the controller, for one rank: known from the start, or read in a store."""

    def __init__(
        self,
        place: Place,
        store: Any = None,
        timeout_s: float = 0.0,
        *,
        job_rank: int = 0,
        host: Callable[[], str] = str,
        others: int = 0,
        ours: bool = False,
    ) -> None:
        """Prepare.

        Args:
            place: as far as it is known. Ranks without the controller read its address in
                ``store``, and the token if there is none here.
            store: of torch; None = the place is known.
            timeout_s: longest wait for it, seconds.
            job_rank: of this rank.
            host: returns where others reach this machine.
            others: this many ranks are to read; 0 = they are not counted.
            ours: this process serves the store, which ends when all have read.
        """
        self._place = place
        self._store = store
        self._timeout_s = timeout_s
        self._job_rank = job_rank
        self._host = host
        self._others = others
        self._ours = ours

    def find(self) -> Place:
        """Return the place; waits until it is known.

        Raises:
            InternalError: it cannot be found; the message says what to do.
        """
        if self._store is None or self._place.hosts:
            return self._place
        try:
            self._wait_for(KEY)
            address, _, token = str(self._store.get(KEY).decode()).partition(" ")
            if self._others and self._store.add(_READERS, 1) == self._others:
                self._store.set(_ALL_HAVE_READ, "")
        except Exception as error:
            raise InternalError(
                f"rank {self._job_rank}: rank 0 has not said within {self._timeout_s:.0f} s "
                f"(barrier_timeout) where its guard listens ({error}); every rank must call the "
                "wrapped function"
            ) from error
        return self._place._replace(address=address, token=token.encode() or self._place.token)

    def publish(self, port: int) -> None:
        """In rank 0, whose guard listens at ``port`` now: tell the others, if necessary.

        Raises:
            InternalError: the others cannot be told.
        """
        if self._store is None:
            return
        # Where all know the token, it is not left in a store.
        token = "" if self._others else self._place.token.decode()
        try:
            self._store.set(KEY, f"{Address(self._host(), port)} {token}")
        except Exception as error:
            raise InternalError(
                f"rank 0 cannot tell the others where its guard listens: {error}"
            ) from error
        if self._ours:
            # Until then the port is not free for the function. Missing ranks are named later.
            waiting = threads.start(self._wait_for_readers, "meeting")
            waiting.join(self._timeout_s)

    def _wait_for(self, key: str) -> None:
        self._store.wait([key], dt.timedelta(seconds=self._timeout_s))

    def _wait_for_readers(self) -> None:
        with contextlib.suppress(Exception):
            self._wait_for(_ALL_HAVE_READ)


def meeting(
    job_rank: int,
    world_size: int,
    environ: Mapping[str, str],
    *,
    base_store: Any = None,
    store_kwargs: Mapping[str, Any],
    timeout_s: float,
) -> Meeting:
    """Return the meeting that fits this job.

    Args:
        job_rank: as the launcher has set it.
        world_size: as the launcher has set it.
        environ: the environment.
        base_store: result of a custom `store_factory`, None = there is none.
        store_kwargs: as given to `Wrapper`; ``host_name`` and ``port`` are used.
        timeout_s: longest wait for a store, seconds.

    Raises:
        InternalError: it is not known where; or torchrun's store cannot be reached, or another
            program has the port at which the guards are to meet.
    """
    hosts, run = job_rank == 0, _run(environ)
    if world_size == 1:
        return Meeting(Place(hosts=True))
    port = int(store_kwargs.get("port", 0))
    if base_store is None and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        base_store = _agent_store(environ, timeout_s)
    if base_store is not None:
        master = environ.get("MASTER_ADDR", "") or socket.gethostname()
        here = on_one_machine(master, world_size, environ)
        token = secrets.token_hex(32).encode()
        address = str(Address(torch_store.LOOPBACK if here else "", port))
        return Meeting(
            Place(True, address, token=token) if hosts else Place(False),
            base_store,
            timeout_s,
            job_rank=job_rank,
            host=lambda: torch_store.LOOPBACK if here else _reachable(master),
        )
    host = str(store_kwargs.get("host_name", "")) or environ.get("MASTER_ADDR", "")
    number = port or whole(environ.get("MASTER_PORT"))
    if not host or not number:
        raise InternalError(
            f"rank {job_rank}: it is not known where the guards meet; set MASTER_ADDR and "
            'MASTER_PORT, as torchrun does, or give store_kwargs={"host_name": ..., "port": ...}'
        )
    if on_one_machine(host, world_size, environ):
        # No port is needed, and the kernel names the peer's user.
        digest = hashlib.sha256(run.encode()).hexdigest()[:16]
        name = f"{UNIX}undaunted-inprocess-{os.geteuid()}-{number}-{digest}"
        return Meeting(Place(hosts, name, run))
    token = _token(job_rank, environ)
    where = Address(host, number)
    if port:
        address = str(where._replace(host="") if hosts else where)
        return Meeting(Place(hosts, address, run, token))
    served = None
    if hosts:
        name = host_for_ranks({**environ, "MASTER_ADDR": host}, world_size)
        served = _serve(name, number, timeout_s)
    store = _with_prefix(served or _connect(where, job_rank, timeout_s), token, run)
    return Meeting(
        Place(hosts, str(Address("", 0)) if hosts else "", run, token),
        store,
        timeout_s,
        job_rank=job_rank,
        host=lambda: _reachable(host),
        others=world_size - 1,
        ours=served is not None,
    )


def _with_prefix(store: Any, token: bytes, run: str) -> Any:
    """Return the store for this job: jobs that meet in one do not take each other's keys."""
    import torch.distributed as dist

    digest = hmac.new(token, run.encode(), "sha256").hexdigest()
    return dist.PrefixStore(f"undaunted/{digest}", store)


def _agent_store(environ: Mapping[str, str], timeout_s: float) -> Any:
    """Return torchrun's own store, with keys of this run and restart."""
    import torch.distributed as dist

    try:
        host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        store = torch_store.connect(host, port, dt.timedelta(seconds=timeout_s))
    except Exception as error:
        raise InternalError(f"the store of torchrun's agent cannot be reached: {error}") from error
    return dist.PrefixStore(f"undaunted/{_run(environ)}", store)


def _serve(host: str, port: int, timeout_s: float) -> Any:
    """Return a store that this machine serves at the port; None = the port is taken."""
    try:
        sock = torch_store.listen(host, port)
    except OSError:
        return None
    store = torch_store.serve(sock, dt.timedelta(seconds=timeout_s))
    store.set(_FOR_A_MOMENT, "")
    return store


def _connect(where: Address, job_rank: int, timeout_s: float) -> Any:
    """Return the store at ``where``. Rank 0 needs one that exists already; others wait for it."""
    wait_s = min(_TAKEN_S, timeout_s) if job_rank == 0 else timeout_s
    try:
        store = torch_store.Connecting(*where, dt.timedelta(seconds=wait_s)).connect()
        passing = job_rank == 0 and store.check([_FOR_A_MOMENT])
    except Exception as error:
        reason = (
            f"the port is taken, and not by a store of torch's ({error}); give the job another "
            "MASTER_PORT"
            if job_rank == 0
            else f"nothing answers there within {wait_s:.0f} s (barrier_timeout): {error}; every "
            "rank must call the wrapped function, and reach rank 0's node"
        )
        raise InternalError(
            f"rank {job_rank}: the guards of this job meet at {where}, and {reason}"
        ) from error
    if passing:
        raise InternalError(
            f"rank 0: the guards of another job meet at {where}; give each job another MASTER_PORT"
        )
    return store


def _token(job_rank: int, environ: Mapping[str, str]) -> bytes:
    try:
        token = find_token(environ)
    except TokenError as error:
        raise InternalError(f"rank {job_rank}: {error}") from None
    if not token:
        raise InternalError(
            f"rank {job_rank}: the guards of several nodes need a secret to know each other by; "
            f"set {TOKEN_VARIABLE} to the same random text of at least 16 characters on all nodes"
        )
    return token


def _run(environ: Mapping[str, str]) -> str:
    """Return a name for this start of the job, from its launcher's variables."""
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_STEP_ID",
        "SLURM_RESTART_COUNT",
        "PMIX_NAMESPACE",  # mpirun, and srun --mpi=pmix
    )
    return ".".join(environ.get(name, "") for name in names)


def job_name(environ: Mapping[str, str]) -> str:
    """Return a name that all ranks of this start of the job have, and no other job on the node.

    "" = the environment has none.
    """
    names = ("MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    words = [environ.get(name, "") for name in names] + [_run(environ)]
    return " ".join(words) if any(word.strip(".") for word in words[1:]) else ""


def _reachable(master: str) -> str:
    """Return the name by which other nodes reach this machine."""
    return within(_LOOK_UP_S, lambda: own_host(master), socket.gethostname())


def on_one_machine(host: str, world_size: int, environ: Mapping[str, str]) -> bool:
    """Return whether all ranks are on this machine, by variables or by a local address.

    Args:
        host: ``MASTER_ADDR``, or the address in its place.
        world_size: as the launcher has set it: restarts change the variable.
        environ: the environment.
    """
    if environ.get("LOCAL_WORLD_SIZE") == str(world_size):
        return True
    return environ.get("SLURM_STEP_NUM_NODES") == "1" or host == "localhost" or is_loopback(host)


def host_for_ranks(environ: Mapping[str, str], world_size: int) -> str:
    """Return where other ranks reach this machine; "" = there are none.

    That is loopback on one machine, else the address from which this machine would speak to
    ``MASTER_ADDR``, or that name itself if it leads to loopback here.

    Args:
        environ: the environment.
        world_size: as the launcher has set it.

    Raises:
        InternalError: ``MASTER_ADDR`` cannot be looked up.
    """
    if world_size == 1:
        return ""
    master = environ.get("MASTER_ADDR", "")
    if not master or on_one_machine(master, world_size, environ):
        return torch_store.LOOPBACK
    try:
        here = own_address(master)
    except OSError as error:
        raise InternalError(f"MASTER_ADDR={master!r} cannot be looked up: {error}") from error
    return master if is_loopback(here) else here
