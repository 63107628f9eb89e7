"""Ranks agree when to stop without a launcher of ours: a thread, and torch's store.

The same as docs/design/training.md says of the pages: the thread has its rank wait that asks, tells
what it has asked about, and learns from rank 0 after which iteration all stop.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from undaunted.agreement.store import StoreLink
from undaunted.base import torch_ranks
from undaunted.training.stopping import WAIT, Answer, StopReason, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOOK_S = 0.5  # at the store, with up to so many ranks; with more of them less often
_RANKS = 512
_CONNECT_S = 10.0
_ALL_S = 60.0  # for all ranks to say what they have asked about
_CLOSE_S = 5.0
_LOG = logging.getLogger("undaunted")


class OverStore:
    """Answers by what all ranks say in a store. Owns a thread, a connection, two descriptors.

    Args:
        host, port: of the store.
        prefix: of its keys, the same on all ranks, another one for each start of them.
        rank: of this process.
        world_size: number of ranks.
    """

    def __init__(self, host: str, port: int, prefix: str, rank: int, world_size: int) -> None:
        self._link = StoreLink(host, port)
        self._prefix, self._rank, self._world_size = prefix, rank, world_size
        self._asked = -1
        self._word = 0
        self._wanted: StopReason | None = None
        self._answer: Answer | None = None
        self._store: Any = None
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._known = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="undaunted-stop", daemon=True)
        self._thread.start()

    @classmethod
    def by_environment(cls, environ: Mapping[str, str], start: str) -> OverStore | None:
        """Use the store of ``MASTER_ADDR`` and ``MASTER_PORT``; None = not all of it is given.

        Args:
            environ: has also ``RANK`` and ``WORLD_SIZE``.
            start: the same on all ranks, and another one each time.
        """
        try:
            rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
            host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        except (KeyError, ValueError):
            return None
        names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        prefix = "/".join(["undaunted/stop", *(environ.get(name, "") for name in names)])
        return cls(host, port, f"{prefix}/{start}", rank, world_size)

    def ask(self, iteration: int) -> int:
        """See `Answers`."""
        self._asked = iteration  # before the word is looked at
        return self._word

    def after(self, timeout_s: float, give_up: Callable[[], bool]) -> Answer | None:
        """See `Answers`."""
        deadline = time.monotonic() + timeout_s
        while self._answer is None and self._word and not give_up():
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            select.select([self._known], [], [], min(left_s, _LOOK_S))
        return self._answer

    def want(self, reason: StopReason, rank: int | None = None) -> None:  # noqa: ARG002
        """See `Answers`."""
        self._wanted = reason
        _notify(self._wake)

    def leave(self, told_s: float = 0.0) -> None:
        """See `Answers`: who has left is not waited for in an iteration that nobody can know."""

    def saved(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """See `Answers`: torchrun ends all ranks when one ends with a code."""
        if self._answer is None or self._store is None:
            return
        done = [f"done/{rank}" for rank in range(self._world_size)]
        with contextlib.suppress(Exception):  # the server of the store may be gone
            self._store.set(done[self._rank], "")
            deadline = time.monotonic() + timeout_s
            while time.monotonic() < deadline and not give_up() and not self._store.check(done):
                self._wait_a_moment(done)

    def _wait_a_moment(self, keys: list[str]) -> None:
        """Signals are heard between two such waits."""
        from torch.distributed import DistStoreError

        with contextlib.suppress(DistStoreError):
            self._store.wait(keys, timedelta(seconds=_LOOK_S))

    def close(self) -> None:
        """See `Answers`."""
        self._closing = True
        _notify(self._wake)
        self._link.interrupt()
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._known)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._store = store = self._connect()
            if not self._wait_for_request(store):
                return
            self._word = WAIT  # before what was asked is looked at
            self._agree(store, self._asked)
        except Exception as error:  # noqa: BLE001 - training goes on
            if self._word or self._wanted is not None:
                _LOG.warning(
                    "rank %d: ranks cannot agree when to stop, the store does not answer: %s",
                    self._rank,
                    str(error),
                )
        if self._answer is None:
            self._word = 0
            self._take_back()
        _notify(self._known)

    def _take_back(self) -> None:
        """This rank goes on: nobody may count on what it has asked."""
        with contextlib.suppress(Exception):
            self._store.delete_key(f"asked/{self._rank}")

    def _connect(self) -> Any:
        import torch.distributed as dist

        return dist.PrefixStore(self._prefix, self._link.reopen(_CONNECT_S))

    def _wait_for_request(self, store: Any) -> bool:
        """Wait until a rank wants to stop; False = nobody waits for that any more."""
        every_s = _LOOK_S * max(1.0, self._world_size / _RANKS)
        while not self._closing:
            if self._wanted is not None:
                store.set("request", self._wanted.value)
                return True
            if store.check(["request"]):
                return True
            select.select([self._wake], [], [], every_s)
        return False

    def _agree(self, store: Any, asked: int) -> None:
        all_of_them = [f"asked/{rank}" for rank in range(self._world_size)]
        store.set(all_of_them[self._rank], str(asked))
        limit = timedelta(seconds=_ALL_S)
        if self._rank == 0:
            store.wait(all_of_them, limit)
            after = 1 + max(int(store.get(key)) for key in all_of_them)
            why = store.get("request").decode()
            store.set("after", json.dumps([after, why]))
        store.wait(["after"], limit)
        after, why = json.loads(store.get("after"))
        reason = StopReason(why)
        self._answer = Answer(int(after), reason, text_of(reason))


def name_of_group() -> str:
    """Return a name of the default process group, the same on all its ranks; "" = there is none.

    A restart inside the process makes a new group. A count of each process would not do: a
    rank may have failed before it counted.
    """
    if not torch_ranks.is_distributed():
        return ""
    from undaunted.checkpointing.dcp.torch_private import default_store  # imports torch

    try:  # the name that the first rank gives
        mine = os.urandom(8).hex()
        return str(default_store().compare_set("undaunted/group", "", mine).decode())
    except Exception as error:  # noqa: BLE001 - training goes on
        _LOG.warning("the store of the process group does not answer: %s", error)
        return ""


def _notify(event: int) -> None:
    with contextlib.suppress(OSError):
        os.eventfd_write(event, 1)
