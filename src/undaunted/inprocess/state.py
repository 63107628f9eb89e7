"""The state of a rank in an iteration: its ranks, their numbers, and the iteration's number."""

from __future__ import annotations

import dataclasses
import enum
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Mode(enum.Enum):
    """The part of a rank in an iteration."""

    INITIALIZED = enum.auto()  # no rank was assigned yet
    ACTIVE = enum.auto()  # calls the function
    INACTIVE = enum.auto()  # a reserve: waits
    TERMINATED = enum.auto()  # takes no part any more


@dataclasses.dataclass(frozen=True)
class FrozenState:
    """A copy of `State` for plug-ins, which cannot be changed."""

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
    """The state that rank assignments change.

    Attributes:
        rank: of this process among all processes, reserves included.
        world_size: number of all processes.
        active_rank: ``RANK`` for the function, None = it is not called in this process.
        active_world_size: number of ranks that call the function, None = not assigned yet.
        initial_rank: ``RANK`` as the launcher has set it; None = as ``rank``.
        initial_world_size: ``WORLD_SIZE`` as the launcher has set it; None = as ``world_size``.
        iteration: number of the iteration in this call = restarts so far.
        mode: the part of the rank.
        fn_exception: the function's exception in this rank in the iteration that is over, None =
            there was none.
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
        """Return the first state, from ``RANK`` (default 0) and ``WORLD_SIZE`` (default 1).

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
        """Forget the assignment, as processes have joined, and have ranks assigned as at first.

        The new processes do not know the earlier assignment, and all results must fit each other.
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
