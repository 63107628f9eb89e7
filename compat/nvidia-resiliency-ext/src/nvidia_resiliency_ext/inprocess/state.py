"""The state of a rank in an iteration."""

from __future__ import annotations

import dataclasses
from typing import Any

from undaunted.inprocess.state import FrozenState as FrozenState
from undaunted.inprocess.state import Mode as Mode
from undaunted.inprocess.state import State as State


def freeze_dataclass(cls: type) -> type:
    """Return a dataclass with the same fields, whose objects cannot be changed.

    Args:
        cls: a dataclass; `State` gives `FrozenState`.

    Raises:
        TypeError: it is no dataclass.
    """
    if cls is State:
        return FrozenState
    fields: list[tuple[str, Any, Any]] = [
        (
            field.name,
            field.type,
            dataclasses.field(
                default=field.default,
                default_factory=field.default_factory,
                init=field.init,
                kw_only=field.kw_only,
                metadata=field.metadata,
            ),
        )
        for field in dataclasses.fields(cls)
    ]
    return dataclasses.make_dataclass(
        f"Frozen{cls.__name__}", fields, frozen=True, namespace={"__module__": cls.__module__}
    )
