"""The same steps from any number of ranks and workers. Design: docs/design/data.md.

loader = Loader(dataset, global_batch=512, micro_batch=8, seed=1, num_workers=4)
while loader.epoch < 3:
    for batch in loader.step():
        with loader.accumulate(model):
            (loss_of(model, batch) * loader.scale).backward()
    optimizer.step()
    optimizer.zero_grad()
"""

from __future__ import annotations

import inspect
import logging
import operator
import os
from collections import deque
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate

from undaunted.data import rng
from undaunted.data.exact import Gradients
from undaunted.data.order import GlobalOrder
from undaunted.data.plan import DataChangedError, MicroBatch, Plan, read_state, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import nn
    from torch.distributed import ProcessGroup

    from undaunted.data.order import Order
    from undaunted.data.plan import Remainder

    Wanted = tuple[int, int, list[int]]
    """Epoch and first position of a micro-batch, and the numbers of its samples."""

_log = logging.getLogger("undaunted")
_ON_CHANGE = ("refuse", "warn")
# What the order decides, and not torch.
_REFUSED = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "drop_last",
    "generator",
    "in_order",
)
_KNOWN = frozenset(inspect.signature(DataLoader).parameters)
_LONGEST_NAME = 200  # of the content, in a state of at most 1 KiB
# Samples whose numbers are computed at once: few at first, as somebody waits for them.
_FIRST_BLOCK, _BLOCK = 256, 8192


