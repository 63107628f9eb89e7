"""Barriers over a store of torch, with a few requests by each rank, for any number of ranks.

Every rank that comes adds one to a counter; the last one sets a key, and all others wait for the
key in one request. A name can be used for one barrier only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from undaunted.inprocess.exception import RestartError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

_HOME = "undaunted.inprocess.store"  # where programs import the errors from
_PREFIX = "inprocess_barrier_prefix"
_REPEATED = 1 << 32  # added to the counter where a rank comes again


class BarrierError(RestartError):
    """A barrier has failed."""

    __module__ = _HOME


class BarrierTimeout(BarrierError):  # noqa: N818 - the name users know
    """Not all ranks came in time."""

    __module__ = _HOME


class BarrierOverflow(BarrierError):  # noqa: N818 - the name users know
    """More ranks came than were expected, or a name was used twice."""

    __module__ = _HOME


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
    """Whether it is a timeout, for which stores have different errors."""
    from torch.distributed import DistNetworkError, DistStoreError

    if isinstance(error, DistNetworkError):
        return False
    return isinstance(error, DistStoreError) or "timeout" in str(error).lower()


class StoreMixin:
    """Methods that stores for in-process restart have in addition to those of torch."""

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """Initial ranks whose processes the store needs."""
        return ()

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
