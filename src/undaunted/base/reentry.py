"""The restart of the program inside this process, for code that goes on from a saved state.

Set by `undaunted.inprocess` each time it calls the program's function.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """The reason for which the function was called again.

    Attributes:
        cause: as attribution names it.
        error: what stays the same of its message when it happens again.
        ranks: where it came from.
        steps: that this process had done since the function was called, None = not known.
    """

    cause: str
    error: str
    ranks: tuple[int, ...]
    steps: int | None


class Reentry(NamedTuple):
    """One call of the function.

    Attributes:
        name: of it, the same on all ranks and another one for each call.
        before: name of the call before; "" = there was none.
        fault: how that one has failed; None = it has not, or this says nothing of the program.
    """

    name: str
    before: str = ""
    fault: Fault | None = None


# "" = the function is not one that is restarted.
current = Reentry("")


def enter(one: Reentry) -> None:
    """Note that the function is called."""
    global current  # noqa: PLW0603 - of the process
    current = one
