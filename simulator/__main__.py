"""Finds the kind of simulation, and hands over to it."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from simulator import command
from simulator.register import command as register
from simulator.replay import command as replay
from simulator.replay import machines
from simulator.run import collect_seldom
from undaunted.base.streams import discard_stdout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OTHERS: dict[str, Callable[[Sequence[str]], int]] = {
    "--inprocess": partial(command.main, "inprocess"),
    "--check": replay.main,
    "--replay": machines.main,
    "--register": register.main,
}


def main(argv: Sequence[str]) -> int:
    """Simulate, or check, as the arguments after ``python -m simulator`` say."""
    others = [_OTHERS[word] for word in argv if word in _OTHERS]
    run = others[0] if others else partial(command.main, "coordination")
    try:
        return run([word for word in argv if word not in _OTHERS])
    except BrokenPipeError:
        discard_stdout()
        return 0


if __name__ == "__main__":
    collect_seldom()
    sys.exit(main(sys.argv[1:]))
