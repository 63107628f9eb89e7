"""Finds the kind of simulation, and hands over to it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from simulator.coordination import command as coordination
from simulator.inprocess import command as inprocess
from simulator.replay import command as replay
from undaunted.base.streams import discard_stdout

if TYPE_CHECKING:
    from collections.abc import Sequence

_OTHERS = {"--inprocess": inprocess.main, "--check": replay.main}


def main(argv: Sequence[str]) -> int:
    """Simulate, or check, as the arguments after ``python -m simulator`` say."""
    run = next((_OTHERS[word] for word in argv if word in _OTHERS), coordination.main)
    try:
        return run([word for word in argv if word not in _OTHERS])
    except BrokenPipeError:
        discard_stdout()
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
