"""A TCPStore whose calls end in time, whatever its server does.

A client of a TCPStore waits for the server's answers in its one connection. It has no time limit of
its own once the server stands still, and no function that ends the wait. So calls are made in a
thread, and when time is up, or another thread says so, the connection is shut down, which ends it.
"""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from undaunted.agreement.failures import AgreedError
from undaunted.base import open_sockets, torch_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.base.open_sockets import Descriptor

T = TypeVar("T")

ABORTED = "the agreement between the ranks was given up"
# One thread at a time: it looks for the new connection.
_connecting = threading.Lock()


class AbortedError(AgreedError):
    """The wait was given up by this process itself."""


class TimedOutError(AgreedError):
    """The store did not answer in time."""


class Bounded:
    """One call at a time.

    Attributes:
        aborted: see `abort`.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        """Args: what has a call in progress fail, from another thread."""
        self._interrupt = interrupt
        self.aborted = False
        self._lock = threading.Lock()
        self._done: threading.Event | None = None

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Return what the function returns, or raise what it raises.

        Raises:
            TimedOutError: it did not return in time.
            AbortedError: see :meth:`abort`.
        """
        done = threading.Event()
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(function())
            except Exception as error:  # noqa: BLE001 - raised in the caller
                errors.append(error)
            finally:
                done.set()

        with self._lock:
            if self.aborted:
                raise AbortedError(ABORTED)
            self._done = done
        thread = threading.Thread(target=run, name="undaunted-agreement", daemon=True)
        thread.start()
        try:
            in_time = done.wait(timeout_s)
        except BaseException:
            self._interrupt()
            raise
        if self.aborted:
            raise AbortedError(ABORTED)
        if not in_time:
            self._interrupt()
            raise TimedOutError(f"no answer within {timeout_s:g} s")
        thread.join(timeout_s)  # its last instructions
        if errors:
            raise errors[0]
        return results[0]

    def abort(self) -> None:
        """Have the call in progress, and all later ones, raise `AbortedError`."""
        with self._lock:
            self.aborted = True
            done = self._done
        if done is not None and not done.is_set():
            self._interrupt()
            done.set()


class StoreLink:
    """The connection to a store's server.

    Attributes:
        host, port: of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        """Args: where the store is served."""
        self.port = port
        self.host = host
        self._connection: Descriptor | None = None
        self._connecting: torch_store.Connecting | None = None

    @classmethod
    def serve(cls, timeout_s: float, at: str = torch_store.LOOPBACK) -> tuple[StoreLink, Any]:
        """Serve a store in this process at a free port, and connect to it.

        A torch store knows no token: every process that reaches the port can read and write it.

        Args:
            timeout_s: of the store.
            at: an address of this machine, as a number; "" = all of them.

        Returns:
            The link, and the store: the server ends with it.

        Raises:
            OSError: this machine has no such address.
        """
        listening = torch_store.listen(at)
        link = cls(at or torch_store.LOOPBACK, listening.getsockname()[1])
        with _connecting:
            store = torch_store.serve(listening, timedelta(seconds=timeout_s))
            link._connection = torch_store.connection_of(store)
        return link, store

    def reopen(self, timeout_s: float, given_up: Callable[[], bool] = bool) -> Any:
        """Return a store that is connected to the server.

        Args:
            timeout_s: how long to wait for the server.
            given_up: says whether the caller was interrupted before this could be.

        Raises:
            AgreedError: the server does not answer in time, or this was interrupted.
            RuntimeError: nobody serves there; torch says why.
        """
        connecting = torch_store.Connecting(self.host, self.port, timedelta(seconds=timeout_s))
        self._connecting = connecting  # from now on `interrupt` ends this
        if given_up():
            raise AbortedError(ABORTED)
        if not _connecting.acquire(timeout=timeout_s):
            raise TimedOutError(f"another connection is being made for {timeout_s:g} s")
        try:
            store = connecting.connect()
        except InterruptedError:
            raise AbortedError(ABORTED) from None
        except TimeoutError as error:
            raise TimedOutError(str(error)) from None
        finally:
            _connecting.release()
            self._connecting = None
        self._connection = connecting.connection
        return store

    def interrupt(self) -> None:
        """Have calls that wait in the store, and `reopen`, fail; it is of no use afterwards."""
        if (connecting := self._connecting) is not None:
            connecting.give_up()
        if self._connection is not None:
            with contextlib.suppress(OSError):  # there is no descriptor left to do it by
                open_sockets.shut_down(self._connection)
