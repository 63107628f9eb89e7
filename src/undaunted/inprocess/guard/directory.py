"""How the guards of a job find its controller, where no launcher of ours is there.

Decided in the rank, before its guard serves: torch's stores are there.

| the job has | the controller is |
|---|---|
| one rank | in its guard, and listens nowhere |
| a store (a custom `store_factory`'s, or torchrun's own) | where rank 0 says in that store |
| none | at ``host_name`` and ``port`` of `store_kwargs` |

In a store, rank 0 leaves a random token as well. Otherwise it is in the environment.
"""

from __future__ import annotations

import datetime as dt
import secrets
import socket
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from undaunted.base.deadline import within
from undaunted.coordinator.wire.address import Address, is_loopback
from undaunted.coordinator.wire.own_address import own_host
from undaunted.coordinator.wire.token import VARIABLE as TOKEN_VARIABLE
from undaunted.coordinator.wire.token import TokenError, find_token
from undaunted.inprocess.exception import InternalError

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "undaunted/inprocess/controller"

_LOOPBACK = "127.0.0.1"
_LOOK_UP_S = 10.0


class Place(NamedTuple):
    """Where a guard finds the controller; see `startup.Begin`."""

    hosts: bool
    address: str = ""
    run: str = ""
    token: bytes = b""


class Directory(Protocol):
    """Where the controller is."""

    def find(self) -> Place:
        """Return it; waits until it is known.

        Raises:
            InternalError: it cannot be found; says what to do.
        """

    def publish(self, port: int) -> None:
        """In rank 0, whose guard listens at ``port`` now: tell the others.

        Raises:
            InternalError: they cannot be told.
        """


def directory(
    job_rank: int,
    world_size: int,
    environ: Mapping[str, str],
    *,
    base_store: Any = None,
    store_kwargs: Mapping[str, Any],
    timeout_s: float,
) -> Directory:
    """Return what fits this job.

    Args:
        job_rank: as the launcher has set it.
        world_size: as the launcher has set it.
        environ: the environment.
        base_store: what a custom `store_factory` has made, None = there is none.
        store_kwargs: as given to `Wrapper`; ``host_name`` and ``port`` are used.
        timeout_s: longest wait for a store, seconds.

    Raises:
        InternalError: torchrun's store cannot be reached.
    """
    if world_size == 1:
        return _Alone()
    port = int(store_kwargs.get("port", 0))
    if base_store is None and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        base_store = _agent_store(environ, timeout_s)
    if base_store is not None:
        return _Published(base_store, job_rank, world_size, environ, port, timeout_s)
    return _Fixed(job_rank, world_size, environ, str(store_kwargs.get("host_name", "")), port)


class _Alone:
    """One rank: nobody else has to find anything."""

    def find(self) -> Place:
        return Place(hosts=True)

    def publish(self, port: int) -> None:
        del port


class _Published:
    """A store that all ranks have."""

    def __init__(
        self,
        store: Any,
        job_rank: int,
        world_size: int,
        environ: Mapping[str, str],
        port: int,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._job_rank = job_rank
        self._port = port
        self._timeout_s = timeout_s
        self._master = environ.get("MASTER_ADDR", "") or socket.gethostname()
        self._local = _on_one_machine(self._master, world_size, environ)
        self._token = secrets.token_hex(32)

    def find(self) -> Place:
        return self._here() if self._job_rank == 0 else self._told()

    def _here(self) -> Place:
        address = str(Address(_LOOPBACK if self._local else "", self._port))
        return Place(hosts=True, address=address, token=self._token.encode())

    def _told(self) -> Place:
        try:
            self._store.wait([KEY], dt.timedelta(seconds=self._timeout_s))
            address, _, token = self._store.get(KEY).decode().partition(" ")
        except Exception as error:
            raise InternalError(
                f"rank {self._job_rank}: rank 0 has not said within {self._timeout_s:.0f} s "
                f"(barrier_timeout) where its guard listens ({error}); every rank must call the "
                "wrapped function"
            ) from error
        return Place(hosts=False, address=address, token=token.encode())

    def publish(self, port: int) -> None:
        host = _LOOPBACK if self._local else _reachable(self._master)
        try:
            self._store.set(KEY, f"{Address(host, port)} {self._token}")
        except Exception as error:
            raise InternalError(
                f"rank 0 cannot tell the others where its guard listens: {error}"
            ) from error


class _Fixed:
    """No store: an address that all know, and a token."""

    def __init__(
        self, job_rank: int, world_size: int, environ: Mapping[str, str], host: str, port: int
    ) -> None:
        self._job_rank = job_rank
        self._world_size = world_size
        self._environ = environ
        self._host = host or environ.get("MASTER_ADDR", "")
        self._port = port or _next_to(environ.get("MASTER_PORT", ""))

    def find(self) -> Place:
        if not self._host or not self._port:
            raise InternalError(
                f"rank {self._job_rank}: it is not known where rank 0's guard listens; set "
                "MASTER_ADDR and MASTER_PORT, as torchrun does, or give "
                'store_kwargs={"host_name": ..., "port": ...}'
            )
        try:
            token = find_token(self._environ)
        except TokenError as error:
            raise InternalError(f"rank {self._job_rank}: {error}") from None
        hosts = self._job_rank == 0
        host = self._host
        if _on_one_machine(host, self._world_size, self._environ):
            host = _LOOPBACK
        elif not token:
            raise InternalError(
                f"rank {self._job_rank}: the guards of several nodes need a secret to know each "
                f"other by; set {TOKEN_VARIABLE} to the same random text of at least 16 "
                "characters on all nodes"
            )
        elif hosts:
            host = ""  # all interfaces
        return Place(hosts, str(Address(host, self._port)), _run(self._environ), token)

    def publish(self, port: int) -> None:
        del port


def _agent_store(environ: Mapping[str, str], timeout_s: float) -> Any:
    """Return torchrun's own store, as this run and this restart of it see it."""
    import torch.distributed as dist

    try:
        store = dist.TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=False,
            wait_for_workers=False,
            timeout=dt.timedelta(seconds=timeout_s),
        )
    except Exception as error:
        raise InternalError(f"the store of torchrun's agent cannot be reached: {error}") from error
    return dist.PrefixStore(f"undaunted/{_run(environ)}", store)


def _run(environ: Mapping[str, str]) -> str:
    """Name this start of the job, as far as its launcher does."""
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_STEP_ID",
        "SLURM_RESTART_COUNT",
        "PMIX_NAMESPACE",  # mpirun, and srun --mpi=pmix
    )
    return ".".join(environ.get(name, "") for name in names)


def _next_to(port: str) -> int:
    return int(port) + 1 if port.isascii() and port.isdigit() else 0


def _on_one_machine(host: str, world_size: int, environ: Mapping[str, str]) -> bool:
    """Whether the launcher says that all ranks are here, or the address cannot be reached else."""
    if environ.get("LOCAL_WORLD_SIZE") == str(world_size):
        return True
    return environ.get("SLURM_STEP_NUM_NODES") == "1" or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def _reachable(master: str) -> str:
    """Return under which name other nodes reach this machine."""
    return within(_LOOK_UP_S, lambda: own_host(master), socket.gethostname())
