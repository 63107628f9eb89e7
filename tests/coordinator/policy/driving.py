"""Drives a job policy in tests: every node obeys at once unless a test wants it otherwise."""

from __future__ import annotations

from typing import Any, TypeVar

from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import JobPolicy

T = TypeVar("T")

ADDRESS, PORT = "10.0.0.1", 29500


def of(kind: type[T], commands: list[m.Command]) -> list[T]:
    return [command for command in commands if isinstance(command, kind)]


class Driver:
    """A policy whose tables are accepted at once; timers are left out of what it answers.

    Attributes:
        said: every command so far.
        timers: set so far, by name.
    """

    def __init__(self, policy: JobPolicy | None = None, **config: Any) -> None:
        self.policy = policy or JobPolicy(PolicyConfig(**config))
        self.said: list[m.Command] = []
        self.timers: dict[str, m.SetTimer] = {}
        self.accepts = True

    def feed(self, *events: m.Event) -> list[m.Command]:
        """Feed events; return what the last one caused."""
        commands: list[m.Command] = []
        for event in events:
            commands = self._feed(event)
        return commands

    def _feed(self, event: m.Event) -> list[m.Command]:
        commands: list[m.Command] = []
        for command in self.policy.handle(event):
            self.said.append(command)
            if isinstance(command, m.SetTimer):
                self.timers[command.name] = command
            elif isinstance(command, m.Prepare) and self.accepts:
                commands += self.accept()
            else:
                commands.append(command)
        return commands

    def accept(self) -> list[m.Command]:
        return self._feed(m.TableAccepted(self.policy.round + 1, ADDRESS, PORT))

    def fire(self, name: str) -> list[m.Command]:
        timer = self.timers.pop(name)
        return self.feed(m.TimerFired(name, timer.round))

    # --- what nodes do ----------------------------------------------------------------------------

    def join(self, *names: str, slots: int = 2, **about: Any) -> list[m.Command]:
        return self.feed(*[m.NodeJoined(m.NodeInfo(name, slots, **about)) for name in names])

    def lose(self, *names: str) -> list[m.Command]:
        return self.feed(*[m.NodeLost(name, f"node {name} is lost: silence") for name in names])

    def fail(self, name: str, detail: str = "rank 0: exit code 1", **more: Any) -> list[m.Command]:
        return self.feed(m.NodeFailed(name, self.policy.round, detail, **more))

    def stop(self, *names: str, **more: Any) -> list[m.Command]:
        number = self.policy.round
        return self.feed(*[m.NodeStopped(name, number, **more) for name in names])

    def finish(self, *names: str) -> list[m.Command]:
        number = self.policy.round
        return self.feed(*[m.NodeFinished(name, number) for name in names])

    def signal(self, *names: str) -> list[m.Command]:
        return self.feed(*[m.Preempted(name, 15, "SIGTERM") for name in names])

    # --- what there is ----------------------------------------------------------------------------

    @property
    def table(self) -> str:
        """Nodes of the last round in the order of group ranks."""
        return " ".join(place.node for place in self.policy.places)

    @property
    def ends(self) -> dict[str, m.End]:
        return {end.node: end for end in of(m.End, self.said)}

    @property
    def outcomes(self) -> dict[str, str]:
        return {node: end.outcome.value for node, end in self.ends.items()}


def running(*names: str, slots: int = 2, **config: Any) -> Driver:
    """A job whose first round runs on the first of ``names``."""
    driver = Driver(**config)
    driver.join(*names, slots=slots)
    if driver.policy.round < 0:
        driver.fire("last_call")
    assert driver.policy.running
    return driver
