"""A store of torch that is that of the call under way, for code that wants one for all calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable


class CallStore(dist.Store):  # type: ignore[misc] # torch's class is not typed
    """Passes everything on to the store of a `CallWrapper`.

    A store that rank 0 serves at another port would have ranks wait in C, where a restart
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


def _passed_on(name: str) -> Callable[..., Any]:
    def call(self: CallStore, *args: Any) -> Any:
        return getattr(self._store, name)(*args)

    call.__name__ = name
    return call


# Names that Python uses, and those by which torch's code in C++ calls them.
_NAMES = ("set", "get", "compare_set", "add", "append", "check", "wait", "multi_get", "multi_set")
for _name in (*_NAMES, "delete_key", "num_keys", "has_extended_api"):
    setattr(CallStore, _name, _passed_on(_name))
CallStore.deleteKey = CallStore.delete_key
CallStore.getNumKeys = CallStore.num_keys
