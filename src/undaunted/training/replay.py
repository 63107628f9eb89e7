"""The forward and backward pass of some steps runs twice, and has to give the same bits.

replay = Replay(model, every=100)
for iteration in range(steps):
    loss = replay(iteration, lambda: forward_backward(model, batch))
    optimizer.step()
    optimizer.zero_grad()

The first pass is there to be compared with, and its gradients are dropped; training goes on with
what the second one has made. So a step that is replayed ends as it would have ended otherwise.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import torch
from torch.nn.parallel import DistributedDataParallel

from undaunted.base import random_generators, torch_ranks
from undaunted.digests.each import digests_of_each
from undaunted.digests.state import digest_of
from undaunted.progress.api import event
from undaunted.training import attempts
from undaunted.training.rerun.slot import this_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.nn import Module

    Signature = dict[str, object]

_Loss = TypeVar("_Loss")
_NAMES = 8  # of what differs, in a message
_LOG = logging.getLogger("undaunted")


class Mismatch(msgspec.Struct, frozen=True):
    """On one rank the two passes of a step differ.

    Attributes:
        rank: the global one.
        node: its name.
        device: on the node, such as ``cuda:3``.
        iteration: as given to the replay.
        what: the first of what differs: ``loss``, ``gradient of NAME``, ``buffer NAME``,
            ``generator of torch`` (``python``, ``numpy``, ``devices``), ``state of the caller``.
        count: how much differs.
    """

    rank: int
    node: str
    device: str
    iteration: int
    what: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        more = f" and {self.count - len(self.what)} more" if self.count > len(self.what) else ""
        return f"rank {self.rank} ({self.node}, {self.device}): {', '.join(self.what)}{more}"


class NotReproducibleError(RuntimeError):
    """A step has not given the same bits twice. Raised on all ranks.

    Attributes:
        mismatches: one for each rank that has found one.
    """

    def __init__(self, mismatches: Sequence[Mismatch]) -> None:
        """Say on which ranks."""
        self.mismatches = tuple(mismatches)
        super().__init__(
            f"iteration {mismatches[0].iteration} run twice did not give the same: "
            f"{'; '.join(map(str, mismatches))}. Either it has been computed wrong, or the step is "
            "not deterministic, which torch.use_deterministic_algorithms(True) finds out"
        )


@dataclass(frozen=True)
class Saved:
    """A caller's state beside modules and generators, such as counters.

    Attributes:
        save: returns it: numbers, text, tensors, and containers of these; none that change
            afterwards. Called before a replay and after each of its passes, to compare.
        restore: puts back what `save` has returned.
    """

    save: Callable[[], Any]
    restore: Callable[[Any], object]


class Replay:
    """Runs forward and backward pass twice on some steps, and compares all that they leave.

    Compared are, bit for bit: the loss, each gradient, the buffers of the modules, the states of
    all random generators, and what the caller keeps. Of a module in ``DistributedDataParallel`` it
    is the gradient of this rank, before it is reduced: the first pass reduces nothing, and in the
    second one gradients are looked at as they arrive. Of other modules gradients are compared as
    they are after the pass; those of sharded modules (``fully_shard``) are reduced then, so that
    it is found that something was wrong, not on which rank.

    All ranks replay the same iterations. They tell each other what they have found, before the
    optimizer sees anything.

    Inside of `Session.attempts`, of a session with `Rerun`, a difference is an odd result: the step
    is computed again, and on another slot if the passes differ once more.

    Args:
        model: holds all parameters that get gradients; of several modules a ``ModuleList``.
        every: replay iterations that are multiples of this. Others are not touched.
        saved: what else changes in a pass.
        on_mismatch: called on all ranks with what was found, instead of all else.

    Raises:
        ValueError: `every` is not a number from 1.
    """

    def __init__(
        self,
        model: Module,
        *,
        every: int = 100,
        saved: Saved | None = None,
        on_mismatch: Callable[[tuple[Mismatch, ...]], object] | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every!r}: give a number of iterations from 1")
        self._model = model
        self._every = every
        self._saved = saved
        self._on_mismatch = on_mismatch

    def __call__(self, iteration: int, forward_backward: Callable[[], _Loss]) -> _Loss:
        """Run a step, twice if it is due; return what its function returns.

        Args:
            iteration: its number.
            forward_backward: runs forward and backward pass, on the same data each time it is
                called; returns the loss, or several in a container. It steps no optimizer and
                clips nothing.

        Raises:
            NotReproducibleError: two passes differ, on any rank, and nothing computes them again.
            RuntimeError: there are gradients already.
        """
        if iteration % self._every:
            return forward_backward()
        return self.check(iteration, forward_backward)

    def check(self, iteration: int, forward_backward: Callable[[], _Loss]) -> _Loss:
        """Run this step twice. As `__call__`."""
        if any(_counts_first_steps(one) for one in _ddp(self._model)):
            return forward_backward()
        self._want_no_gradients()
        start = _Start(self._model, self._saved)
        first, _ = self._pass(forward_backward, reduce=False)
        start.restore()
        second, loss = self._pass(forward_backward, reduce=True)
        if self._judge(iteration, _differing(first, second)):
            start.restore()
        return loss

    def _want_no_gradients(self) -> None:
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                raise RuntimeError(
                    f"{name} has a gradient before the step that is to be replayed: call "
                    "optimizer.zero_grad() before, outside of the function that is replayed"
                )

    def _pass(
        self, forward_backward: Callable[[], _Loss], *, reduce: bool
    ) -> tuple[Signature, _Loss]:
        with contextlib.ExitStack() as stack:
            if not reduce:
                for one in _ddp(self._model):
                    stack.enter_context(one.no_sync())
            local = stack.enter_context(_local_gradients(self._model))
            loss = forward_backward()
        signature: Signature = {
            "loss": digest_of(loss, strict=False),
            **_gradients(self._model, local),
            **_buffers(self._model),
            **_generators(),
        }
        if self._saved is not None:
            signature["state of the caller"] = digest_of(self._saved.save(), strict=False)
        return signature, loss

    def _judge(self, iteration: int, what: Sequence[str]) -> bool:
        """Have all ranks know what differs; return whether the step is to be computed again."""
        again = attempts.again() if self._on_mismatch is None else None
        if again is not None:
            again.check_passes(", ".join(what[:_NAMES]))
        if torch_ranks.any_rank([bool(what)]) == [False]:
            return False
        rank, slot = torch_ranks.place()[0], this_slot()
        mine = Mismatch(rank, slot.node, slot.device, iteration, tuple(what[:_NAMES]), len(what))
        everyone = msgspec.convert(torch_ranks.gather(msgspec.to_builtins(mine)), list[Mismatch])
        error = NotReproducibleError([one for one in everyone if one.count])
        if what:
            event("replay_mismatch", f"iteration {iteration}: {', '.join(what)}")
            _LOG.error("rank %d: %s", rank, error)
        if again is not None:
            return True
        if self._on_mismatch is None:
            raise error
        self._on_mismatch(error.mismatches)
        return False


class _Start:
    """The state in which a step begins."""

    def __init__(self, model: Module, saved: Saved | None) -> None:
        self._generators = random_generators.states()
        self._buffers = [
            (module._buffers, dict(module._buffers))  # noqa: SLF001 - to be put back by name
            for module in model.modules()
        ]
        self._contents = [(one, one.detach().clone()) for one in model.buffers()]
        # Whether a forward pass begins by taking over the buffers of rank 0.
        self._takes_over = [(one, one.require_forward_param_sync) for one in _ddp(model)]
        self._model = model
        self._saved = saved
        self._state = None if saved is None else saved.save()

    def restore(self) -> None:
        """Put it back, without gradients."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for there, before in self._buffers:
            there.clear()
            there.update(before)
        with torch.no_grad():
            for buffer, content in self._contents:
                buffer.copy_(content)
        for one, takes_over in self._takes_over:
            one.require_forward_param_sync = takes_over
        random_generators.set_states(self._generators)
        if self._saved is not None:
            self._saved.restore(self._state)


