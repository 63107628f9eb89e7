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
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from undaunted.checkpointing import aborting
from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S, RankFailure, Ranks, State, agree
from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.memory.pool import Pool
from undaunted.checkpointing.writer.job import WriterOptions
from undaunted.checkpointing.writer.process import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AsyncCaller",
    "AsyncCallsQueue",
    "AsyncRequest",
    "PersistentAsyncCaller",
    "TemporalAsyncCaller",
    "abort_nvrx_checkpoint",
]

_log = logging.getLogger("undaunted")

WAITING_AT_MOST = 16  # requests of a queue that have not begun
EXIT_GRACE_S = 5.0
ARENAS = 2  # one may be copied to while the other is written

_IO_CLASSES = {2: "best-effort", 3: "idle"}

_lock = threading.Lock()
_options = WriterOptions()
_pool: Pool | None = None


def the_pool() -> Pool:
    """Return the arenas of this process."""
    global _pool  # noqa: PLW0603 - there is one per process
    with _lock:
        if _pool is None:
            _pool = Pool(ARENAS, "undaunted-async", "finalize what was scheduled")
        return _pool


def close_pool() -> None:
    """Give memory back, that of leases with them; the next save allocates anew."""
    global _pool
    with _lock:
        pool, _pool = _pool, None
    if pool is not None:
        pool.close()


def new_writer() -> Writer:
    """Return a writer for one save, so that one save is ended without another one."""
    return Writer("/", _options)


def configure_writers(cpu_priority: int, io_priority: int | None) -> None:
    """Say how writers behave from now on.

    Args:
        cpu_priority: niceness.
        io_priority: 2 best effort, 3 idle, anything else: as the trainer's.
    """
    global _options  # noqa: PLW0603 - likewise
    io_class = _IO_CLASSES.get(io_priority or 0)
    _options = WriterOptions(nice=cpu_priority, io_class=io_class)


class AsyncRequest(NamedTuple):
    """One asynchronous save.

    Attributes:
        async_fn: does the save; None when this rank has nothing to save. If it has an attribute
            ``cancel``, that is called to end it.
        async_fn_args: its arguments. The tensors and arrays in them, in dicts, lists and tuples,
            are copied to the CPU when the request is scheduled.
        finalize_fns: called without arguments on the training thread, one after the other, when
            ``async_fn`` has ended well on all ranks.
        async_fn_kwargs: its named arguments, copied like the others.
        preload_fn: called when the request is scheduled; what it returns replaces the second
            argument and must not change any more.
        is_frozen: whether functions can be added.
        call_idx: number of the save; set when it is scheduled.
    """

    async_fn: Callable[..., Any] | None
    async_fn_args: tuple[Any, ...]
    finalize_fns: list[Callable[[], Any]]
    async_fn_kwargs: dict[str, Any] | None = None
    preload_fn: Callable[[], Any] | None = None
    is_frozen: bool = False
    call_idx: int = 0

    def add_finalize_fn(self, fn: Callable[[], Any]) -> None:
        """Have ``fn`` called as the last one when the save is done.

        Raises:
            RuntimeError: the request is scheduled already.
        """
        if self.is_frozen:
            raise RuntimeError("a finalize function cannot be added to a request that is scheduled")
        self.finalize_fns.append(fn)

    def freeze(self) -> AsyncRequest:
        """Return the same request, to which nothing can be added."""
        return self._replace(is_frozen=True)

    def execute_sync(self, timeout: float = TIMEOUT_S) -> None:
        """Do the save here and now, on all ranks.

        Args:
            timeout: for the other ranks, in seconds.

        Raises:
            SaveError: on all ranks, when it has failed on any of them.
        """
        failure = cause = None
        try:
            if self.async_fn is not None:
                _bound(self, copy=False)()
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            failure, cause = RankFailure.of(error), error
        Ranks(timeout_s=timeout).raise_failures(failure, "the save has failed", cause)
        self.execute_finalize_fns(validate_matching_call_idx=False)

    def execute_finalize_fns(self, validate_matching_call_idx: bool = True) -> int:
        """Call the finalize functions and return ``call_idx``.

        Args:
            validate_matching_call_idx: whether all ranks first make sure that they mean the same
                save; then all ranks must call this.

        Raises:
            SaveError: they do not; no function was called.
        """
        if validate_matching_call_idx:
            agree(Ranks(), State.DONE, self.call_idx, None)
        for finalize in self.finalize_fns:
            finalize()
        return self.call_idx


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
        sigterm_timeout: accepted for compatibility, in seconds.
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
        self._thread = _Thread()
        self._calls: dict[int, _Call] = {}
        self._last = 0

    def schedule_async_call(self, async_req: AsyncRequest) -> None:
        """Copy what the request holds and have it done after those before it.

        What fails here is raised where the save is finalized: so all ranks learn of it.
        """
        self._last = async_req.call_idx
        if async_req.async_fn is None:
            return
        call = _Call()
        try:
            call.function = _bound(async_req, copy=True)
            self._thread.submit(call, TIMEOUT_S)
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            call.end(error)
        self._calls[self._last] = call

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
        state = State.DONE
        error: BaseException | None = None
        if call is not None and not call.over.wait(timeout if blocking else 0):
            state = State.RUNNING
            if blocking:
                error = SaveError(f"it was not done within {timeout:g} s")
        elif call is not None:
            error = call.error
        if error is not None:
            state = State.FAILED
        try:
            state = agree(Ranks(timeout_s=timeout, alone=no_dist), state, idx, error)
        except SaveError:
            self._forget(idx)
            raise
        if state is State.DONE:
            self._forget(idx)
        return state is State.DONE

    def close(self, abort: bool = False) -> None:
        """Wait for what was scheduled, or, to ``abort``, give it up."""
        if not abort and not self._thread.join(TIMEOUT_S):
            _log.error("asynchronous saves were not done within %g s and are given up", TIMEOUT_S)
            abort = True
        if abort:
            self._thread.abandon("it was aborted")
            self._calls.clear()
            self._thread = _Thread()  # the old one may be in a function that stays

    def _forget(self, idx: int) -> None:
        call = self._calls.pop(idx, None)
        if call is not None:
            call.give_up("it has failed on another rank, or was not done in time")


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


