"""Watches a program's modules and optimizers through torch's global hooks; changes nothing.

While something is compiled, traced or captured the hooks do nothing, so that they leave no trace in
what comes out of it: `torch.compile` sees functions that return at once.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel

from undaunted.digests.record import AVERAGE, SCALER, SCHEDULER
from undaunted.digests.state import Parts, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.digests.observer import Observer

# Of one update. Accumulated gradients come from dozens; beyond that it is something else, such as a
# policy that plays, and what is new in its inputs shows in the gradients.
_MAX_PASSES = 16
# Between an optimizer's hook and who calls its step: wrappers of torch.
_MAX_FRAMES = 12


class Hooks:
    """Tells an observer of forward passes and updates, until `remove`."""

    def __init__(self, observer: Observer) -> None:
        """Begin. In the process that is to be observed."""
        self._observer = observer
        self._pid = os.getpid()
        self._thread = threading.local()
        self._modules: set[int] = set()  # ids of those with a pass in this update
        self._beginner = 0  # thread that began it; the passes of others come in any order
        self._passes = 0
        self._ever_passed = False
        self._returns = 0
        self._companions = Companions()
        # It would be said of every compiled module.
        warnings.filterwarnings("ignore", message=".*when there are global hooks on modules.*")
        self._handles = [
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward, always_call=True),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Observe nothing any more."""
        for handle in self._handles:
            handle.remove()
        self._companions.remove()

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        if self._returns != self._observer.returns:
            self._begin_anew()
        if getattr(self._thread, "inside", None) in (None, id(module)):
            # Not a count of how deep we are: one exception that passes by would spoil it for ever.
            self._thread.inside = id(module)
            if module.training and torch.is_grad_enabled() and self._is_ours():
                self._outermost(module, args, _keywords)

    def _after_forward(self, module: torch.nn.Module, _args: object, _result: object) -> None:
        if torch.compiler.is_compiling():
            return
        if getattr(self._thread, "inside", None) == id(module):
            self._thread.inside = None

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: object, _kw: object) -> None:
        if torch.compiler.is_compiling() or not self._is_ours():
            return
        self._thread.inside = None  # a forward pass that was left by an interrupt
        if not self._ever_passed:  # the script computes its gradients in other ways
            if _is_no_update():
                return
            self._observer.update_begins()
            self._observer.announce()
        self._observer.update(optimizer)
        self._companions.updated()
        self._modules.clear()

    def _outermost(
        self, module: torch.nn.Module, args: tuple[Any, ...], keywords: Callable[[], object]
    ) -> None:
        begins, first = not self._modules, id(module) not in self._modules
        if first and not _trains(module):
            return  # a loss, or what prepares the data
        if begins:
            self._passes, self._beginner = 0, threading.get_ident()
            self._ever_passed = True
            self._observer.update_begins()
        elif self._passes == _MAX_PASSES or self._beginner != threading.get_ident():
            return
        self._modules.add(id(module))
        self._passes += 1
        beside = self._companions.parts if begins else dict
        self._observer.forward(module, (args, keywords()), first=first, beside=beside)
        if begins:  # with its record written, as a fault may happen now
            self._observer.announce()

    def _begin_anew(self) -> None:
        """Forget an update that was broken off, as by a restart inside of the process."""
        self._returns = self._observer.returns
        self._thread.inside = None
        self._modules.clear()
        self._companions.forget()

    def _is_ours(self) -> bool:
        """Tell whether this is the program itself, computing: no child of it, nothing recorded."""
        return not (
            os.getpid() != self._pid
            or torch.jit.is_tracing()
            or _in_backward()
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        )


def _trains(module: torch.nn.Module) -> bool:
    try:
        return any(parameter.requires_grad for parameter in module.parameters())
    except Exception:  # noqa: BLE001 - a module may have its own parameters()
        return False


def _is_no_update() -> bool:
    """Tell whether torch makes a step without effect, only to have an optimizer's state to load."""
    frame = sys._getframe(2)  # noqa: SLF001 - the caller of the hook
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name == "_init_optim_state":  # of torch.distributed.checkpoint
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _in_backward() -> bool:
    """Tell whether a backward pass computes something anew (activation checkpointing)."""
    task = getattr(torch._C, "_current_graph_task_id", None)  # noqa: SLF001 - nothing public tells
    return task is not None and task() != -1


def _keywords() -> object:
    """Return the keyword arguments of the forward pass that begins.

    A global hook is not given them, and a hook of the module itself would miss its first pass, so
    they are read where torch has them: in the caller of the hook. None where they are not there.
    """
    frame = sys._getframe(3)  # noqa: SLF001 - ours: this, _outermost, _before_forward
    return frame.f_locals.get("kwargs")


_METHODS = (
    (SCHEDULER, LRScheduler, "step"),
    (AVERAGE, AveragedModel, "update_parameters"),
    (SCALER, GradScaler, "update"),
)


class Companions:
    """State beside model and optimizer that helpers of torch keep: schedules, averages, scales.

    Torch has no hooks for them, so the methods that change them are wrapped, until `remove`. Their
    state counts where they were used between two updates: one that was just made is not yet what
    it will be.
    """

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
