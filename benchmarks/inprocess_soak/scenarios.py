"""What happens in one iteration of a job: which rank fails how, and where the others are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

# Where ranks are that do not fail. "steps" are collectives, where there is a group.
PLACES = (
    "atomic",
    "cleaning up",
    "lock",
    "queue",
    "returned",
    "sleep",
    "socket",
    "spin",
    "store",
    "subprocess",
    "swallow",
    "steps",
)


@dataclass
class Order:
    """What one rank is told.

    Attributes:
        do: one of `PLACES`, "raise", "kill", "leave", "hang", "lock the GIL", or "return".
        armed: what it does when it comes to "abort", "finalize", "initialize" or "group" next:
            "raise" or "kill".
    """

    do: str
    armed: dict[str, str] = field(default_factory=dict)


@dataclass
class Action:
    """What the soak does to a rank, after so many seconds: one of `processes.SIGNALS`.

    Attributes:
        forever: the rank is not continued; its guard ends it.
    """

    after_s: float
    what: str
    number: int
    forever: bool = False


@dataclass
class Scenario:
    """Of one iteration. Ranks are named by their job rank."""

    kind: str
    orders: dict[int, Order]
    actions: list[Action] = field(default_factory=list)


@dataclass
class Scene:
    """What a scenario is drawn for.

    Attributes:
        active: who calls the function.
        reserves: who does not.
        gloo: whether there is a group in every iteration.
        short: whether the limits are short enough to be waited for.
        launched: whether a launcher is the guard of all ranks.
    """

    active: list[int]
    reserves: list[int]
    gloo: bool = False
    short: bool = False
    launched: bool = False

    @property
    def members(self) -> list[int]:
        return self.active + self.reserves


def draw(rng: random.Random, scene: Scene) -> Scenario:
    """Draw one of those that leave two ranks alive, or sometimes one."""
    left = rng.choice((1, 2, 2, 2, 2, 2))
    possible = [
        kind
        for kind, (_, weight, deaths) in KINDS.items()
        for _ in range(weight)
        if len(scene.members) - deaths >= (left if deaths else 1)
        and (scene.short or kind not in SLOW)
        and not (scene.launched and kind == GUARD)
    ]
    kind = rng.choice(possible)
    scenario = Scenario(kind, places(rng, scene))
    scenario.orders.update({number: Order("nothing") for number in scene.reserves})
    KINDS[kind][0](rng, scene, scenario)
    return scenario


def end(scene: Scene) -> Scenario:
    """Let the function return in all ranks."""
    return Scenario("end", {number: Order("return") for number in scene.active})


def places(rng: random.Random, scene: Scene) -> dict[int, Order]:
    """Distribute the ranks, but one returns only where another does not."""
    known = [place for place in PLACES if place != "steps" or scene.gloo]
    orders = {number: Order(rng.choice(known)) for number in scene.active}
    if all(order.do == "returned" for order in orders.values()):
        orders[scene.active[0]] = Order("sleep")
    return orders


# --- the kinds ------------------------------------------------------------------------------------


def one_fails(how: str) -> Callable[..., None]:
    def apply(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
        scenario.orders[rng.choice(scene.active)] = Order(how)

    return apply


def two_raise(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
    for number in rng.sample(scene.active, min(2, len(scene.active))):
        scenario.orders[number] = Order("raise")


def killed(count: int) -> Callable[..., None]:
    def apply(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
        for number in rng.sample(scene.members, count):
            scenario.actions.append(Action(rng.uniform(0, 0.02), "kill", number))

    return apply


def guard_killed(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
    """Not the one of rank 0, where the controller is."""
    victim = rng.choice([number for number in scene.members if number])
    scenario.actions.append(Action(rng.uniform(0, 0.02), "kill guard", victim))


def killed_in_recovery(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
    scenario.orders[rng.choice(scene.active)] = Order("raise")
    victim = rng.choice(scene.members)
    scenario.actions.append(Action(rng.uniform(0, 0.04), "kill", victim))


def stopped_for_a_moment(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
    raiser = rng.choice(scene.active)
    scenario.orders[raiser] = Order("raise")
    others = [number for number in scene.members if number != raiser]
    if others:
        begin = rng.uniform(0, 0.02)
        victim = rng.choice(others)
        scenario.actions += [
            Action(begin, "stop", victim),
            Action(begin + rng.uniform(0.05, 0.4), "continue", victim),
        ]


def stopped(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
    scenario.actions.append(Action(0.0, "stop", rng.choice(scene.active), forever=True))


def then(point: str, how: str) -> Callable[..., None]:
    """One raises; the same or another rank fails when it comes to ``point``."""

    def apply(rng: random.Random, scene: Scene, scenario: Scenario) -> None:
        scenario.orders[rng.choice(scene.active)] = Order("raise")
        second = rng.choice(scene.active if point == "group" else scene.members)
        scenario.orders[second].armed[point] = how

    return apply


GUARD = "SIGKILL of a guard"
SLOW = ("hang: soft timeout", "GIL held: hard timeout", "stopped: hard timeout")

# What it is called: how it is made, how often it is drawn, how many ranks may end of it.
KINDS: Mapping[str, tuple[Callable[..., None], int, int]] = {
    "exception": (one_fails("raise"), 12, 0),
    "exceptions in two": (two_raise, 6, 0),
    "SIGKILL": (killed(1), 3, 1),
    "SIGKILL of two": (killed(2), 1, 2),
    GUARD: (guard_killed, 2, 1),
    "kills itself": (one_fails("kill"), 1, 1),
    "SystemExit": (one_fails("leave"), 1, 1),
    "exception, SIGKILL in recovery": (killed_in_recovery, 2, 1),
    "exception, another stopped meanwhile": (stopped_for_a_moment, 6, 0),
    "exception, kill in abort": (then("abort", "kill"), 1, 1),
    "exception, raise in finalize": (then("finalize", "raise"), 1, 1),
    "exception, kill in finalize": (then("finalize", "kill"), 1, 1),
    "exception, raise in initialize": (then("initialize", "raise"), 6, 0),
    "exception, kill in initialize": (then("initialize", "kill"), 1, 1),
    "exception, raise before the group": (then("group", "raise"), 6, 0),
    "exception, kill before the group": (then("group", "kill"), 1, 1),
    "hang: soft timeout": (one_fails("hang"), 3, 0),
    "GIL held: hard timeout": (one_fails("lock the GIL"), 2, 1),
    "stopped: hard timeout": (stopped, 2, 1),
}
