"""Aborting process groups while they are being made.

`init_process_group` and `new_group` wait in the store until all ranks have come, and gloo waits for
peers to connect; neither can be interrupted. While a wrapped function runs, `watch` keeps a list of
the groups that are being made, so that an abort can end these waits.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from undaunted.inprocess.communication import c10d, gloo, stores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from datetime import timedelta

_log = logging.getLogger("undaunted")

_SETTLE_S = 0.05  # for threads to come back whose wait in the store was ended
_ROUNDS = 10
_FIRST_DELAY_S = 0.01
_LONGEST_DELAY_S = 0.5
_STORE_PARAMETERS = ("hostname", "port", "rank", "world_size", "timeout", "use_libuv")


class CreationAbortedError(RuntimeError):
    """A process group was to be made while all groups were aborted, or after that."""


class Creations:
    """The groups that are being made in one run of the function.

    Attributes:
        prefix: of all keys of process groups, in any store; the same in all ranks.
        temporary: ports of servers whose clients are of no use after the function.
    """

    def __init__(self, prefix: str, temporary: set[int]) -> None:
        self.prefix = prefix
        self.temporary = temporary
        self._aborted = threading.Event()
        self._changed = threading.Condition()
        self._underway: list[tuple[int, Any]] = []
        self._interrupted: list[Any] = []
        self._renewals = contextlib.ExitStack()
        self._closed = False

    @contextlib.contextmanager
    def underway(self, group_size: int, store: Any) -> Iterator[None]:
        """Note that a group is being made, whose ranks find each other in ``store``.

        Raises:
            CreationAbortedError: groups were aborted before or meanwhile.
        """
        one = (group_size, store)
        with self._changed:
            self.check()
            self._underway.append(one)
        try:
            yield
            self.check()
        finally:
            with self._changed:
                self._underway.remove(one)
                self._changed.notify_all()

    def check(self) -> None:
        """Raise `CreationAbortedError` if groups were aborted."""
        if self.is_aborted():
            raise CreationAbortedError(
                "process groups were aborted, because the function is restarted"
            )

    def is_aborted(self) -> bool:
        """Return whether groups were aborted."""
        return self._aborted.is_set()

    def wait_aborted(self, timeout_s: float) -> bool:
        """Return True as soon as groups are aborted, or False after ``timeout_s``."""
        return self._aborted.wait(timeout_s)

    def forbid(self) -> bool:
        """Let no other group be made; return whether one is being made, or connects later."""
        self._aborted.set()
        with self._changed:
            return bool(self._underway) or gloo.connects_late()

    def abort(self) -> None:
        """End all waits in the making of a group, after `forbid`."""
        late = c10d.groups() if gloo.connects_late() else []
        for attempt in range(_ROUNDS):
            with self._changed:
                waiting = [*self._underway, *late]
            for group_size, store in waiting:
                self._interrupt(store)
                if attempt or late:  # the thread does not wait in the store
                    gloo.visit(group_size)
            if waiting:
                gloo.abort()
            late = []
            with self._changed:
                if self._changed.wait_for(lambda: not self._underway, _SETTLE_S):
                    return
        _log.error(
            "The making of a process group cannot be aborted; the rank is ended by the hard timeout"
        )

    def _interrupt(self, store: Any) -> None:
        client = stores.tcp_client(store)
        with self._changed:
            if client is None or self._closed or any(client is one for one in self._interrupted):
                return
            self._interrupted.append(client)
            self._renewals.enter_context(stores.interrupted(client, self.temporary))

    def close(self) -> None:
        """Let stores that were interrupted work again: no thread waits in them any more."""
        with self._changed:
            self._closed = True
        self._renewals.close()
        self._interrupted.clear()


_active: Creations | None = None


def forbid() -> bool:
    """Let no group be made before the present `watch` is left.

    Returns:
        Whether one is being made, or connects later: `abort` ends that.
    """
    return _active is not None and _active.forbid()


def abort() -> None:
    """Abort the making of groups, after `forbid`."""
    if _active is not None:
        _active.abort()


@contextlib.contextmanager
def watch(prefix: str = "", temporary: Collection[int] = ()) -> Iterator[None]:
    """Make it possible to abort groups while they are being made; for one run of the function.

    One thread at a time may be inside, and only when all ranks have aborted the run before.

    Args:
        prefix: of the keys by which the ranks of process groups find each other, "" = none. It is
            the same in all ranks and new in every run, so that ranks find no keys of an earlier run
            in a store that lives longer.
        temporary: ports of servers whose clients need no new connection after an abort.
    """
    global _active  # noqa: PLW0603
    gloo.release()
    c10d.release()
    c10d.forget_unfinished()  # all ranks number their groups from 0
    hook = sys.excepthook
    creations = _active = Creations(prefix, set(temporary))
    try:
        with _hooks(creations):
            yield
    finally:
        _active = None
        creations.close()
        if creations.is_aborted():
            c10d.destroy_groups()  # one that was completed just then
        # Every init_process_group wraps the hook once more.
        if getattr(sys.excepthook, "__module__", "") == c10d.module().__name__:
            sys.excepthook = hook


@contextlib.contextmanager
def _hooks(creations: Creations) -> Iterator[None]:
    """Replace two functions of torch, if they have the known signatures."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    make_groups = functools.partial(_groups, creations)
    make_stores = functools.partial(_stores, creations)
    with contextlib.ExitStack() as stack:
        _replace(stack, c10d.module(), "_new_process_group_helper", make_groups)
        _replace(stack, rendezvous, "_create_c10d_store", make_stores)
        yield


