"""A store of torch that is that of the call under way, for code that wants one for all calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from datetime import timedelta


class CallStore(dist.Store):  # type: ignore[misc] # torch's class is not typed
    """Passes everything on to the store of a `CallWrapper`.

    A store that rank 0 serves at a port of its own would have ranks wait in C, where a restart
    cannot reach them, for one that has failed before. A call's own store is broken off.

    Attributes:
        call: the one under way, None = none is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.call: Any = None

    @property
    def _store(self) -> Any:
        if self.call is None:
            raise RuntimeError("this store can be used in the function that is restarted only")
        return self.call.store

    def set(self, key: str, value: str | bytes) -> None:
        """See `torch.distributed.Store`."""
        self._store.set(key, value)

    def get(self, key: str) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.get(key)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.compare_set(key, expected, desired)

    def add(self, key: str, amount: int) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.add(key, amount)

    def append(self, key: str, value: str | bytes) -> None:
        """See `torch.distributed.Store`."""
        self._store.append(key, value)

    def check(self, keys: list[str]) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.check(keys)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """See `torch.distributed.Store`."""
        self._store.wait(keys, *timeout)

    def delete_key(self, key: str) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.delete_key(key)

    def num_keys(self) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.num_keys()

    def multi_get(self, keys: list[str]) -> Any:
        """See `torch.distributed.Store`."""
        return self._store.multi_get(keys)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """See `torch.distributed.Store`."""
        self._store.multi_set(keys, values)

    def has_extended_api(self) -> bool:
        """See `torch.distributed.Store`."""
        return True

    # Names by which torch's code in C++ calls them.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815
