"""What an asynchronous save consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.checkpointing.async_ckpt.ranks import TIMEOUT_S, Failure, Ranks, State, agree

if TYPE_CHECKING:
    from collections.abc import Callable


class AsyncRequest(NamedTuple):
    """One asynchronous save.

    Attributes:
        async_fn: does the save; None when this rank has nothing to save.
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

        Raises:
            SaveError: on all ranks, when it has failed on any of them.
        """
        failure = cause = None
        try:
            bound = bind(self, copy=False)
            if bound is not None:
                bound()
        except Exception as error:  # noqa: BLE001 - told to all ranks, then raised
            failure, cause = Failure.of(error), error
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


def bind(request: AsyncRequest, copy: bool) -> Callable[[], Any] | None:
    """Return what is to be called, with the arguments in it; None for nothing.

    Args:
        request: whose ``preload_fn`` is called.
        copy: whether tensors in the arguments are copied.
    """
    if request.async_fn is None:
        return None
    args, kwargs = list(request.async_fn_args), dict(request.async_fn_kwargs or {})
    if copy:
        from undaunted.checkpointing.host_copy import host_copy

        args, kwargs = host_copy(args), host_copy(kwargs)
    if request.preload_fn is not None:
        args[1] = request.preload_fn()
    return _Bound(request.async_fn, args, kwargs)


class _Bound:
    """A function with its arguments; `cancel` is the function's, if it has one."""

    def __init__(
        self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs

    def __call__(self) -> Any:
        return self._function(*self._args, **self._kwargs)

    def cancel(self) -> None:
        cancel = getattr(self._function, "cancel", None)
        if cancel is not None:
            cancel()
