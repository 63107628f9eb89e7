"""Asynchronous saves: what is to be done beside training, and what follows when it is done.

    queue = AsyncCallsQueue()
    queue.schedule_async_request(AsyncRequest(save, (state, path), [announce]))
    ...
    queue.maybe_finalize_async_calls()  # every step, on all ranks

The function of a request runs on a thread of this process (`FileSystemWriterAsync`'s hands the
bytes to the writer process and waits for it). The tensors in its arguments are copied when the
request is scheduled, so that training may change them at once. Nothing is forked and nothing is
pickled for another process, so that any function will do.
"""

from __future__ import annotations

import atexit
import logging
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar, NamedTuple

from undaunted.checkpointing.async_ckpt import pool
from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S, Ranks, State, agree
from undaunted.checkpointing.async_ckpt.request import AsyncRequest, bind
from undaunted.checkpointing.async_ckpt.runner import Call, Runner
from undaunted.checkpointing.errors import SaveError

__all__ = [
    "AsyncCaller",
    "AsyncCallsQueue",
    "AsyncRequest",
    "PersistentAsyncCaller",
    "TemporalAsyncCaller",
    "abort_nvrx_checkpoint",
]

_log = logging.getLogger("undaunted")


class AsyncCaller(ABC):
    """Runs the functions of requests beside training."""

    @abstractmethod
    def schedule_async_call(self, async_req: AsyncRequest) -> None:
        """Fix the content of the request, have it done, and return at once."""

    @abstractmethod
    def is_current_async_call_done(
        self,
        blocking: bool = False,
        no_dist: bool = False,
        call_idx: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> bool:
        """Return whether a request has ended well on all ranks.

        Args:
            blocking: wait until it has ended.
            no_dist: ask nobody else: whether it has ended on this rank.
            call_idx: of the request; None = the one scheduled last.
            timeout: for this rank, and then for the others, in seconds.

        Raises:
            SaveError: it has failed: on all ranks, unless ``no_dist``.
        """

    def sync_all_async_calls(self, is_alive: int) -> bool:
        """Return whether ``is_alive`` is 0 on all ranks; all ranks must call this."""
        return Ranks().total(is_alive) == 0

    @abstractmethod
    def close(self, abort: bool = False) -> None:
        """Wait for what was scheduled, or, to ``abort``, give it up."""


class PersistentAsyncCaller(AsyncCaller):
    """Runs requests one after the other.

    Args:
        is_daemon: accepted for compatibility.
        cpu_priority: niceness of the writer process, 0 to 19.
        io_priority: I/O class of the writer process: 1 real-time, 2 best effort, 3 idle; None = as
            it is.
        sigterm_timeout: how long `close` waits for requests, in seconds, after `abort`.
        cpu_shm_mode: accepted for compatibility: states always go through shared memory.
    """

    def __init__(
        self,
        is_daemon: bool = True,
        cpu_priority: int = 10,
        io_priority: int | None = None,
        sigterm_timeout: float = 30.0,
        cpu_shm_mode: bool = False,
    ) -> None:
        del is_daemon, cpu_shm_mode
        self.cpu_priority = cpu_priority
        self.io_priority = io_priority
        self.sigterm_timeout = sigterm_timeout
        self._runner = Runner()
        self._calls: dict[int, Call] = {}
        self._last = 0

    def schedule_async_call(self, async_req: AsyncRequest) -> None:
        """Copy what the request holds and have it done after those before it.

        What fails here is raised where the save is finalized: so all ranks learn of it.
        """
        self._last = async_req.call_idx
        try:
            bound = bind(async_req, copy=True)
            if bound is not None:
                self._calls[self._last] = self._runner.submit(bound, TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            self._calls[self._last] = Call.failed(error)

    def is_current_async_call_done(
        self,
        blocking: bool = False,
        no_dist: bool = False,
        call_idx: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> bool:
        """Return whether a request has ended well on all ranks; see `AsyncCaller`."""
        idx = self._last if call_idx is None else call_idx
        call = self._calls.get(idx)
        state, error = _look(call, timeout if blocking else 0.0)
        if blocking and state is State.RUNNING:
            error = SaveError(f"it was not done within {timeout:g} s")
            state = State.FAILED
        try:
            state = agree(Ranks(timeout_s=timeout, alone=no_dist), state, idx, error)
        except SaveError:
            self._forget(idx, "it has failed on another rank, or was not done in time")
            raise
        if state is State.DONE:
            self._forget(idx)
        return state is State.DONE

    def close(self, abort: bool = False) -> None:
        """Wait for what was scheduled, or, to ``abort``, give it up."""
        if abort:
            self._runner.abandon("it was aborted")
            self._calls.clear()
            self._runner = Runner()  # the thread of the old one may be in a function that stays
        elif not self._runner.join(TIMEOUT_S):
            _log.error("asynchronous saves were not done within %g s and are given up", TIMEOUT_S)
            self.close(abort=True)

    def _forget(self, idx: int, why: str = "") -> None:
        call = self._calls.pop(idx, None)
        if call is not None:
            call.give_up(why)  # does nothing when it has ended


class TemporalAsyncCaller(PersistentAsyncCaller):
    """Deprecated: the same as `PersistentAsyncCaller`; no process is forked."""

    def __init__(self) -> None:
        super().__init__()
        warnings.warn(
            "TemporalAsyncCaller does not fork any more, and does what PersistentAsyncCaller does:"
            " use AsyncCallsQueue(persistent=True)",
            DeprecationWarning,
            stacklevel=2,
        )


class _Active(NamedTuple):
    idx: int
    request: AsyncRequest


class AsyncCallsQueue:
    """The asynchronous saves of a rank that are not finalized, in the order they were scheduled.

    All ranks of a job schedule and finalize the same saves in the same order, or all calls that
    finalize say ``no_dist=True``. There may be several queues.

    Args:
        persistent: False is deprecated and makes no difference.
        is_daemon: accepted for compatibility.
        cpu_priority: niceness of the writer process, 0 to 19.
        io_priority: I/O class of the writer process; see `PersistentAsyncCaller`.
        sigterm_timeout: accepted for compatibility, in seconds.
        cpu_shm_mode: accepted for compatibility: states always go through shared memory.
    """

    _instances: ClassVar[weakref.WeakSet[AsyncCallsQueue]] = weakref.WeakSet()
    _in_use: ClassVar[weakref.WeakSet[AsyncCallsQueue]] = weakref.WeakSet()  # not closed

    def __init__(
        self,
        persistent: bool = True,
        is_daemon: bool = True,
        cpu_priority: int = 10,
        io_priority: int | None = None,
        sigterm_timeout: float = 30.0,
        cpu_shm_mode: bool = False,
    ) -> None:
        self._caller: PersistentAsyncCaller = (
            PersistentAsyncCaller(
                is_daemon, cpu_priority, io_priority, sigterm_timeout, cpu_shm_mode
            )
            if persistent
            else TemporalAsyncCaller()
        )
        pool.configure(cpu_priority, io_priority)
        self._active: deque[_Active] = deque()
        self._idx = -1
        AsyncCallsQueue._instances.add(self)

    @classmethod
    def get_instances(cls) -> list[AsyncCallsQueue]:
        """Return all queues of this process."""
        return list(cls._instances)

    @classmethod
    def warmup_persistent_caller(
        cls,
        rank: int = 0,
        is_daemon: bool = True,
        cpu_priority: int = 10,
        io_priority: int | None = None,
        sigterm_timeout: float = 30.0,
        cpu_shm_mode: bool = False,
    ) -> None:
        """Start the writer process now, and not with the first save.

        Args:
            rank: accepted for compatibility, like the others that are not named here.
            is_daemon: accepted for compatibility.
            cpu_priority: see `PersistentAsyncCaller`.
            io_priority: see `PersistentAsyncCaller`.
            sigterm_timeout: accepted for compatibility.
            cpu_shm_mode: accepted for compatibility.
        """
        del rank, is_daemon, sigterm_timeout, cpu_shm_mode
        pool.configure(cpu_priority, io_priority)
        pool.the_pool().warm_up()

    def schedule_async_request(self, async_request: AsyncRequest) -> int:
        """Fix the content of a request, have it done beside training, and return its number.

        Numbers count from 0. Tuples with fewer fields than `AsyncRequest` are accepted. What goes
        wrong is raised by `maybe_finalize_async_calls`.
        """
        request = AsyncRequest(*async_request)
        request = request._replace(call_idx=self._idx + 1, finalize_fns=[*request.finalize_fns])
        request = request.freeze()
        AsyncCallsQueue._in_use.add(self)
        self._caller.schedule_async_call(request)
        self._idx += 1
        self._active.append(_Active(self._idx, _without_content(request)))
        return self._idx

    def maybe_finalize_async_calls(
        self, blocking: bool = False, no_dist: bool = False, timeout: float = TIMEOUT_S
    ) -> list[int]:
        """Finalize the saves that are done, from the oldest to the first that is not.

        Costs one reduction of three integers while a save is on its way, and nothing else.

        Args:
            blocking: wait for all saves.
            no_dist: ask no other rank; finalize what is done here.
            timeout: for each wait, in seconds.

        Returns:
            The numbers of the saves that were finalized.

        Raises:
            SaveError: a save has failed: on all ranks, unless ``no_dist``. It is forgotten; those
                after it, and new ones, are not concerned.
        """
        finalized: list[int] = []
        while self._active:
            idx, request = self._active[0]
            try:
                done = self._caller.is_current_async_call_done(
                    blocking, no_dist, call_idx=idx, timeout=timeout
                )
            except SaveError:
                self._active.popleft()
                raise
            if not done:
                break
            self._active.popleft()
            request.execute_finalize_fns(validate_matching_call_idx=False)  # the check above did
            finalized.append(idx)
        return finalized

    def get_num_unfinalized_calls(self) -> int:
        """Return how many saves are not finalized."""
        return len(self._active)

    def close(self, abort: bool = False) -> None:
        """Finalize all saves, or, to ``abort``, forget them; the queue can be used again.

        The memory for copies is given back, and the writer process ends, with the last queue.
        All ranks must call this unless they ``abort``, as for `maybe_finalize_async_calls`.

        Raises:
            SaveError: a save has failed; the others were finalized.
        """
        failed: Exception | None = None
        while self._active and not abort:
            try:
                self.maybe_finalize_async_calls(blocking=True)
            except Exception as error:  # noqa: BLE001 - raised after the others
                failed = failed or error
        self._active.clear()
        self._idx = -1
        self._caller.close(abort)
        AsyncCallsQueue._in_use.discard(self)
        if not AsyncCallsQueue._in_use:
            pool.close(abort)
        if failed is not None:
            raise failed


def abort_nvrx_checkpoint() -> None:
    """Give up the asynchronous saves of all queues; waits for nothing and asks nobody."""
    for queue in AsyncCallsQueue.get_instances():
        queue.close(abort=True)


def _at_exit() -> None:
    lost = sum(queue.get_num_unfinalized_calls() for queue in AsyncCallsQueue.get_instances())
    if lost:
        _log.warning(
            "%d asynchronous saves were not finalized when the process ended, and are no"
            " checkpoints: call close() of the AsyncCallsQueue at the end of training",
            lost,
        )


atexit.register(_at_exit)


def _without_content(request: AsyncRequest) -> AsyncRequest:
    """What is needed to finalize: not the arguments, which hold the state of the training."""
    return request._replace(async_fn=None, async_fn_args=(), async_fn_kwargs=None, preload_fn=None)


def _look(call: Call | None, wait_s: float) -> tuple[State, BaseException | None]:
    if call is None:
        return State.DONE, None
    if not call.wait(wait_s):
        return State.RUNNING, None
    return (State.DONE, None) if call.error is None else (State.FAILED, call.error)
