"""What a rank is in an epoch: its rank, who is active, which restart this is."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Mode(enum.Enum):
    """What a rank does in an epoch."""

    INITIALIZED = enum.auto()  # nothing was assigned yet
    ACTIVE = enum.auto()  # calls the function
    INACTIVE = enum.auto()  # a reserve: waits
    TERMINATED = enum.auto()  # takes no part any more


@dataclasses.dataclass(frozen=True)
class FrozenState:
    """What plug-ins see: the fields of `State`, which cannot be changed."""

    rank: int
    world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: int = 0
    initial_world_size: int = 1
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: Exception | None = None


@dataclasses.dataclass
class State:
    """What rank assignments change.

    Attributes:
        rank: of this process among all, reserves included.
        world_size: number of all.
        active_rank: the rank the function sees, None = it is not called in this process.
        active_world_size: number of ranks that call the function, None = not assigned yet.
        initial_rank: ``RANK`` as the launcher set it; None = as ``rank``.
        initial_world_size: ``WORLD_SIZE`` as the launcher set it; None = as ``world_size``.
        iteration: how many restarts there were in this call.
        mode: what the rank does.
        fn_exception: what this rank raised in the iteration that is over, None = nothing.
    """

    rank: int
    world_size: int
    active_rank: int | None = None
    active_world_size: int | None = None
    initial_rank: int = None  # type: ignore[assignment] # set below
    initial_world_size: int = None  # type: ignore[assignment] # set below
    iteration: int = 0
    mode: Mode = Mode.INITIALIZED
    fn_exception: Exception | None = None

    def __post_init__(self) -> None:
        if self.initial_rank is None:
            self.initial_rank = self.rank
        if self.initial_world_size is None:
            self.initial_world_size = self.world_size

    @classmethod
    def from_env(cls) -> State:
        """Return the state at the beginning, from ``RANK`` (0) and ``WORLD_SIZE`` (1).

        Raises:
            ValueError: one of them is not a number.
        """
        return cls(rank=_number("RANK", 0), world_size=_number("WORLD_SIZE", 1))

    def set_distributed_vars(self) -> None:
        """Write ``RANK`` and ``WORLD_SIZE`` for the function; "None" where it is not called.

        They stay so after the call.
        """
        os.environ["RANK"] = str(self.active_rank)
        os.environ["WORLD_SIZE"] = str(self.active_world_size)

    def advance(self) -> None:
        """Go on to the next iteration."""
        self.iteration += 1
        self.fn_exception = None

    def forget_assignment(self) -> None:
        """Have ranks assigned as if it was for the first time, since processes have joined.

        Those know nothing of what was assigned before, and all ranks must come to the same result.
        """
        self.active_rank = self.active_world_size = None
        self.mode = Mode.INITIALIZED

    def freeze(self) -> FrozenState:
        """Return a copy that does not change."""
        return FrozenState(**{name: getattr(self, name) for name in FIELDS})

    def copy_from(self, other: State | FrozenState, fields: Iterable[str] | None = None) -> None:
        """Take over ``fields`` (all by default) of another state."""
        for name in FIELDS if fields is None else fields:
            setattr(self, name, getattr(other, name))


FIELDS = tuple(field.name for field in dataclasses.fields(State))


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"{variable}={text!r} is not a number: this process was inactive in a call that is "
            "over, or something else has set it"
        ) from None
