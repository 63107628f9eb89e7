"""From a seed to a plan: the same one on every machine and every version of Python. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from undaunted.base.text import did_you_mean
from undaunted.chaos.kinds import KINDS
from undaunted.chaos.plan import Plan, PlanError, Planned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Faults happen in the middle of a run: at the very beginning there is nothing to lose yet, at the
# very end nothing to go on with.
_MARGIN = 0.1
_PLACES = ("early", "anywhere", "late")  # see `KindOf.place`


@dataclass(frozen=True, slots=True)
class Wanted:
    """A fault of which not everything is decided.

    Attributes:
        id: its name in the plan.
        kind: one of ``kinds.KINDS``.
        run: in which run, from 1.
        rank: global rank, None = any.
        iteration: of the script, None = any in the middle of the run.
        seconds: how long it lasts, None = the default of the kind.
        where: where the user has written it, for messages; "" if nowhere.
        how: in which way, of a kind with several; "" = the seed decides.
    """

    id: str
    kind: str
    run: int
    rank: int | None = None
    iteration: int | None = None
    seconds: float | None = None
    where: str = ""
    how: str = ""


def wanted_of(
    kinds: Sequence[str], *, runs_per_kind: int, faults_per_run: int, seed: int
) -> list[Wanted]:
    """Plan each kind of fault so many times; `settle` chooses ranks and iterations.

    Args:
        kinds: of ``kinds.KINDS``.
        runs_per_kind: how many faults of each kind, at least 1.
        faults_per_run: how many faults one run has, at least 1; they are spread over the run. With
            more than one, kinds are mixed.
        seed: decides everything that is random.

    Raises:
        PlanError: a kind that does not exist.
    """
    for kind in kinds:
        check_kind(kind)
    names = [(kind, number) for kind in kinds for number in range(1, runs_per_kind + 1)]
    if faults_per_run > 1:
        names.sort(key=lambda name: _hash(seed, f"{name[0]}-{name[1]}", "order"))
    return [
        Wanted(
            id=f"{kind}-{number}",
            kind=kind,
            run=1 + place // faults_per_run,
            how=_how_of(kind, seed + number),  # one after the other
        )
        for place, (kind, number) in enumerate(names)
    ]


def _how_of(kind: str, number: int) -> str:
    hows = KINDS[kind].hows
    return hows[number % len(hows)] if hows else ""


def check_how(kind: str, how: str, where: str = "") -> None:
    """Refuse a way in which a fault cannot happen.

    Raises:
        PlanError: names those in which it can.
    """
    hows = KINDS[kind].hows
    if how and how not in hows:
        known = f"known: {', '.join(hows)}" if hows else f"a {kind} has no choice"
        raise PlanError(f"{where}{how!r} is no way in which a {kind} happens; {known}")


def check_kind(kind: str, where: str = "") -> None:
    """Refuse a kind that does not exist.

    Raises:
        PlanError: names the known kinds.
    """
    if kind not in KINDS:
        known = f"known: {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        raise PlanError(f"{where}{kind!r} is not a kind of fault; {known}")


def settle(
    wanted: Iterable[Wanted],
    *,
    seed: int,
    world_size: int,
    first: int,
    last: int,
) -> Plan:
    """Decide what is open.

    Args:
        wanted: the faults.
        seed: decides everything that is random.
        world_size: number of ranks, at least 1.
        first: iteration with which the undisturbed run began.
        last: its last iteration.

    Raises:
        PlanError: a rank or an iteration that the program does not have, or more faults than a run
            has iterations.
    """
    runs: dict[int, list[Wanted]] = {}
    for fault in wanted:
        _check(fault, world_size, first, last)
        how = fault.how or _how_of(fault.kind, _hash(seed, fault.id, "how"))
        runs.setdefault(fault.run, []).append(replace(fault, how=how))
    faults: list[Planned] = []
    for _, in_run in sorted(runs.items()):
        faults += _settle_run(_spread(in_run, seed, first, last), seed, world_size)
    return Plan(seed, tuple(faults))


def _check(fault: Wanted, world_size: int, first: int, last: int) -> None:
    name = f"{fault.where}fault {fault.id!r}"
    if fault.rank is not None and not 0 <= fault.rank < world_size:
        span = f"ranks 0 to {world_size - 1}" if world_size > 1 else "only rank 0"
        raise PlanError(f"{name} is for rank {fault.rank}; this job has {span}")
    if fault.iteration is not None and not first <= fault.iteration <= last:
        raise PlanError(
            f"{name} is for iteration {fault.iteration}; the undisturbed run had iterations "
            f"{first} to {last}"
        )


def _spread(faults: list[Wanted], seed: int, first: int, last: int) -> list[Wanted]:
    """Give each fault that has none an iteration, each in another part of the run.

    Those for which checkpoints have to be there come in the later half, if their part reaches it,
    and those that need further saves in the earlier one.
    """
    margin = int((last - first + 1) * _MARGIN)
    low, count = first + margin, last - first + 1 - 2 * margin
    open_ = [fault for fault in faults if fault.iteration is None]
    if len(open_) > count:
        raise PlanError(
            f"run {faults[0].run} has {len(open_)} faults to be spread over {count} iterations; "
            "plan fewer faults per run, or let the program take more steps"
        )
    open_.sort(key=lambda fault: _PLACES.index(KINDS[fault.kind].place(fault.how)))
    spread, middle = {}, low + count // 2
    for number, fault in enumerate(open_):
        begin = low + count * number // len(open_)
        end = low + count * (number + 1) // len(open_)
        place = KINDS[fault.kind].place(fault.how)
        if place == "late" and end > middle:
            begin = max(begin, middle)
        elif place == "early" and begin < middle:
            end = min(end, middle)
        chosen = begin + _hash(seed, fault.id, "iteration") % (end - begin)
        spread[fault.id] = replace(fault, iteration=chosen)
    return [spread.get(fault.id, fault) for fault in faults]


def _settle_run(faults: list[Wanted], seed: int, world_size: int) -> list[Planned]:
    settled = [
        Planned(
            id=fault.id,
            kind=fault.kind,
            rank=_hash(seed, fault.id, "rank") % world_size if fault.rank is None else fault.rank,
            iteration=fault.iteration or 0,
            run=fault.run,
            seconds=fault.seconds,
            how=fault.how,
        )
        for fault in faults
    ]
    return sorted(settled, key=lambda fault: fault.iteration)


def _hash(seed: int, name: str, what: str) -> int:
    # A hash rather than `random`, which is free to change between versions of Python.
    digest = hashlib.blake2b(f"{seed}/{name}/{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