class Loader:
    """Gives each rank its micro-batches of each step; the state is the same on all ranks.

    Attributes:
        epoch: that of the next step, from 0.
        position: where the next step begins in its epoch, in samples.
        dataset: that of the samples.
        order: from position to sample.
        plan: steps, micro-batches and shares.
        rank: of this process among those that have different samples.
        world_size: how many they are.
    """

    def __init__(  # noqa: PLR0913 - the settings
        self,
        dataset: Dataset[Any],
        *,
        global_batch: int,
        micro_batch: int,
        seed: int = 0,
        shuffle: bool = True,
        remainder: Remainder = "drop",
        order: Order | None = None,
        sample_rng: bool = True,
        micro_rng: bool = True,
        exact: bool = False,
        on_data_change: Literal["refuse", "warn"] = "refuse",
        fingerprint: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: ProcessGroup | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **torch_settings: Any,
    ) -> None:
        """Share the steps of a data set; workers start with the first batch.

        Args:
            dataset: with a length, and samples by their number.
            global_batch: samples of a step, on all ranks together.
            micro_batch: samples of one forward pass.
            seed: of the order, and of random numbers.
            shuffle: False = in the order of the data set.
            remainder: what becomes of the end of an epoch, which is no whole step: "drop" leaves
                it out, "short" makes a smaller step, "pad" fills it up (see `real`).
            order: another order than a `GlobalOrder`, such as a `Mixture`, with its seed.
            sample_rng: seed torch's, Python's and numpy's generators for each sample, or for those
                of a micro-batch if the data set gives several at once (``__getitems__``), and for
                ``collate_fn``.
            micro_rng: seed torch's generators, as dropout uses them, for each micro-batch.
            exact: `accumulate` adds gradients in an order that does not depend on the ranks.
            on_data_change: what follows if the state that is loaded is of other data or another
                order.
            fingerprint: of the content; None = the data set's ``fingerprint``, if it has one, or
                that of Hugging Face's. At most 200 characters.
            rank: among those that have different samples, with ``world_size``; None = that in the
                process group.
            world_size: how many they are.
            process_group: of these ranks; None = all.
            num_workers: processes that read samples.
            collate_fn: makes a batch of a list of samples; None = torch's.
            torch_settings: others of torch's ``DataLoader``, such as ``pin_memory``. With
                ``persistent_workers`` they go on into the next epoch, and read ahead in it.

        Raises:
            TypeError: the data set has no length, or no samples by number; a seed or size is no
                whole number; a setting is not for the user to give.
            ValueError: the numbers do not fit.
        """
        _check(dataset, order, torch_settings, on_data_change)
        global_batch = _whole("global_batch", global_batch)
        micro_batch = _whole("micro_batch", micro_batch)
        seed = _whole("seed", seed)
        self.dataset = dataset
        self.order = order or GlobalOrder(len(dataset), seed, shuffle=shuffle)
        if self.order.samples != len(dataset):
            raise ValueError(
                f"the order is one of {self.order.samples} samples, and the data set has "
                f"{len(dataset)}"
            )
        self.plan = Plan(self.order.length, global_batch, micro_batch, remainder)
        self._place = _Place(rank, world_size, process_group)
        self.rank, self.world_size = self._place.now()
        self.plan.check_world(self.world_size)
        self._seed, self._micro_rng = seed, micro_rng
        self._on_data_change = on_data_change
        self._settings = {
            **self.order.settings(),
            "rng": seed,
            "data": _fingerprint_of(dataset, fingerprint),
        }
        self._samples = _Samples(
            dataset,
            collate_fn or default_collate,
            seed if sample_rng else None,
            apart=num_workers > 0,
        )
        self._torch = {"num_workers": num_workers, **torch_settings}
        self._endless = bool(torch_settings.get("persistent_workers"))
        self._gradients = Gradients() if exact else None
        self.epoch, self.position = 0, 0
        self._batches: Iterator[Any] | None = None
        self._ahead: deque[MicroBatch] = deque()  # bounded by what torch prefetches
        self._micro: MicroBatch | None = None
        self._warned = False
        self._step: object | None = None  # the one that has begun and not ended

    def step(self) -> Iterator[Any]:
        """Yield this rank's micro-batches of the next step.

        The step counts when the loop over it has come to its end. One that is left before, as by an
        exception or ``break``, is done again.

        Raises:
            RuntimeError: another step was begun before this one had ended, or the loader was
                closed or has loaded a state.
        """
        self._begin_anew_if_needed()
        this = self._step = object()
        try:
            while True:
                batch, micro = self._next()
                self.begin(micro)
                try:
                    yield batch
                except GeneratorExit:
                    self._left(micro)
                    raise
                self._check_goes_on(this)
                if micro.is_last:
                    break
            self._step = None
            self._move()
        finally:
            if self._step is this:
                self.close()

    def __iter__(self) -> Iterator[Any]:
        """Return batches up to the end of the epoch; for steps of one micro-batch for each rank.

        A step counts when its batch is returned: save at the end of the loop's body.

        Raises:
            ValueError: a rank has more micro-batches of a step; see `step`.
        """
        self._begin_anew_if_needed()
        most = len(self.plan.share(0, 0, self.rank, self.world_size))
        if most > 1:
            raise ValueError(
                f"each rank has {most} micro-batches of a step (global_batch="
                f"{self.plan.global_batch}, micro_batch={self.plan.micro_batch}, "
                f"{self.world_size} ranks): use `for batch in loader.step()`"
            )
        return _Epoch(self)

    def rest_of_epoch(self) -> Iterator[Any]:
        """Return this rank's micro-batches up to the end of the epoch; for `Batches`.

        A step counts when its last one is returned. `begin` seeds generators for each.
        """
        self._begin_anew_if_needed()
        return _Epoch(self, seeded=False)

    def __len__(self) -> int:
        """Return how many steps an epoch has."""
        return self.plan.steps_from(0)

    @property
    def scale(self) -> float:
        """Factor for the loss of the present micro-batch, a mean over its samples that count.

        With it the mean of gradients over ranks, as DDP and FSDP compute it, is the mean over the
        samples of the step.
        """
        micro = self._present()
        ranks = 1 if self._gradients is not None else self.world_size
        return ranks * micro.real / micro.of

    @property
    def real(self) -> int:
        """The number of samples in the mean of `scale`: the first ones of the micro-batch.

        All of one that does not count: its `scale` is 0, and a mean over none would be NaN.
        """
        micro = self._present()
        return micro.real or micro.size

    @contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """For forward and backward of a micro-batch: DDP synchronises in the step's last one.

        Args:
            models: whose gradients these are; FSDP synchronises in each micro-batch.

        Raises:
            TypeError: with ``exact``, a model keeps gradients elsewhere.
        """
        micro = self._present()
        if self._gradients is not None:
            with self._apart(self._gradients, models, micro):
                yield
            return
        with _synchronising(models, wanted=micro.is_last):
            yield

    @contextmanager
    def _apart(
        self, gradients: Gradients, models: tuple[nn.Module, ...], micro: MicroBatch
    ) -> Iterator[None]:
        for model in models:
            if hasattr(model, "set_requires_gradient_sync"):
                raise TypeError(f"exact=True: {type(model).__name__} shards its gradients (FSDP)")
        parameters = [one for model in models for one in model.parameters() if one.requires_grad]
        gradients.begin(parameters)
        with _synchronising(models, wanted=False):
            yield
        gradients.take(parameters, counts=micro.real > 0)
        if micro.is_last:
            gradients.add_up(parameters, self._place.group(self.world_size))

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: the same on all ranks, at most 1 KiB."""
        return state_of(self.epoch, self.position, self._settings)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where a loader was, of any number of ranks and workers and any global batch.

        Raises:
            DataChangedError: its data or their order were others; see ``on_data_change``.
            ValueError: it is no state of a loader.
        """
        epoch, position, differences = read_state(state_dict, self._settings, self.plan)
        if differences:
            what = f"the state of the Loader is of other data: {'; '.join(differences)}"
            if self._on_data_change == "refuse":
                raise DataChangedError(
                    f'{what}\n  Loader(..., on_data_change="warn") goes on at epoch {epoch}, '
                    f"position {position} all the same"
                )
            _log.warning("%s; going on at epoch %d, position %d", what, epoch, position)
        self._go(epoch, position)

    def go_to(self, step: int) -> None:
        """Go to a step, counted from the beginning of training with this global batch.

        Raises:
            ValueError: it is below 0.
        """
        if step < 0:
            raise ValueError(f"step={step}: from 0")
        self._go(*self.plan.at(step))

    def begin(self, micro: MicroBatch) -> None:
        """A micro-batch is at work: seed torch's generators for it, if ``micro_rng``."""
        self._micro = micro
        if self._micro_rng:
            rng.seed_training(rng.seed_of("micro-batch", self._seed, micro.epoch, micro.start))

    def close(self) -> None:
        """End the workers; the next step starts new ones."""
        batches, self._batches, self._micro, self._step = self._batches, None, None, None
        _end(batches)
        if self._gradients is not None:
            self._gradients.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is under way: a copy goes on from the state."""
        without: dict[str, Any] = {"_batches": None, "_ahead": deque(), "_micro": None}
        gradients = None if self._gradients is None else Gradients()
        return {**self.__dict__, **without, "_step": None, "_gradients": gradients}

    def _go(self, epoch: int, position: int) -> None:
        if self._step is not None or (epoch, position) != (self.epoch, self.position):
            self.close()
        self.epoch, self.position = epoch, position

    # --- for loops over it ------------------------------------------------------------------------

    def _begin_anew_if_needed(self) -> None:
        """If somebody has left a step and holds it still, or if this process has another place."""
        if self._step is not None:
            self.close()
        if (now := self._place.now()) != (self.rank, self.world_size):
            self.plan.check_world(now[1])
            self.close()
            self.rank, self.world_size = now

    def _check_goes_on(self, step: object) -> None:
        if self._step is not step:
            raise RuntimeError(
                "this step was given up in its loop, by close, load_state_dict or another step: "
                "leave the loop then, and begin with step() again"
            )

    def _next(self) -> tuple[Any, MicroBatch]:
        """Return the next batch of this rank."""
        if self._batches is None:
            self._batches = self._begin()
        try:
            batch = next(self._batches)
        except EOFError as error:  # torch names others itself
            raise RuntimeError("a worker has ended while it handed over a batch") from error
        return batch, self._ahead.popleft()

    def _left(self, micro: MicroBatch) -> None:
        """A loop over a step was left: say so if it had all of it, as `next` of a step has."""
        if micro.is_last and not self._warned:
            self._warned = True
            _log.warning(
                "a step was left in its last micro-batch: it is done again, as a step counts only "
                "when the loop `for batch in loader.step()` has come to its end"
            )

    def _returned(self, by: object, micro: MicroBatch) -> None:
        """A micro-batch was returned where the step counts with its last one."""
        self._step = None if micro.is_last else by
        if micro.is_last:
            self._move()

    def _move(self) -> None:
        """A step is done."""
        epoch = self.epoch
        self.epoch, self.position = self.plan.after(self.epoch, self.position)
        if self.epoch != epoch and not self._endless:
            batches, self._batches = self._batches, None
            _end(batches)

    def _begin(self) -> Iterator[Any]:
        generator = torch.Generator()  # else the one that training uses is drawn from
        generator.manual_seed(rng.seed_of("workers", self._seed, self.epoch, self.position))
        self._ahead = deque()
        batches: DataLoader[Any] = DataLoader(
            self._samples,
            batch_sampler=_Wanted(self.order, self._shares(), self._ahead),
            collate_fn=_as_it_is,
            generator=generator,
            **self._torch,
        )
        return iter(batches)

    def _shares(self) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches from here on: of this epoch, or without an end."""
        first = self.epoch
        for micro in self.plan.shares(self.epoch, self.position, self.rank, self.world_size):
            if micro.epoch != first and not self._endless:
                return
            yield micro

    def _present(self) -> MicroBatch:
        if self._micro is None:
            raise RuntimeError("no micro-batch is at work: use this inside a loop over step()")
        return self._micro