def _replace(
    stack: contextlib.ExitStack,
    module: Any,
    name: str,
    substitute: Callable[[Callable[..., Any]], Callable[..., Any] | None],
) -> None:
    original = getattr(module, name, None)
    replacement = substitute(original) if original is not None else None
    if replacement is None:
        _log.warning(
            "This torch has no known %s.%s: groups cannot be aborted while they are made",
            module.__name__,
            name,
        )
        return
    setattr(module, name, replacement)
    stack.callback(setattr, module, name, original)


_signature = functools.lru_cache(maxsize=8)(inspect.signature)  # each run asks again


def _groups(creations: Creations, original: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function that makes groups with keys of this run, and notes them meanwhile."""
    signature = _signature(original)
    if not {"group_size", "store", "global_ranks_in_group"} <= signature.parameters.keys():
        return None

    def new_process_group(*args: Any, **kwargs: Any) -> Any:
        from torch.distributed import PrefixStore

        bound = signature.bind(*args, **kwargs)
        arguments = bound.arguments
        if creations.prefix and not arguments["global_ranks_in_group"]:  # others use its store
            arguments["store"] = PrefixStore(creations.prefix, arguments["store"])
        with creations.underway(arguments["group_size"], arguments["store"]):
            return original(*bound.args, **bound.kwargs)

    return new_process_group


def _stores(creations: Creations, original: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function that makes stores for `init_process_group`, with abortable waits."""
    signature = _signature(original)
    if tuple(signature.parameters) != _STORE_PARAMETERS:
        return None

    def create_store(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _create_store(creations, *bound.args)

    return create_store


def _create_store(
    creations: Creations,
    host: str,
    port: int,
    rank: int,
    world_size: int | None,
    timeout: timedelta,
    use_libuv: bool,
) -> Any:
    """Make a store as torch does, but with abortable waits for the server and the other ranks."""
    from torch.distributed import PrefixStore, TCPStore

    served_by_launcher = _is_of_the_agent(host, port)
    serve = rank == 0 and not served_by_launcher
    if not serve:
        _await_server(creations, host, port, timeout.total_seconds())
    if not served_by_launcher:
        creations.temporary.add(port)
    store: Any = TCPStore(
        host_name=host,
        port=port,
        world_size=world_size,
        is_master=serve,
        timeout=timeout,
        wait_for_workers=False,
        multi_tenant=not served_by_launcher,
        use_libuv=use_libuv,
    )
    if creations.prefix:
        store = PrefixStore(creations.prefix, store)
    with creations.underway(0, store):
        _await_ranks(store, world_size or 0, timeout)
    return store


def _is_of_the_agent(host: str, port: int) -> bool:
    """Return whether torchrun's agent serves a store there: at its own address only."""
    its = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    return its.items() <= os.environ.items()


def _await_server(creations: Creations, host: str, port: int, timeout_s: float) -> None:
    """Wait until a server takes connections; if there is none in time, torch raises the error."""
    deadline = time.monotonic() + timeout_s
    delay_s = _FIRST_DELAY_S
    while not stores.is_served(host, port) and (left_s := deadline - time.monotonic()) > 0:
        if creations.wait_aborted(min(delay_s, left_s)):
            creations.check()
        delay_s = min(2 * delay_s, _LONGEST_DELAY_S)


def _await_ranks(store: Any, world_size: int, timeout: timedelta) -> None:
    """Wait until all ranks have connected: the server must not end before."""
    if store.add("undaunted/ranks", 1) >= world_size:
        store.set("undaunted/all", "")
    store.wait(["undaunted/all"], timeout)
