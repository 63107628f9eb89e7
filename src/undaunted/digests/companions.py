"""State beside model and optimizer that helpers of torch keep: schedules, averages, scales.

Torch has no hooks for them, so the methods that change them are wrapped. Their state counts where
they were used between two updates: one that was just made is not yet what it will be.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from undaunted.digests.record import AVERAGE, SCALER, SCHEDULER
from undaunted.digests.state import Parts, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

_METHODS = (
    (SCHEDULER, LRScheduler, "step"),
    (AVERAGE, AveragedModel, "update_parameters"),
    (SCALER, GradScaler, "update"),
)


class Companions:
    """Those that are used in this process, until `remove`."""

    def __init__(self) -> None:
        """Watch."""
        # Used since the last update, in the order of their first use.
        self._used: dict[str, list[weakref.ref[Any]]] = {}
        self._updated = False
        self._undo = [_watch(kind, name, self._note, part) for part, kind, name in _METHODS]

    def remove(self) -> None:
        """Watch no more."""
        for undo in self._undo:
            undo()

    def updated(self) -> None:
        """An optimizer has made its step."""
        self._updated = True

    def forget(self) -> None:
        """An update was broken off: what follows prepares another beginning."""
        self._updated = False
        self._used.clear()

    def parts(self) -> Parts:
        """Return the digests of those that were used since the last update."""
        used = self._used if self._updated else {}
        self._used = {}
        return {
            f"{number}.{part}" if number > 1 else part: _digest(part, one)
            for part, refs in used.items()
            for number, one in enumerate((ref() for ref in refs), start=1)
            if one is not None
        }

    def _note(self, part: str, one: object) -> None:
        if torch.compiler.is_compiling() or not self._updated:
            return
        refs = self._used.setdefault(part, [])
        if not any(ref() is one for ref in refs):
            refs.append(weakref.ref(one))


def _watch(
    kind: Any, name: str, note: Callable[[str, object], None], part: str
) -> Callable[[], None]:
    """Have a method tell of each call that has returned; return what undoes it."""
    method = getattr(kind, name)

    @functools.wraps(method)
    def noticed(self: object, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        note(part, self)
        return result

    setattr(kind, name, noticed)

    def undo() -> None:
        if getattr(kind, name) is noticed:
            setattr(kind, name, method)

    return undo


def _digest(part: str, one: Any) -> str:
    if part == SCHEDULER:
        # Not its state_dict(): that counts calls, too, of which one made with last_epoch= had none.
        return digest_of(one.last_epoch, strict=False)
    if part == AVERAGE:
        return digest_of([one.n_averaged, list(one.parameters())])
    return digest_of(one.state_dict(), strict=False)