class _Epoch:
    """Batches up to the end of an epoch. No generator: that would end quietly after an error."""

    def __init__(self, loader: Loader, *, seeded: bool = True) -> None:
        self._loader = loader
        self._epoch: int | None = None  # that of its first batch
        self._seeded = seeded

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._epoch is None:
            self._epoch = loader.epoch
        if loader.epoch != self._epoch:
            raise StopIteration
        try:
            batch, micro = loader._next()  # noqa: SLF001 - a part of it
        except BaseException:
            loader.close()
            raise
        if self._seeded:
            loader.begin(micro)
        loader._returned(self, micro)  # noqa: SLF001
        return batch


class _Samples(Dataset):  # type: ignore[misc]
    """Batches of samples by epoch, position and numbers, with random numbers for each."""

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Callable[[list[Any]], Any],
        seed: int | None,
        *,
        apart: bool,
    ) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._apart = apart  # in other processes

    def __getattr__(self, name: str) -> Any:
        """Have what users' functions look for in a worker: the attributes of their data set."""
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __getitems__(self, wanted: Wanted) -> Any:
        epoch, start, indices = wanted
        seed = self._seed
        kept: AbstractContextManager[None] = nullcontext()
        if seed is not None and not self._apart:
            kept = rng.put_back()
        with kept:
            samples = self._read(epoch, start, indices)
            if seed is not None:
                rng.seed_process(rng.seed_of("batch", seed, epoch, start))
            return self._collate(samples)

    def _read(self, epoch: int, start: int, indices: list[int]) -> Any:
        seed, many, dataset, samples = self._seed, _for_many(self._dataset), self._dataset, []
        try:
            if many:
                if seed is not None:
                    rng.seed_process(rng.seed_of("samples", seed, epoch, start))
                return many(indices)
            for position, index in enumerate(indices, start):
                if seed is not None:
                    rng.seed_process(rng.seed_of("sample", seed, epoch, position))
                samples.append(dataset[index])
        except Exception as error:
            which = f"samples {indices}" if many else f"sample {indices[len(samples)]}"
            error.add_note(f"{which:.200} of the data set: epoch {epoch}, from position {start} on")
            raise
        return samples

    def __getitem__(self, wanted: Wanted) -> Any:
        return self.__getitems__(wanted)