class AsyncCallsQueue:
    """The asynchronous saves of a rank that are not finalized, in the order they were scheduled.

    All ranks of a job schedule and finalize the same saves in the same order, or all calls that
    finalize say ``no_dist=True``. There may be several queues.

    The parameters are those of `PersistentAsyncCaller`; ``persistent=False`` is deprecated and
    makes no difference.
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
        configure_writers(cpu_priority, io_priority)
        self._active: deque[AsyncRequest] = deque()  # without their functions and arguments
        self._idx = -1
        AsyncCallsQueue._instances.add(self)
        aborting.register(self)

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
        """Set the priorities of writer processes; there is nothing to start ahead.

        The parameters are those of `PersistentAsyncCaller`; ``rank`` changes nothing.
        """
        del rank, is_daemon, sigterm_timeout, cpu_shm_mode
        configure_writers(cpu_priority, io_priority)

    def schedule_async_request(self, async_request: AsyncRequest) -> int:
        """Fix the content of a request, have it done beside training, and return its number.

        Numbers count from 0. Tuples with fewer fields than `AsyncRequest` are accepted. What goes
        wrong is raised by `maybe_finalize_async_calls`.
        """
        request = AsyncRequest(*async_request)
        request = request._replace(
            call_idx=self._idx + 1, finalize_fns=[*request.finalize_fns], is_frozen=True
        )
        AsyncCallsQueue._in_use.add(self)
        self._caller.schedule_async_call(request)
        self._idx = request.call_idx
        # The arguments hold the state of the training.
        self._active.append(
            request._replace(async_fn=None, async_fn_args=(), async_fn_kwargs=None, preload_fn=None)
        )
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
            idx = self._active[0].call_idx
            try:
                done = self._caller.is_current_async_call_done(
                    blocking, no_dist, call_idx=idx, timeout=timeout
                )
            except SaveError:
                self._active.popleft()
                raise
            if not done:
                break
            # The check above has compared the numbers.
            request = self._active.popleft()
            finalized.append(request.execute_finalize_fns(validate_matching_call_idx=False))
        return finalized

    def get_num_unfinalized_calls(self) -> int:
        """Return how many saves are not finalized."""
        return len(self._active)

    def close(self, abort: bool = False) -> None:
        """Finalize all saves, or, to ``abort``, forget them; the queue can be used again.

        The memory for copies is given back with the last queue.
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
            close_pool()
        if failed is not None:
            raise failed

    def abort(self) -> None:
        """Give up the saves; waits for nothing and asks nobody."""
        self.close(abort=True)


