"""Stores of torch with barriers, for `Wrapper(store_factory=...)` and `init_process_group`.

At a barrier every rank that comes adds one to a counter; the last one sets a key, and all others
wait for the key in one request. A name can be used for one barrier only.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from undaunted.inprocess.exception import BarrierError as BarrierError
from undaunted.inprocess.exception import BarrierTimeout as BarrierTimeout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PREFIX = "inprocess_barrier_prefix"
_REPEATED = 1 << 32  # added to the counter where a rank comes again


class BarrierOverflow(BarrierError):  # noqa: N818 - the name of NVRx
    """More ranks came than were expected, or a name was used twice."""


def barrier(
    store: Any,
    ranks: Iterable[int],
    group_name: str,
    rendezvous_count: int,
    timeout: timedelta,
) -> None:
    """Wait until ``rendezvous_count`` ranks have come.

    Args:
        store: of torch; other threads that use the same object wait meanwhile.
        ranks: that this process comes for.
        group_name: of this barrier; not used before in this store.
        rendezvous_count: how many ranks are to come, these included.
        timeout: of the wait.

    Raises:
        BarrierTimeout: not all ranks came in time.
        BarrierOverflow: too many ranks came.
    """
    key = f"{_PREFIX}:barrier:{group_name}"
    ours = len(list(ranks))
    if not ours:
        return
    here = store.add(f"{key}:arrived", ours)
    if here > rendezvous_count:
        raise BarrierOverflow(
            f"{here} ranks have come to barrier {group_name!r}, which is for {rendezvous_count}: "
            "use each name once, and have all ranks give the same number"
        )
    if here == rendezvous_count:
        store.set(f"{key}:last_worker_arrived", "1")
    _wait(store, key, group_name, rendezvous_count, timeout)


def reentrant_barrier(
    store: Any,
    ranks: Iterable[int],
    group_name: str,
    rendezvous_count: int,
    timeout: timedelta,
) -> None:
    """Wait until ranks 0 to ``rendezvous_count`` - 1 have come; each may come several times.

    So a process can come for another rank that may have come already. Arguments and errors as in
    `barrier`.
    """
    key = f"{_PREFIX}:reentrant_barrier:{group_name}"
    for rank in ranks:
        if not 0 <= rank < rendezvous_count:
            raise BarrierOverflow(
                f"rank {rank} has come to barrier {group_name!r}, which is for "
                f"{rendezvous_count} ranks"
            )
        first = store.add(f"{key}:rank:{rank}", 1) == 1
        # A process may end after its mark and before it is counted: from the first repetition on,
        # the marks count and not the counter.
        here = store.add(f"{key}:arrived", 1 if first else _REPEATED)
        full = here == rendezvous_count or (
            here >= _REPEATED
            and store.check([f"{key}:rank:{each}" for each in range(rendezvous_count)])
        )
        if full:
            store.set(f"{key}:last_worker_arrived", "1")
    _wait(store, key, group_name, rendezvous_count, timeout)


def _wait(store: Any, key: str, name: str, expected: int, timeout: timedelta) -> None:
    try:
        store.wait([f"{key}:last_worker_arrived"], timeout)
    except RuntimeError as error:
        if not _is_timeout(error):  # for example, the server is gone
            raise
        raise BarrierTimeout(
            f"barrier {name!r}, which is for {expected} ranks, was not full after {timeout}"
        ) from error


def _is_timeout(error: RuntimeError) -> bool:
    """Return whether it is a timeout, for which stores have different errors."""
    if isinstance(error, dist.DistNetworkError):
        return False
    return isinstance(error, dist.DistStoreError) or "timeout" in str(error).lower()


class StoreMixin:
    """Methods that stores for in-process restart have in addition to those of torch."""

    def barrier(
        self,
        ranks: Iterable[int],
        group_name: str,
        rendezvous_count: int,
        timeout: timedelta,
        timeout_chunk: timedelta | None = None,  # noqa: ARG002 - the wait is one request
    ) -> None:
        """See `barrier`; ``timeout_chunk`` changes nothing."""
        barrier(self, ranks, group_name, rendezvous_count, timeout)

    def reentrant_barrier(
        self,
        ranks: Iterable[int],
        group_name: str,
        rendezvous_count: int,
        timeout: timedelta,
        timeout_chunk: timedelta | None = None,  # noqa: ARG002 - the wait is one request
    ) -> None:
        """See `reentrant_barrier`; ``timeout_chunk`` changes nothing."""
        reentrant_barrier(self, ranks, group_name, rendezvous_count, timeout)


class TCPStore(StoreMixin, dist.TCPStore):  # type: ignore[misc] # torch's class is not typed
    """A store that rank 0 serves; if the port is taken, a client of the store that is there.

    It ends with rank 0's process. The wrapper does not need it: it is for jobs that use one store
    of their own for everything.
    """

    def __init__(
        self,
        host_name: str | None = None,
        port: int | None = None,
        world_size: int | None = None,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        use_libuv: bool = True,
    ) -> None:
        """Serve or connect, according to ``RANK``.

        Args:
            host_name: address of rank 0; None = ``MASTER_ADDR``.
            port: of the store; None = ``MASTER_PORT``.
            world_size: number of processes that use it; None = ``WORLD_SIZE``.
            timeout: of its operations (300 s).
            wait_for_workers: whether to wait for all these processes.
            multi_tenant: whether stores of one process on one port share a server.
            use_libuv: whether torch's server uses libuv.

        Raises:
            ValueError: an argument and its variable are both missing.
            torch.distributed.DistError: the store cannot be reached.
        """
        where: dict[str, Any] = {
            "host_name": host_name or _variable(os.environ, "MASTER_ADDR"),
            "port": int(_variable(os.environ, "MASTER_PORT")) if port is None else port,
            "world_size": int(_variable(os.environ, "WORLD_SIZE"))
            if world_size is None
            else world_size,
        }
        how: dict[str, Any] = {
            "timeout": timeout,
            "wait_for_workers": wait_for_workers,
            "multi_tenant": multi_tenant,
            "use_libuv": use_libuv,
        }
        if os.environ.get("RANK", "0") == "0":
            try:
                super().__init__(**where, is_master=True, **how)
            except dist.DistNetworkError as error:
                if "EADDRINUSE" not in str(error):
                    raise
            else:
                return
        super().__init__(**where, is_master=False, **how)


class FileStore(StoreMixin, dist.FileStore):  # type: ignore[misc] # torch's class is not typed
    """A store in a file that all ranks share: ``FileStore(file_name, world_size=-1)``."""


class PrefixStore(StoreMixin, dist.PrefixStore):  # type: ignore[misc] # torch's class is not typed
    """The part of a store that belongs to one iteration.

    Args:
        iteration: number of it; a text is the prefix itself.
        store: the whole.
    """

    STORE_PREFIX = "_inprocess_{iteration}"

    def __init__(self, iteration: int | str, store: Any) -> None:
        is_number = isinstance(iteration, int)
        prefix = self.STORE_PREFIX.format(iteration=iteration) if is_number else str(iteration)
        super().__init__(prefix, store)


def _variable(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ValueError(f"{name} is not set; set it, or give the store its value (store_kwargs)")
    return environ[name]