class _Wanted:
    """The reads for this rank, micro-batch by micro-batch; notes each when torch asks for it."""

    def __init__(
        self, order: Order, micros: Iterator[MicroBatch], ahead: deque[MicroBatch]
    ) -> None:
        self._order = order
        self._micros = micros
        self._ahead = ahead

    def __iter__(self) -> Iterator[Wanted]:
        size, samples = _FIRST_BLOCK, 0
        waiting: list[MicroBatch] = []
        for micro in self._micros:
            if waiting and (samples >= size or micro.epoch != waiting[0].epoch):
                yield from self._computed(waiting)
                size, waiting, samples = min(2 * size, _BLOCK), [], 0
            waiting.append(micro)
            samples += micro.size
        if waiting:
            yield from self._computed(waiting)

    def _computed(self, micros: list[MicroBatch]) -> Iterator[Wanted]:
        epoch = micros[0].epoch
        positions = torch.cat([torch.arange(one.start, one.start + one.size) for one in micros])
        indices = self._order.indices(epoch, positions % self._order.length).tolist()
        at = 0
        for micro in micros:
            self._ahead.append(micro)
            yield epoch, micro.start, indices[at : at + micro.size]
            at += micro.size


class _Place:
    """This process among the ranks that have different samples: as told, or by a process group."""

    def __init__(
        self, rank: int | None, world_size: int | None, group: ProcessGroup | None
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank={rank}, world_size={world_size}: give both, or none")
        if rank is not None and world_size is not None and not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: from 0 to world_size={world_size} - 1")
        self._given = None if rank is None or world_size is None else (rank, world_size)
        self._group = group

    def now(self) -> tuple[int, int]:
        """Return rank and number of ranks."""
        if self._given is not None:
            return self._given
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(self._group), dist.get_world_size(self._group)
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise ValueError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and there is no process group: make "
                "the Loader after init_process_group, or give rank= and world_size="
            )
        return 0, 1

    def group(self, world_size: int) -> Any:
        """Return who adds gradients together; None = one rank alone."""
        return None if world_size == 1 else self._group or dist.group.WORLD


