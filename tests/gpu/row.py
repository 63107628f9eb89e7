"""What a row is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class NotShown(Exception):  # noqa: N818 - it is no error
    """This machine cannot show it; the text says why."""


@dataclass(frozen=True)
class Row:
    """One check.

    Attributes:
        name: of it.
        what: must hold.
        check: gets an empty folder, its current directory; returns what it has seen, or raises.
        limit_s: when it is ended.
        needs_several: takes more than one GPU, so that it is not run.
    """

    name: str
    what: str
    check: Callable[[Path], str]
    limit_s: float = 60.0
    needs_several: bool = False
