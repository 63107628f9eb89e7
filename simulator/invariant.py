"""What must never happen in a simulated job, and how it is told when it has."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class InvariantError(Exception):
    """An invariant does not hold; the message begins with its name, and says what was seen."""


def violated_by(simulate: Callable[[], None]) -> str:
    """Run a simulation to its end; return which invariant does not hold, "" = all hold.

    One invariant is that no core raises: whatever does is a finding.
    """
    try:
        simulate()
    except InvariantError as violation:
        return str(violation)
    except Exception as error:  # noqa: BLE001 - documented
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"no core raises: {error!r} at {Path(frame.filename).name}:{frame.lineno}"
    return ""
