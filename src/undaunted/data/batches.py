"""A Loader for frameworks that accumulate gradients themselves. Design: docs/design/data.md.

batches = Batches(loader)
for batch in batches:  # up to the end of the epoch; batches.accumulation of them are a step
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.data.loader import Loader
    from undaunted.data.plan import MicroBatch


class Batches:
    """This rank's micro-batches one by one, with the state of their Loader.

    A step counts when its last micro-batch is returned. A framework that reads ahead counts the
    steps that are done: it calls `go_to` with it, and `begin` before a forward pass.

    Attributes:
        loader: whose micro-batches they are.
        dataset: that of the loader.
    """

    def __init__(self, loader: Loader, *, even: bool = True) -> None:
        """Go on where the loader is.

        Args:
            loader: gives the micro-batches.
            even: the framework counts each micro-batch as much as any other. False = it takes their
                weights from the loader.

        Raises:
            TypeError: it is no `Loader`.
            ValueError: some micro-batches would count less than others.
        """
        if not hasattr(loader, "rest_of_epoch"):
            raise TypeError(
                f"Batches are those of a Loader, and this is {type(loader).__name__}: "
                "Batches(Loader(dataset, global_batch=..., micro_batch=...))"
            )
        plan, ranks = loader.plan, loader.world_size
        shared = plan.global_batch // plan.micro_batch
        if even and shared % ranks:
            fitting = [one for one in range(1, shared + 1) if shared % one == 0]
            raise ValueError(
                f"{ranks} ranks cannot share a step of {shared} micro-batches evenly "
                f"(global_batch={plan.global_batch}, micro_batch={plan.micro_batch}), and the "
                f"framework counts each alike: take {', '.join(map(str, fitting))} ranks, or "
                f"another micro_batch"
            )
        if even and plan.remainder != "drop":
            raise ValueError(
                f"remainder={plan.remainder!r}: the framework counts each sample alike: take 'drop'"
            )
        self.loader = loader
        self.dataset = loader.dataset

    @property
    def accumulation(self) -> int:
        """The number of micro-batches of a step that this rank has."""
        return len(self._share(0, 0))

    def __len__(self) -> int:
        """Return how many micro-batches of an epoch this rank has."""
        plan = self.loader.plan
        last = (len(self.loader) - 1) * plan.global_batch
        return (len(self.loader) - 1) * self.accumulation + len(self._share(0, last))

    def __iter__(self) -> Iterator[Any]:
        """Return micro-batches from the state to the end of the epoch."""
        return self.loader.rest_of_epoch()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless the loader is in it."""
        if self.loader.epoch != epoch:
            self.loader.go_to(epoch * len(self.loader))

    def share(self, step: int | None = None) -> list[MicroBatch]:
        """Return this rank's micro-batches of a step.

        Args:
            step: counted from the beginning of training; None = the one that is returned next.
        """
        loader = self.loader
        here = (loader.epoch, loader.position) if step is None else loader.plan.at(step)
        return self._share(*here)

    def begin(self, micro: MicroBatch) -> None:
        """Seed torch's generators for the forward pass of a micro-batch."""
        self.loader.begin(micro)

    def steps(self) -> dict[str, Any]:
        """Return what the numbers of steps depend on, for a checkpoint that has such a number."""
        loader = self.loader
        plan, settings = loader.plan, loader.state_dict()["settings"]
        numbers = {"global_batch": plan.global_batch, "remainder": plan.remainder}
        return {**numbers, "settings": settings}

    def go_to(self, step: int, steps: Mapping[str, Any]) -> None:
        """Go to a step, counted from the beginning of training, of which a checkpoint tells.

        Args:
            step: which one.
            steps: what `steps` has returned for the checkpoint.

        Raises:
            ValueError: the steps were others.
            DataChangedError: the data or their order were others.
        """
        for name, value in self.steps().items():
            if name != "settings" and steps[name] != value:
                raise ValueError(
                    f"{name} was {steps[name]!r} and is {value!r}: the checkpoint counts in steps, "
                    "which would be others; leave it as it was"
                )
        self.load_state_dict({**self.state_dict(), "settings": steps["settings"]})
        self.loader.go_to(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader: the same on all ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where a loader was; see `Loader.load_state_dict`."""
        self.loader.load_state_dict(state_dict)

    def _share(self, epoch: int, position: int) -> list[MicroBatch]:
        loader = self.loader
        return loader.plan.share(epoch, position, loader.rank, loader.world_size)
