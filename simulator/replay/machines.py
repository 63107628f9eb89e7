"""`python -m simulator --replay`: what state machines have done, done once more.

Reads what `undaunted ctl RUN dump` has printed, or the story of a state machine of in-process
restart that has raised: a state machine is made as the real one was, gets the same events, and has
to answer with the same commands.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import msgspec

from undaunted.attribution.ruling import rule
from undaunted.base.recent import plain
from undaunted.base.text import one_line
from undaunted.coordinator import protocol as p
from undaunted.coordinator.lead import messages as c
from undaunted.coordinator.lead.follower import Follower
from undaunted.coordinator.lead.leader import Leader
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import JobPolicy
from undaunted.fault_tolerance.advice import advise
from undaunted.fault_tolerance.agent import node
from undaunted.fault_tolerance.slow_ranks.pace import Pace
from undaunted.inprocess.core import commands as inprocess
from undaunted.inprocess.core.controller import Controller
from undaunted.inprocess.core.guard import RankGuard
from undaunted.inprocess.core.messages import FromRank, ToRank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_DIFFERS = 1
_USAGE_ERROR = 2
_SHOWN = 3  # differences of one machine
_LONGEST = 600  # characters of one
# What a configuration has in the place of functions.
_FUNCTIONS: dict[str, Any] = {"pace": Pace, "rule": rule, "advise": advise}


class Head(msgspec.Struct, frozen=True):
    """The first line about a machine."""

    machine: str
    made: dict[str, Any]
    seen: int
    kept: int


class Step(msgspec.Struct, frozen=True):
    """What happened, and what the machine has answered, but for commands that are left out."""

    machine: str
    t: int
    event: dict[str, Any]
    commands: list[dict[str, Any]]
    left_out: int = 0


class Machine(Protocol):
    """Takes events as they were written down."""

    def handle(self, step: Step) -> Iterable[object]:
        """Return the commands."""


@dataclass(slots=True)
class Replayed:
    """One machine. ``differences``: events after which it answers otherwise, in words."""

    head: Head
    steps: list[Step] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    skipped: str = ""  # why it was not replayed


def main(argv: Sequence[str]) -> int:
    """Replay the file that the arguments after ``python -m simulator --replay`` name.

    Returns:
        1 if a machine answers otherwise, 2 if the file is none of ours.
    """
    parser = argparse.ArgumentParser(
        prog="python -m simulator --replay",
        description="Give state machines the events that `undaunted ctl RUN dump` has printed, or "
        "that in-process restart has written down, and compare what they answer.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", type=Path)
    path = parser.parse_args(argv).file
    try:
        machines = read(path.read_bytes().splitlines())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        print(f"python -m simulator --replay: {path}: {error}", file=sys.stderr)
        return _USAGE_ERROR
    for machine in machines:
        replay(machine)
        print("\n".join(_lines(machine)))
    return _DIFFERS if any(machine.differences for machine in machines) else 0


def _lines(one: Replayed) -> Iterable[str]:
    count = len(one.differences)
    found = f"not replayed: {one.skipped}" if one.skipped else f"{count or 'no'} differences"
    yield f"{one.head.machine}: {len(one.steps)} of {one.head.seen} events: {found}"
    yield from (f"  {one_line(text, _LONGEST)}" for text in one.differences[:_SHOWN])


def read(lines: Iterable[bytes]) -> list[Replayed]:
    """Sort the lines of a dump by machine.

    Raises:
        ValueError: they are something else.
    """
    found: list[Replayed] = []
    for line in lines:
        if b'"event":' not in line[:80]:
            found.append(Replayed(msgspec.json.decode(line, type=Head)))
        elif not found:
            raise ValueError("it begins with an event, not with the machine that it is about")
        else:
            found[-1].steps.append(msgspec.json.decode(line, type=Step))
    return found


def replay(one: Replayed) -> None:
    """Give a new machine the events, and note where it answers otherwise."""
    head, steps = one.head, one.steps
    if head.seen > len(steps):
        # Of a node's earlier rounds nothing matters once another one begins.
        begins = [step.event["type"] == "StartRound" for step in steps]
        if head.machine != "node" or True not in begins:
            one.skipped = "what it did first is not in the dump any more"
            return
        one.steps = steps = steps[begins.index(True) :]
    machine = _MACHINES[head.machine](head.made)
    for step in steps:
        try:
            answer = list(machine.handle(step))
        except Exception as error:  # noqa: BLE001 - what is looked for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            one.differences.append(f"{step.event}: raises {error!r} at {where}")
            return
        commands = [_written(command) for command in answer[: len(answer) - step.left_out]]
        if commands != step.commands:
            one.differences.append(
                f"{step.event}: {commands}, where the real one answered {step.commands}"
            )


def _written(command: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(plain(command)))


# --- machines -------------------------------------------------------------------------------------


class _Node:
    def __init__(self, made: dict[str, Any]) -> None:
        self._node = node.Node(**made)

    def handle(self, step: Step) -> Iterable[object]:
        about = dict(step.event)
        kinds = {kind.__name__: kind for kind in get_args(node.Event)}
        return self._node.handle(msgspec.convert(about, kinds[about.pop("type")]))


class _Policy:
    def __init__(self, made: dict[str, Any]) -> None:
        config, known = _config(made["config"]), dict(made.get("restored", {}))
        if not known:
            self._policy = JobPolicy(config)
            return
        known["nodes"] = msgspec.convert(known["nodes"], list[m.NodeInfo])
        known["memory"] = msgspec.convert(known["memory"], m.Memory)
        self._policy = JobPolicy.restored(config, **known)

    def handle(self, step: Step) -> Iterable[object]:
        event: m.Event = msgspec.convert(step.event, m.Event)
        return self._policy.handle(event)


class _Leader:
    def __init__(self, made: dict[str, Any]) -> None:
        config = {**made["config"], "policy": _config(made["config"]["policy"])}
        config["endpoints"] = tuple(config["endpoints"])
        ledger = msgspec.convert(made["ledger"], p.Ledger)
        about = (made["epoch"], made["lost"], tuple(made["silent"]))
        # Dumps of earlier builds have none.
        stops = (made.get("stops_s", 0.0), made.get("others_stop_s"))
        self._leader = Leader(c.LeaderConfig(**config), ledger, *about, *stops)

    def handle(self, step: Step) -> Iterable[object]:
        return self._leader.handle(_event(step, c.LeaderEvent), step.t)


class _Follower:
    def __init__(self, made: dict[str, Any]) -> None:
        self._follower = Follower(msgspec.convert(made["config"], c.FollowerConfig))

    def handle(self, step: Step) -> Iterable[object]:
        return self._follower.handle(_event(step, c.FollowerEvent), step.t)


class _InProcess:
    """A state machine of in-process restart, whose story was written as it raised."""

    def __init__(self, machine: Controller | RankGuard, events: Any) -> None:
        self._machine, self._events = machine, events

    def handle(self, step: Step) -> Iterable[object]:
        event = msgspec.convert(step.event, self._events, str_keys=True)
        return self._machine.handle(event, step.t)


_MACHINES: dict[str, Callable[[dict[str, Any]], Machine]] = {
    "node": _Node,
    "policy": _Policy,
    "leader": _Leader,
    "follower": _Follower,
    "controller": lambda _: _InProcess(Controller(), inprocess.ControllerEvent),
    "guard": lambda _: _InProcess(RankGuard(), FromRank | ToRank | inprocess.GuardEvent),
}
_TYPES: dict[str, Any] = {"message": p.Message | None, "event": m.NodeEvent}


def _config(known: dict[str, Any]) -> PolicyConfig:
    functions = {name: _FUNCTIONS[name] for name in _FUNCTIONS if known.get(name) is not None}
    return PolicyConfig(**{**known, **dict.fromkeys(_FUNCTIONS), **functions})


def _event(step: Step, event: Any) -> Any:
    """Return an event of a leader or a follower."""
    about = dict(step.event)
    kinds = {kind.__name__: kind for kind in get_args(event)}
    kind = kinds[about.pop("type")]
    return kind(
        **{
            name: msgspec.convert(value, _TYPES[name]) if name in _TYPES else value
            for name, value in about.items()
        }
    )