def _differing(first: Signature, second: Signature) -> list[str]:
    """Return the names of what differs, or is there only once."""
    names = dict.fromkeys([*first, *second])
    return [name for name in names if first.get(name) != second.get(name)]


@contextlib.contextmanager
def _local_gradients(model: Module) -> Iterator[Mapping[Tensor, bytes]]:
    """Take the digest of what arrives as gradient of a parameter, before it is reduced.

    A pass may have several backward passes, whose gradients add up: the last digest stays.
    """
    digests: dict[Tensor, bytes] = {}

    def arrived(parameter: Tensor) -> None:
        if parameter.grad is not None:
            digests[parameter] = digests_of_each([parameter.grad])[0]

    handles = [
        parameter.register_post_accumulate_grad_hook(arrived)
        for one in _ddp(model)
        for parameter in one.parameters()
        if parameter.requires_grad
    ]
    try:
        yield digests
    finally:
        for handle in handles:
            handle.remove()


def _gradients(model: Module, local: Mapping[Tensor, bytes]) -> Signature:
    """Return the digests of all gradients, by name."""
    replicated = {parameter for one in _ddp(model) for parameter in one.parameters()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    others = [one for one in names if one not in replicated and one.grad is not None]
    digests = dict(zip(others, digests_of_each([one.grad for one in others]), strict=True))
    return {f"gradient of {names[one]}": digest for one, digest in {**local, **digests}.items()}


def _buffers(model: Module) -> Signature:
    buffers = dict(model.named_buffers())
    digests = digests_of_each(buffers.values())
    return {f"buffer {name}": one for name, one in zip(buffers, digests, strict=True)}


def _generators() -> Signature:
    states = random_generators.to_plain(random_generators.states())
    for name in {"python", "numpy"} & {*states}:
        states[name] = repr(states[name])  # one text is hashed faster than 625 numbers
    return {f"generator of {name}": digest_of(one, strict=False) for name, one in states.items()}


def _ddp(model: Module) -> list[DistributedDataParallel]:
    return [one for one in model.modules() if isinstance(one, DistributedDataParallel)]


def _counts_first_steps(one: DistributedDataParallel) -> bool:
    """Return whether the module learns from its first pass, which then has to reduce."""
    return bool(one.static_graph and not one._static_graph_delay_allreduce_enqueued)  # noqa: SLF001
