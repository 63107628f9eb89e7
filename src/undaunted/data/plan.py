"""Positions of steps, and the share of each rank. Pure. Design: docs/design/data.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Remainder = Literal["drop", "short", "pad"]
REMAINDERS = ("drop", "short", "pad")
VERSION = 1


class DataChangedError(Exception):
    """The data, or settings that decide on their order, are not those of the saved state."""


class MicroBatch(NamedTuple):
    """Positions of one forward pass.

    Attributes:
        epoch: whose positions they are.
        start: the first of them.
        size: how many samples it has.
        real: how many of them count, the first ones; the others fill it up.
        of: how many samples of the step count, on all ranks together.
        is_last: it is the last one of this rank in the step.
    """

    epoch: int
    start: int
    size: int
    real: int
    of: int
    is_last: bool


@dataclass(frozen=True)
class Plan:
    """Steps of an epoch, micro-batches of a step, shares of ranks.

    Attributes:
        length: positions of an epoch.
        global_batch: positions of a step.
        micro_batch: positions of a micro-batch.
        remainder: what becomes of the end of an epoch, which is no whole step.

    Raises:
        ValueError: the numbers do not fit.
    """

    length: int
    global_batch: int
    micro_batch: int
    remainder: Remainder = "drop"

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("global_batch", "micro_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")
        if self.remainder not in REMAINDERS:
            raise ValueError(f"remainder={self.remainder!r}: one of {', '.join(REMAINDERS)}")
        below = self.global_batch // self.micro_batch * self.micro_batch
        if below != self.global_batch:
            near = [one for one in (below, below + self.micro_batch) if one]
            raise ValueError(
                f"global_batch={self.global_batch} is no multiple of "
                f"micro_batch={self.micro_batch}: take {' or '.join(map(str, near))}"
            )
        if not self.steps_from(0):
            raise ValueError(
                f"global_batch={self.global_batch}, but an epoch has {self.length} samples: take a "
                'smaller one, or remainder="short"'
            )

    def check_world(self, world_size: int) -> None:
        """Raise `ValueError` if there are more ranks than micro-batches of a step."""
        most = self.global_batch // self.micro_batch
        if world_size > most:
            smaller = self.global_batch // world_size
            hint = f", or micro_batch={smaller}" if smaller else ""
            raise ValueError(
                f"{world_size} ranks cannot share a step of {most} micro-batches "
                f"(global_batch={self.global_batch}, micro_batch={self.micro_batch}): take "
                f"global_batch={world_size * self.micro_batch} or more{hint}"
            )

    def steps_from(self, position: int) -> int:
        """Return how many steps an epoch still has."""
        whole, rest = divmod(self.length - position, self.global_batch)
        return whole + bool(rest and self.remainder != "drop")

    def begin(self, epoch: int, position: int) -> tuple[int, int]:
        """Return epoch and position of the step that begins there, or else of the next one."""
        return (epoch, position) if self.steps_from(position) > 0 else (epoch + 1, 0)

    def after(self, epoch: int, position: int) -> tuple[int, int]:
        """Return epoch and position of the step after one."""
        return self.begin(epoch, min(position + self.global_batch, self.length))

    def at(self, step: int) -> tuple[int, int]:
        """Return epoch and position of a step, counted from the beginning of epoch 0."""
        epoch, number = divmod(step, self.steps_from(0))
        return epoch, number * self.global_batch

    def share(self, epoch: int, position: int, rank: int, world_size: int) -> list[MicroBatch]:
        """Return the micro-batches of one rank in the step that begins at a position.

        All ranks have as many. A rank with fewer gets some whose samples do not count.
        """
        of = min(self.global_batch, self.length - position)
        size = of if self.remainder == "short" else self.global_batch
        count = -(-size // self.micro_batch)
        own = range(rank * count // world_size, (rank + 1) * count // world_size)
        most = -(-count // world_size)
        made: list[MicroBatch] = []
        for number in (*own, *[0] * (most - len(own))):
            before = number * self.micro_batch
            samples = min(self.micro_batch, size - before)
            real = max(0, min(samples, of - before)) if len(made) < len(own) else 0
            is_last = len(made) == most - 1
            made.append(MicroBatch(epoch, position + before, samples, real, of, is_last))
        return made

    def shares(self, epoch: int, position: int, rank: int, world_size: int) -> Iterator[MicroBatch]:
        """Yield the micro-batches of one rank from a position on, over all epochs."""
        while True:
            yield from self.share(epoch, position, rank, world_size)
            epoch, position = self.after(epoch, position)


def state_of(epoch: int, position: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint has of a loader."""
    return {"version": VERSION, "epoch": epoch, "position": position, "settings": dict(settings)}


def read_state(
    state: dict[str, Any], settings: dict[str, Any], plan: Plan
) -> tuple[int, int, list[str]]:
    """Return epoch and position of a state, and how its settings differ from the present ones.

    Raises:
        ValueError: it is no state of a loader.
    """
    try:
        version, saved = state["version"], dict(state["settings"])
        epoch, position = int(state["epoch"]), int(state["position"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"this is no state of a Loader: {error!r}") from None
    if version != VERSION:
        raise ValueError(f"version {version!r} of the state of a Loader is not known here")
    if epoch < 0 or position < 0:
        raise ValueError(f"epoch {epoch}, position {position} of a Loader's state: below 0")
    names = [
        name
        for name in sorted({*saved, *settings}, key=str)
        if saved.get(name) != settings.get(name)
    ]
    if "seed" in names and all(one.get("rng") == one.get("seed") for one in (saved, settings)):
        names.remove("rng")  # one seed of both
    differences = [
        f"{name} was {saved.get(name)!r} and is {settings.get(name)!r}" for name in names
    ]
    return (*plan.begin(epoch, min(position, plan.length)), differences)
