"""The choice of the nodes of a round, and of the ranks of each of them. Pure functions.

Nodes of the last round are preferred to others when there are more than needed. Where every node
has an infrastructure rank, group ranks follow these; otherwise survivors keep the group rank they
had, and the others fill the gaps.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from undaunted.coordinator.policy.messages import NodeInfo, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAMED = 8
_NameKey = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a placement.

    Attributes:
        fewest: nodes needed.
        most: nodes taken at most.
        segment: nodes per segment, all in one NVLink domain; 0 = there are no segments.
        group_size: nodes of a complete replacement group; 0 = there are no groups.
    """

    fewest: int = 1
    most: int = 1
    segment: int = 0
    group_size: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that take part, in the order of group ranks; ``spares`` wait."""

    places: tuple[Place, ...]
    spares: tuple[str, ...]


class _Candidate(NamedTuple):
    """A node. ``seat`` is the group rank it had, None = it was not in the last round."""

    info: NodeInfo
    seat: int | None
    order: tuple[int, _NameKey]

    @property
    def preference(self) -> tuple[bool, int, _NameKey]:
        """Sorts survivors before newcomers."""
        return (self.seat is None, *self.order)


def choose(nodes: Iterable[NodeInfo], seats: Mapping[str, int], rules: Rules) -> Placement | str:
    """Place nodes.

    Args:
        nodes: that are there, in any order.
        seats: group ranks of the last round, by node; empty in the first round.
        rules: what to keep to.

    Returns:
        The nodes that take part, or why nothing fits.
    """
    there = [node for node in nodes if node.slots > 0]
    by_infra = all(node.infra_rank is not None and node.infra_rank >= 0 for node in there)
    candidates = sorted(
        (_candidate(node, seats, by_infra=by_infra) for node in there),
        key=lambda candidate: candidate.preference,
    )
    duplicate = ""
    if by_infra:
        candidates, duplicate = _without_duplicates(candidates)
    candidates = _of_complete_groups(candidates, rules.group_size)
    domains = _take(candidates, rules)
    if isinstance(domains, str) or (duplicate and not seats):
        return duplicate or str(domains)
    ranked = _by_infra_rank(domains) if by_infra else _seated(domains, rules.segment or 1)
    active = {node.name for node in ranked}
    spares = sorted((node.name for node in there if node.name not in active), key=name_key)
    return Placement(places(ranked), tuple(spares))


def places(ranked: Iterable[NodeInfo]) -> tuple[Place, ...]:
    """Give ranks to nodes in the order of their group ranks."""
    table: list[Place] = []
    first_rank = 0
    for group_rank, node in enumerate(ranked):
        table.append(Place(node.name, group_rank, first_rank, node.slots))
        first_rank += node.slots
    return tuple(table)


def name_key(name: str) -> _NameKey:
    """Sort key of node names that puts ``n2`` before ``n10``."""
    parts = re.split(r"([0-9]+)", name)
    numbers = [part.lstrip("0") for part in parts[1::2]]
    keys = [(0, part) for part in parts]
    keys[1::2] = [(len(number), number) for number in numbers]
    return (*keys, (0, name))


def name_some(nodes: Iterable[str]) -> str:
    """List node names for a person, the first ones if there are many."""
    names = sorted(nodes, key=name_key)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _candidate(node: NodeInfo, seats: Mapping[str, int], *, by_infra: bool) -> _Candidate:
    seat = seats.get(node.name)
    number = node.infra_rank if by_infra else seat
    return _Candidate(node, seat, (number or 0, name_key(node.name)))


# --- who takes part -----------------------------------------------------------------------------


def _without_duplicates(candidates: list[_Candidate]) -> tuple[list[_Candidate], str]:
    """Keep the preferred one of nodes with the same infrastructure rank; name two of them."""
    first: dict[int | None, _Candidate] = {}
    problem = ""
    for candidate in candidates:
        rank = candidate.info.infra_rank
        other = first.setdefault(rank, candidate)
        if other is not candidate and not problem:
            names = f"{other.info.name} and {candidate.info.name}"
            problem = f"nodes {names} have the same infrastructure rank {rank}"
    return list(first.values()), problem


def _of_complete_groups(candidates: list[_Candidate], size: int) -> list[_Candidate]:
    """Keep members of complete replacement groups, groups with most survivors first."""
    if not size:
        return candidates
    groups: defaultdict[str, list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        if candidate.info.group:
            groups[candidate.info.group].append(candidate)
    complete = [members[:size] for members in groups.values() if len(members) >= size]
    complete.sort(key=lambda members: (-_survivors(members), min(each.order for each in members)))
    return [candidate for members in complete for candidate in members]


def _take(candidates: list[_Candidate], rules: Rules) -> list[list[_Candidate]] | str:
    """Take whole segments, those with most survivors first; return them by domain.

    Without segments all nodes count as one domain, and each is a segment.
    """
    size = rules.segment or 1
    domains: defaultdict[str, list[_Candidate]] = defaultdict(list)
    for candidate in candidates:
        domains[_domain(candidate.info) if rules.segment else ""].append(candidate)
    ordered = sorted(domains.values(), key=lambda members: min(each.order for each in members))
    segments = [
        (-_survivors(members[at : at + size]), number, at)
        for number, members in enumerate(ordered)
        for at in range(0, len(members) - size + 1, size)
    ]
    count = min(len(segments), rules.most // size)
    if count * size < max(1, rules.fewest):
        return _too_few(len(candidates), len(segments), rules)
    taken = Counter(number for _, number, _ in sorted(segments)[:count])
    return [members[: taken[number] * size] for number, members in enumerate(ordered)]


def _domain(info: NodeInfo) -> str:
    return f"domain {info.domain}" if info.domain else f"node {info.name}"


def _survivors(candidates: Sequence[_Candidate]) -> int:
    return sum(candidate.seat is not None for candidate in candidates)


def _too_few(nodes: int, segments: int, rules: Rules) -> str:
    of_groups = f" of complete replacement groups of {rules.group_size}" if rules.group_size else ""
    if not rules.segment:
        return f"{nodes} of {rules.fewest} nodes{of_groups} are here"
    return (
        f"{segments} whole segments of {rules.segment} nodes{of_groups} in one NVLink domain are "
        f"here, for {rules.fewest} nodes"
    )


# --- who is which rank --------------------------------------------------------------------------


def _by_infra_rank(domains: list[list[_Candidate]]) -> list[NodeInfo]:
    return [
        candidate.info
        for members in domains
        for candidate in sorted(members, key=lambda each: each.order)
    ]


def _seated(domains: list[list[_Candidate]], size: int) -> list[NodeInfo]:
    """Let survivors keep their group rank where that goes, others fill the gaps."""
    ranked: dict[int, NodeInfo] = {}
    for members, blocks in zip(domains, _blocks(domains, size), strict=True):
        gaps = {block * size + at: None for block in blocks for at in range(size)}
        without: list[_Candidate] = []
        for candidate in members:
            if candidate.seat in gaps:
                del gaps[candidate.seat]
                ranked[candidate.seat] = candidate.info
            else:
                without.append(candidate)
        for rank, candidate in zip(sorted(gaps), without, strict=True):
            ranked[rank] = candidate.info
    return [ranked[rank] for rank in sorted(ranked)]


def _blocks(domains: list[list[_Candidate]], size: int) -> list[list[int]]:
    """Divide the group ranks, in blocks of a segment's length, among the domains.

    A domain keeps the blocks in which most of its nodes sat.
    """
    free = dict.fromkeys(range(sum(map(len, domains)) // size))
    blocks: list[list[int]] = []
    for members in domains:
        sat = Counter(each.seat // size for each in members if each.seat is not None)
        kept = [block for block, _ in sat.most_common() if block in free][: len(members) // size]
        for block in kept:
            del free[block]
        blocks.append(kept)
    rest = iter(list(free))
    for members, kept in zip(domains, blocks, strict=True):
        kept += [next(rest) for _ in range(len(members) // size - len(kept))]
    return blocks
