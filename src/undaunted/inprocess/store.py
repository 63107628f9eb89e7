"""Stores that a user may have the wrapper use in place of its own.

They are stores of torch, for ``init_process_group(store=...)`` too, and have barriers in addition.
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
    """A store that rank 0 serves; where the port is taken, the store that is served there.

    It is gone with rank 0's process. The wrapper does not need it: it is for jobs that want to
    use one store of theirs for everything.
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
            host_name: where rank 0 serves; None = ``MASTER_ADDR``.
            port: of it; None = ``MASTER_PORT``.
            world_size: how many processes use it; None = ``WORLD_SIZE``.
            timeout: of its operations (300 s).
            wait_for_workers: whether to wait for all of these processes.
            multi_tenant: whether stores of one process on one port are one server.
            use_libuv: which server of torch's is used.

        Raises:
            ValueError: something is not given, and not in the environment either.
            torch.distributed.DistError: it cannot be reached.
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
    """A store in another one, with keys of its own."""

    def __init__(self, prefix: str, store: Any) -> None:
        """Use ``store``, with ``prefix`` in front of all keys."""
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