def abort_nvrx_checkpoint() -> None:
    """Give up the asynchronous saves of all queues; waits for nothing and asks nobody."""
    for queue in AsyncCallsQueue.get_instances():
        queue.abort()


def _bound(request: AsyncRequest, *, copy: bool) -> partial[Any]:
    """Return the function of a request with its arguments; calls its ``preload_fn``.

    Args:
        request: has a function.
        copy: whether tensors in the arguments are copied.
    """
    args, kwargs = list(request.async_fn_args), request.async_fn_kwargs or {}
    if copy:
        from undaunted.checkpointing.memory.copy import host_copy

        args, kwargs = host_copy(args), host_copy(kwargs)
    if request.preload_fn is not None:
        args[1] = request.preload_fn()
    assert request.async_fn is not None
    return partial(request.async_fn, *args, **kwargs)


class _Call:
    """One function on its way: waiting, running, done or given up.

    Attributes:
        function: what is called; None when it is over, which releases what it holds.
        error: what it has failed with, once it is over.
        over: whether it has ended, well or not.
    """

    def __init__(self) -> None:
        self.function: partial[Any] | None = None
        self.error: BaseException | None = None
        self.over = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Call the function, unless it was given up before."""
        function = self.function
        if function is None:
            return
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised where the save is finalized
            self.end(error)
        else:
            self.end(None)

    def give_up(self, why: str) -> None:
        """Count as failed, unless it has ended; what the function still does is ignored."""
        function = self.function
        cancel = getattr(function and function.func, "cancel", None)
        if self.end(SaveError(why)) and cancel is not None:
            cancel()

    def end(self, error: BaseException | None) -> bool:
        """Be over; False if it is already."""
        with self._lock:
            if self.over.is_set():
                return False
            self.error, self.function = error, None
            self.over.set()
            return True


class _Thread:
    """Runs at most `WAITING_AT_MOST` calls one after the other, on a thread beside training.

    The thread is there only while there is something to do, and is a daemon: the end of the
    interpreter waits for the function that runs `EXIT_GRACE_S` at most.
    """

    instances: ClassVar[weakref.WeakSet[_Thread]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._running: _Call | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        _Thread.instances.add(self)

    def submit(self, call: _Call, timeout_s: float) -> None:
        """Have a call run after those before it.

        Raises:
            SaveError: the queue has been full for ``timeout_s``.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._waiting) < WAITING_AT_MOST, timeout_s):
                raise SaveError(
                    f"{WAITING_AT_MOST} saves wait to be written and none of them has begun within"
                    f" {timeout_s:g} s: save less often, or look at the storage"
                )
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="undaunted-async-save", daemon=True
                )
                self._thread.start()

    def abandon(self, why: str) -> None:
        """Give up everything that waits or runs; waits for nothing."""
        with self._changed:
            calls = [*self._waiting, *([self._running] if self._running else [])]
            self._waiting.clear()
            self._changed.notify_all()
        for call in calls:
            call.give_up(why)

    def join(self, timeout_s: float) -> bool:
        """Wait until nothing waits or runs; False when that takes longer than ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._running = self._waiting.popleft() if self._waiting else None
                if self._running is None:
                    self._thread = None
                self._changed.notify_all()
                if self._running is None:
                    return
            self._running.run()


def _at_exit() -> None:
    lost = sum(queue.get_num_unfinalized_calls() for queue in AsyncCallsQueue.get_instances())
    if lost:
        _log.warning(
            "%d asynchronous saves were not finalized when the process ended, and are no"
            " checkpoints: call close() of the AsyncCallsQueue at the end of training",
            lost,
        )
    threads = list(_Thread.instances)
    for thread in threads:
        thread.abandon("the process has ended")
    for thread in threads:
        thread.join(EXIT_GRACE_S / len(threads))


atexit.register(_at_exit)
