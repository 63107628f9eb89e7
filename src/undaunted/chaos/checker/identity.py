"""Compares a run with the undisturbed one, record by record. Pure.

The records after each fault are laid beside those of the undisturbed run of the same rank,
iteration and moment. The first that differ say what was not the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from undaunted.chaos.checker.lives import PARAMETERS
from undaunted.chaos.checker.values import Difference
from undaunted.chaos.kinds import KINDS
from undaunted.digests.record import AVERAGE, FORWARD, RNG, SCALER, SCHEDULER, UPDATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.chaos.checker.cuts import Cut
    from undaunted.chaos.checker.lives import Key, Life, ReferenceRun
    from undaunted.chaos.history import Start
    from undaunted.digests.record import Record

# State of helpers of torch, beside model and optimizer.
BESIDE = (SCHEDULER, AVERAGE, SCALER)
# In the order in which one causes the other. What a script names itself comes before the data,
# but for the loss, which follows from everything else.
_ORDER = (
    *("parameters", "buffers", "optimizer", *BESIDE),
    *("rng", "", "data", "gradients", "loss"),
)
# Adding up the gradients of two ranks gives the same bits in any order, of three it does not.
ORDERLY_RANKS = 2

# What follows from the steps before, and from random numbers only if they draw some.
_COMPUTED = ("parameters", "buffers", "optimizer", *BESIDE, "gradients", RNG)


class Pair(NamedTuple):
    """A record and its counterpart in the undisturbed run."""

    rank: int
    start: Start
    key: Key
    record: Record
    reference: Record

    def differing(self) -> tuple[str, ...]:
        """The parts that differ, causes before consequences."""
        ours, theirs = self.record.parts, self.reference.parts
        names = [name for name in ours if name in theirs and ours[name] != theirs[name]]
        return tuple(sorted(names, key=lambda name: (_order(name), name)))


@dataclass(frozen=True)
class Identity:
    """The comparison of a part of a run with the undisturbed one.

    Attributes:
        state: ``identical``; ``random``: nothing but the random state differs; ``differs``;
            ``inherited``: it did before this part already; ``unknown``: nothing to compare.
        first: the first iteration compared, None if there is none.
        last: the last one.
        difference: the first one, or the first that the random state cannot explain.
        pair: the records of that difference.
        fresh: whether nothing of this start of the rank was compared before them.
        ranks: those that were compared.
        random: the random state differs earlier, and the difference does not follow from that.
    """

    state: Literal["identical", "random", "differs", "inherited", "unknown"]
    first: int | None = None
    last: int | None = None
    difference: Difference | None = None
    pair: Pair | None = None
    fresh: bool = False
    ranks: tuple[int, ...] = ()
    random: Identity | None = None


def before_faults(
    by_rank: Mapping[int, Sequence[Life]], lines: Mapping[int, ReferenceRun], cuts: Sequence[Cut]
) -> Identity:
    """Compare what was before the first fault: it differs if the program is not deterministic."""
    first = cuts[0] if cuts else None
    pairs = [pair for pair in _pairs(by_rank, lines) if first is None or _is_before(pair, first)]
    return _compare(pairs, lines)


def after_faults(
    by_rank: Mapping[int, Sequence[Life]], lines: Mapping[int, ReferenceRun], cuts: Sequence[Cut]
) -> list[Identity]:
    """Compare what came after each fault, up to the next one."""
    pairs = list(_pairs(by_rank, lines))
    found: list[Identity] = []
    spoilt: set[str] = set()  # states of the parts before, in which something differed
    for cut, following in zip(cuts, [*cuts[1:], None], strict=False):
        before = [pair for pair in pairs if following is None or _is_before(pair, following)]
        part = [pair for pair in before if _is_after(pair, cut)]
        if cut.inside and not part:  # exactly where it was: its life went on
            went_on = replace(cut, interrupted=False)
            part = [pair for pair in before if _is_after(pair, went_on)]
        if KINDS[cut.fault.kind].poisons:
            last = max((pair.start for pair in part), default=cut.start)
            part = [pair for pair in part if pair.start == last]
        one = _nowhere(by_rank, cut, following) or _compare(part, lines)
        if one.pair is not None and one.pair.start == cut.start:
            one = replace(one, fresh=False)  # nothing was restarted
        differs = one.state in ("random", "differs")
        if one.state in spoilt or (differs and "differs" in spoilt):
            one = replace(one, state="inherited")
        elif differs:
            spoilt.add(one.state)
        found.append(one)
    return found


def _nowhere(
    by_rank: Mapping[int, Sequence[Life]], cut: Cut, following: Cut | None
) -> Identity | None:
    """Return what is known where a rank went on with parameters that it had never had."""
    later = [
        (rank, life)
        for rank, lives in by_rank.items()
        for life in lives
        if life.start > cut.start and (following is None or life.start <= following.start)
    ]
    if KINDS[cut.fault.kind].poisons:
        last = max((life.start for _, life in later), default=cut.start)
        later = [(rank, life) for rank, life in later if life.start == last]
    ranks = {rank for rank, life in later if not life.placed}
    if not ranks:
        return None
    difference = Difference(min(ranks), -1, FORWARD, (PARAMETERS,), tuple(sorted(ranks)))
    return Identity("differs", difference=difference, fresh=True)


def _pairs(
    by_rank: Mapping[int, Sequence[Life]], lines: Mapping[int, ReferenceRun]
) -> Iterator[Pair]:
    for rank, lives in by_rank.items():
        line = lines.get(rank)
        if line is None:
            continue
        for life in filter(lambda life: life.placed, lives):
            for key, record in zip(life.keys, life.records, strict=True):
                # What was before the first step has no place in the order of steps.
                reference = line.by_key.get(key) if record.iteration >= 0 else None
                if reference is not None:
                    yield Pair(rank, life.start, key, record, reference)


def _is_after(pair: Pair, cut: Cut) -> bool:
    if pair.start == cut.start and not cut.interrupted:
        return pair.key.iteration >= cut.iteration
    return pair.start > cut.start


def _is_before(pair: Pair, cut: Cut) -> bool:
    if pair.start == cut.start:
        return pair.key.iteration < cut.iteration
    return pair.start < cut.start


def _compare(pairs: Sequence[Pair], lines: Mapping[int, ReferenceRun]) -> Identity:
    if not pairs:
        return Identity("unknown")
    first = min(pair.key.iteration for pair in pairs)
    last = max(pair.key.iteration for pair in pairs)
    differing = [pair for pair in pairs if pair.differing()]
    if not differing:
        return Identity("identical", first, last, ranks=_all_ranks(pairs))
    differing.sort(key=lambda pair: _place(pair, lines))
    earliest = differing[0]
    # The first one that is more than random state.
    real = next((pair for pair in differing if not _is_random(pair)), None)
    if real is None:
        return _at(earliest, "random", pairs, lines)
    if real is earliest or _follows_from_random(real, lines):
        return _at(earliest, "differs", pairs, lines)
    random = _at(earliest, "random", pairs, lines)
    return replace(_at(real, "differs", pairs, lines), random=random)


def _at(
    pair: Pair,
    state: Literal["random", "differs"],
    pairs: Sequence[Pair],
    lines: Mapping[int, ReferenceRun],
) -> Identity:
    """Return the comparison with this pair as the difference to be explained."""
    iterations = [one.key.iteration for one in pairs]
    difference = Difference(
        rank=pair.rank,
        iteration=pair.key.iteration,
        at=pair.key.at,
        parts=pair.differing(),
        ranks=_ranks(pair, pairs),
        equals=_equals(pair, lines[pair.rank]),
    )
    place = _place(pair, lines)
    fresh = not any(
        (one.rank, one.start) == (pair.rank, pair.start)
        and one.key.iteration < pair.key.iteration
        and _place(one, lines) < place
        for one in pairs
    )
    return Identity(
        state, min(iterations), max(iterations), difference, pair, fresh, _all_ranks(pairs)
    )


def _all_ranks(pairs: Sequence[Pair]) -> tuple[int, ...]:
    return tuple(sorted({pair.rank for pair in pairs}))


def _is_random(pair: Pair) -> bool:
    """Whether only the random state differs."""
    return all(base(name) == RNG for name in pair.differing())


def _follows_from_random(pair: Pair, lines: Mapping[int, ReferenceRun]) -> bool:
    """Whether a difference may follow from the random state, which differed before.

    Data may have been drawn from it, and what the script names may hold anything. What a step
    computes may if any rank draws random numbers in that step.
    """
    if any(base(name) not in _COMPUTED for name in pair.differing()):
        return True
    iteration = pair.key.iteration - (pair.key.at != UPDATE)
    if len(lines) <= ORDERLY_RANKS:
        return any(line.draws(iteration) for line in lines.values())
    # Gradients of more ranks may differ by themselves. What moves in one step alone was drawn by
    # the next iterator of a DataLoader, at the end of an epoch.
    return any(
        line.draws(iteration) and (line.draws(iteration - 1) or line.draws(iteration + 1))
        for line in lines.values()
    )


def _ranks(first: Pair, pairs: Sequence[Pair]) -> tuple[int, ...]:
    """Return the ranks that differ at the same moment; others do as a consequence."""
    moment = (first.start, first.key)
    there = [pair for pair in pairs if (pair.start, pair.key) == moment]
    return tuple(sorted({pair.rank for pair in there if pair.differing()}))


def _place(pair: Pair, lines: Mapping[int, ReferenceRun]) -> tuple[Start, int, int, int]:
    order = lines[pair.rank].order[pair.key]
    # Ranks record the same moments in the same order, but not always the same number of them.
    within = order - lines[pair.rank].begin[pair.key.iteration]
    return (pair.start, pair.key.iteration, within, pair.rank)


def _equals(pair: Pair, line: ReferenceRun) -> dict[str, int]:
    """Return for each part that differs which iteration of the undisturbed run had it."""
    found: dict[str, int] = {}
    for name in pair.differing():
        digest = pair.record.parts[name]
        there = [
            key.iteration
            for key, record in line.by_key.items()
            if key.at == pair.key.at and key.iteration >= 0 and record.parts.get(name) == digest
        ]
        if there:
            found[name] = min(there, key=lambda i: (i != line.first, abs(i - pair.key.iteration)))
    return found


def base(name: str) -> str:
    """Return what kind of state a part is: ``parameters`` for ``model.parameters``."""
    return name.rpartition(".")[2]


def _order(name: str) -> int:
    kind = base(name)
    return _ORDER.index(kind) if kind in _ORDER else _ORDER.index("")
