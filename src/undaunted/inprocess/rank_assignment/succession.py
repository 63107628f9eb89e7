"""Who takes the places of active ranks that are gone. Pure; works on the groups of a `Tree`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.inprocess.rank_assignment.layer import LayerFlag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from undaunted.inprocess.rank_assignment.groups import Group, Leaf


def activate_first(root: Group) -> None:
    """Activate ranks in order, as long as all groups they are in have room."""
    active = 0
    for number, leaf in enumerate(root.all_leaves()):
        if all(group.has_room for group in leaf.group.upwards()):
            leaf.activate(active)
            active += 1
        else:
            leaf.deactivated = number


def fill(gone: Sequence[Leaf]) -> None:
    """Have others take the active ranks of ranks that are gone.

    Args:
        gone: were active and are not there any more. Places that nobody takes stay empty.
    """
    places = [(leaf.active_rank, leaf.group) for leaf in gone]
    for leaf in gone:
        leaf.deactivate()
    empty: list[tuple[int, Group]] = []
    reserves: dict[Group, Iterator[Leaf]] = {}
    for active_rank, group in sorted(places, key=lambda place: place[0] or 0):
        assert active_rank is not None
        reserve = _reserve_for(group, reserves)
        if reserve is None:
            empty.append((active_rank, group))
        else:
            reserve.activate(active_rank, "hot spare activated")
    _backfill(empty)


def close_gaps(root: Group) -> int:
    """Make the active ranks consecutive, in their order; return how many there are."""
    active = _by_active_rank(root)
    for number, leaf in enumerate(active):
        if leaf.active_rank != number:
            leaf.active_rank = number
            leaf.change = leaf.change or "shifted"
    return len(active)


def deactivate_from(root: Group, active_rank: int, numbers: Iterator[int]) -> None:
    """Make reserves of the active ranks from this one on."""
    for leaf in _by_active_rank(root)[active_rank:]:
        leaf.deactivate()
        leaf.deactivated = next(numbers)
        leaf.change = "deactivated"


def _by_active_rank(group: Group) -> list[Leaf]:
    active = [leaf for leaf in group.all_leaves() if leaf.active_rank is not None]
    return sorted(active, key=lambda leaf: leaf.active_rank or 0)


def _reserve_for(group: Group, reserves: dict[Group, Iterator[Leaf]]) -> Leaf | None:
    """Return the reserve that became one last, of the nearest group that has any."""
    for above in group.upwards():
        if not above.has(LayerFlag.RESERVE):
            return None
        if not above.has_room:
            continue
        # What was passed over has no room, and will not get any while places are being filled.
        for leaf in reserves.setdefault(above, _latest_first(above)):
            if leaf.active_rank is None and all(each.has_room for each in leaf.group.upwards()):
                return leaf
    return None


def _latest_first(group: Group) -> Iterator[Leaf]:
    inactive = [leaf for leaf in group.all_leaves() if leaf.active_rank is None]
    yield from sorted(inactive, key=lambda leaf: -leaf.deactivated)


def _backfill(empty: list[tuple[int, Group]]) -> None:
    """Have the last active ranks of each domain take its empty places, the lowest place first."""
    places: dict[Group, list[int]] = {}
    for active_rank, group in empty:
        domain = _domain(group)
        if domain is not None:
            places.setdefault(domain, []).append(active_rank)
    for domain, ranks in places.items():
        movable = _by_active_rank(domain)
        for active_rank in ranks:
            if not movable or (movable[-1].active_rank or 0) < active_rank:
                break
            leaf = movable.pop()
            leaf.active_rank = active_rank
            leaf.change = "backfilled"


def _domain(group: Group) -> Group | None:
    """Return the largest group around this one in which places are filled from the end."""
    domain = None
    for above in group.upwards():
        if not above.has(LayerFlag.BACKFILL):
            break
        domain = above
    return domain
