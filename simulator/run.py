"""What every run has: a world, faults, invariants, and what it came to."""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.virtual.engine import Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Told the time, a name, and an event or a remark.
    Trace = Callable[[int, str, Any], None]

NS = 1_000_000_000
_COLLECT_AFTER = 100_000  # objects


class InvariantError(Exception):
    """An invariant does not hold; the message begins with its name, and says what was seen."""


@dataclass(slots=True)
class Result:
    """What a run came to.

    Attributes:
        seed: of the run.
        problem: which invariant does not hold, "" = all hold.
        ended: how the job ended, "" = it was given up, or each rank ends by itself.
        hopeless: why the job could not go on, "" = it could.
        ends: how many agents' jobs, or calls of ranks, have ended how.
        faults: what happened.
        seconds: virtual time.
        lost_s: virtual time in which not all ranks of a round were at work, before the job was told
            that its work is done; None = it is not measured.
        rounds: how many there were; epochs of in-process restart.
        takeovers: how many there were.
        events, messages: how many were handled, and sent.
    """

    seed: int
    problem: str = ""
    ended: str = ""
    hopeless: str = ""
    ends: dict[str, int] = field(default_factory=dict)
    faults: Sequence[Any] = ()
    seconds: float = 0.0
    lost_s: float | None = None
    rounds: int = 0
    takeovers: int = 0
    events: int = 0
    messages: int = 0


class World:
    """What a job is simulated in; each kind of job adds its machines and processes.

    Attributes:
        simulation: time, network and processes.
    """

    def __init__(self, seed: int, trace: Trace | None) -> None:
        """Begin at time 0.

        Args:
            seed: decides all that is left to chance.
            trace: told of every event and remark: time, who, what.
        """
        self.simulation = Simulation(seed, trace=trace)
        self._trace = trace

    def after(self, delay_ns: int, action: Callable[[Any], object], argument: Any = None) -> None:
        """Call ``action(argument)`` after a while."""
        self.simulation.at(self.simulation.now + delay_ns, action, argument)

    def note(self, name: str, what: Any) -> None:
        """Leave a remark in the trace."""
        if self._trace is not None:
            self._trace(self.simulation.now, name, what)

    def run(self, result: Result, simulate: Callable[[], None]) -> None:
        """Simulate to the end, and say in ``result`` which invariant does not hold."""
        result.problem = violated_by(simulate)
        if result.problem:
            self.note("violation", result.problem)
        result.seconds = self.simulation.now / NS
        result.events, result.messages = self.simulation.events, self.simulation.sent


def violated_by(simulate: Callable[[], None]) -> str:
    """Run a simulation to its end; return which invariant does not hold, "" = all hold.

    One invariant is that no core raises: an exception of any other kind is a finding.
    """
    try:
        simulate()
    except InvariantError as violation:
        return str(violation)
    except Exception as error:  # noqa: BLE001 - documented
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"no core raises: {error!r} at {Path(frame.filename).name}:{frame.lineno}"
    return ""


def collect_seldom() -> None:
    """Have this process look for cycles less often: most of a run lives until its end."""
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
