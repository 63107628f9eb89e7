"""Results of analyses as text."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any


def serialize_result(result: Any) -> str:
    """Return a result as JSON: dataclasses by their fields, members of enumerations by name.

    Args:
        result: what an analysis returned; what JSON has no form for is written as text.
    """
    return json.dumps(result, default=_plain)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name
    return list(value) if isinstance(value, set | frozenset) else str(value)
