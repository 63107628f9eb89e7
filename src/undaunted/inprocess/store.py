"""Stores of torch with barriers, for `Wrapper(store_factory=...)`.

They also work for ``init_process_group(store=...)``.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from undaunted.inprocess.barriers import BarrierError, BarrierOverflow, BarrierTimeout, StoreMixin

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BarrierError",
    "BarrierOverflow",
    "BarrierTimeout",
    "FileStore",
    "PrefixStore",
    "StoreMixin",
    "TCPStore",
]


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

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """See `StoreMixin`."""
        return (0,)


class FileStore(StoreMixin, dist.FileStore):  # type: ignore[misc] # torch's class is not typed
    """A store in a file that all ranks share: ``FileStore(file_name, world_size=-1)``."""


class PrefixStore(StoreMixin, dist.PrefixStore):  # type: ignore[misc] # torch's class is not typed
    """A store within another store, with a prefix in front of its keys."""

    def __init__(self, prefix: str, store: Any) -> None:
        """Put ``prefix`` in front of all keys in ``store``."""
        super().__init__(prefix, store)
        self._critical_ranks: tuple[int, ...] = getattr(store, "critical_ranks", ())

    @property
    def critical_ranks(self) -> tuple[int, ...]:
        """See `StoreMixin`."""
        return self._critical_ranks


def _variable(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ValueError(f"{name} is not set; set it, or give the store its value (store_kwargs)")
    return environ[name]