def _for_many(dataset: Any) -> Callable[[list[int]], Any] | None:
    """Return what gives several samples at once, where that is more than a loop."""
    if isinstance(dataset, Subset) and _for_many(dataset.dataset) is None:
        return None
    many: Callable[[list[int]], Any] | None = getattr(dataset, "__getitems__", None)
    return many


def _check(
    dataset: Dataset[Any], order: Order | None, torch_settings: Collection[str], on_change: str
) -> None:
    """Refuse what cannot be meant; see `Loader`."""
    by_number = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not by_number:
        raise TypeError(
            f"{type(dataset).__name__} has no length or no samples by number, so there are no "
            "positions: give a data set with __len__ and __getitem__, such as "
            "undaunted.data.Shards"
        )
    if order is not None and not hasattr(order, "indices"):
        raise TypeError(f"order={order!r:.60}: a GlobalOrder, Mixture or ShardOrder")
    if refused := [name for name in torch_settings if name in _REFUSED]:
        raise TypeError(f"{refused[0]} is not for a Loader: see global_batch, shuffle, remainder")
    if unknown := [name for name in torch_settings if name not in _KNOWN]:
        raise TypeError(f"{unknown[0]} is no setting of Loader, nor of torch's DataLoader")
    if on_change not in _ON_CHANGE:
        raise ValueError(f"on_data_change={on_change!r}: one of {', '.join(_ON_CHANGE)}")


def _whole(name: str, number: int) -> int:
    """Return Python's own: others, such as numpy's, are equal, but have another `repr`."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name}={number!r}: a whole number") from None


def _fingerprint_of(dataset: Any, given: str | None) -> str | None:
    """Return what names the content: given, of `Shards` and `TokenFile`, or of Hugging Face's."""
    has = (getattr(dataset, name, None) for name in ("fingerprint", "_fingerprint"))
    found = given or next((one for one in has if isinstance(one, str)), None)
    if found is not None and not (isinstance(found, str) and len(found) <= _LONGEST_NAME):
        raise ValueError(f"fingerprint={found!r:.40}: a text of at most {_LONGEST_NAME} characters")
    return found


def _end(batches: Any) -> None:
    """End the workers now: a traceback may keep them alive, and torch's handler of their deaths.

    Torch has no public call for it. Without its private one they end when nobody has them any more.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)  # none where there are no workers
    if shut_down is not None:
        shut_down()


def _as_it_is(batch: Any) -> Any:
    return batch


def _synchronising(models: tuple[nn.Module, ...], *, wanted: bool) -> AbstractContextManager[Any]:
    """Have DDP bring gradients together in this backward pass, or not."""
    contexts = ExitStack()
    for model in models:
        if isinstance(model, DistributedDataParallel) and not wanted:
            contexts.enter_context(model.no_sync())
    return contexts
