"""Who takes part, and who is which rank."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.coordinator.policy.messages import NodeInfo
from undaunted.coordinator.policy.placement import Placement, Rules, choose, name_key


def nodes(names: str, **about: object) -> list[NodeInfo]:
    return [NodeInfo(name, 2, **about) for name in names.split()]  # type: ignore[arg-type]


def infra(**ranks: int | None) -> list[NodeInfo]:
    return [NodeInfo(name, 1, infra_rank=rank) for name, rank in ranks.items()]


def order(chosen: Placement | str) -> str:
    assert isinstance(chosen, Placement), chosen
    return " ".join(place.node for place in chosen.places)


def seats(names: str) -> dict[str, int]:
    return {name: rank for rank, name in enumerate(names.split())}


def test_without_ranks_of_the_scheduler_names_decide() -> None:
    chosen = choose(nodes("n10 n2 n1 n3"), {}, Rules(3, 3))
    assert order(chosen) == "n1 n2 n3"
    assert isinstance(chosen, Placement)
    assert chosen.spares == ("n10",)
    assert [(p.group_rank, p.first_rank, p.slots) for p in chosen.places] == [
        (0, 0, 2),
        (1, 2, 2),
        (2, 4, 2),
    ]


def test_survivors_keep_their_rank_and_newcomers_fill_the_gaps() -> None:
    assert order(choose(nodes("a x c d"), seats("a b c d"), Rules(4, 4))) == "a x c d"


def test_survivors_are_preferred_to_newcomers() -> None:
    assert order(choose(nodes("a b c d"), seats("d c"), Rules(2, 2))) == "d c"


def test_when_there_are_fewer_the_last_ranks_fill_the_gaps() -> None:
    assert order(choose(nodes("a c d"), seats("a b c d"), Rules(2, 4))) == "a d c"


def test_ranks_of_the_scheduler_order_the_nodes_every_time() -> None:
    rules = Rules(3, 3)
    assert order(choose(infra(c=0, a=2, b=1), {}, rules)) == "c b a"
    # The survivors c and a stay in, although x comes before a.
    assert order(choose(infra(c=0, a=9, x=5, y=6), seats("c b a"), rules)) == "c x a"


@pytest.mark.parametrize("rank", [None, -1])
def test_one_node_without_a_rank_of_the_scheduler_and_nobody_has_one(rank: int | None) -> None:
    assert order(choose(infra(c=0, b=1, a=rank), {}, Rules(3, 3))) == "a b c"
    assert order(choose(infra(c=0, b=1, a=rank), seats("b a"), Rules(3, 3))) == "b a c"


class TestDuplicateRanks:
    def test_in_the_first_round_name_both_nodes(self) -> None:
        reason = choose(infra(a=0, b=3, c=3), {}, Rules(2, 2))
        assert reason == "nodes b and c have the same infrastructure rank 3"

    def test_a_newcomer_does_not_disturb_a_survivor(self) -> None:
        chosen = choose(infra(a=3, b=0, c=3), seats("b c"), Rules(2, 2))
        assert order(chosen) == "b c"
        assert isinstance(chosen, Placement)
        assert chosen.spares == ("a",)

    def test_are_the_reason_where_nodes_lack(self) -> None:
        reason = choose(infra(b=0, c=0), seats("b x"), Rules(2, 2))
        assert reason == "nodes b and c have the same infrastructure rank 0"


class TestSegments:
    RULES = Rules(4, 4, segment=2)

    def test_whole_segments_in_the_order_of_the_smallest_rank(self) -> None:
        there = [
            NodeInfo(name, 1, rank, domain)
            for name, rank, domain in [
                ("a", 9, "x"),
                ("b", 1, "x"),
                ("c", 4, "x"),
                ("d", 2, "y"),
                ("e", 3, "y"),
                ("f", 0, "z"),
            ]
        ]
        # z has no whole segment, x one and a leftover: its preferred nodes are those in front.
        chosen = choose(there, {}, self.RULES)
        assert order(chosen) == "b c d e"
        assert isinstance(chosen, Placement)
        assert chosen.spares == ("a", "f")

    def test_a_node_without_domain_is_one_of_its_own(self) -> None:
        reason = choose(nodes("a b c d"), {}, self.RULES)
        assert reason == "0 whole segments of 2 nodes in one NVLink domain are here, for 4 nodes"
        assert order(choose(nodes("a b c d"), {}, Rules(4, 4, segment=1))) == "a b c d"

    def test_segments_of_survivors_are_preferred(self) -> None:
        there = [*nodes("a b", domain="x"), *nodes("c d", domain="y"), *nodes("e f", domain="z")]
        assert order(choose(there, seats("e f c d"), self.RULES)) == "e f c d"

    def test_a_lost_node_is_replaced_within_its_domain(self) -> None:
        there = [*nodes("a c d s", domain="x"), *nodes("e f", domain="y")]
        chosen = choose(there, seats("a b c d e f"), Rules(6, 6, segment=2))
        assert order(chosen) == "a s c d e f"

    def test_as_many_as_allowed(self) -> None:
        there = [*nodes("a b c", domain="x"), *nodes("d e", domain="y")]
        assert order(choose(there, {}, Rules(2, 5, segment=2))) == "a b d e"


class TestReplacementGroups:
    RULES = Rules(2, 2, group_size=2)

    def test_only_complete_groups(self) -> None:
        there = [*nodes("a", group="0"), *nodes("b c", group="1"), *nodes("d")]
        assert order(choose(there, {}, self.RULES)) == "b c"

    def test_a_group_that_lost_a_node_makes_room_for_a_complete_one(self) -> None:
        there = [*nodes("a", group="0"), *nodes("c d", group="1")]
        assert order(choose(there, seats("a b"), self.RULES)) == "c d"

    def test_groups_of_survivors_first(self) -> None:
        there = [*nodes("a b", group="0"), *nodes("c d", group="1")]
        assert order(choose(there, seats("c d"), self.RULES)) == "c d"

    def test_are_named_where_nodes_lack(self) -> None:
        reason = choose(nodes("a b", group="0"), {}, Rules(3, 3, group_size=3))
        assert reason == "0 of 3 nodes of complete replacement groups of 3 are here"


def test_names_sort_as_people_count() -> None:
    names = ["n10", "n9", "m", "n09", "n", "", "n1a10", "n1a9", "9" * 5000]
    assert sorted(names, key=name_key)[-5:] == ["n1a9", "n1a10", "n09", "n9", "n10"]


NODES = st.lists(
    st.builds(
        NodeInfo,
        st.text(max_size=3),
        st.integers(-1, 3),
        st.none() | st.integers(-1, 6),
        st.sampled_from(["", "x", "y"]),
        st.sampled_from(["", "1", "2"]),
    ),
    max_size=8,
    unique_by=lambda node: node.name,
)
RULES = st.builds(Rules, st.integers(0, 5), st.integers(0, 8), st.integers(0, 3), st.integers(0, 3))


@given(NODES, NODES, RULES, st.randoms(use_true_random=False))
def test_whatever_is_there(
    before: list[NodeInfo], there: list[NodeInfo], rules: Rules, random: object
) -> None:
    first = choose(before, {}, rules)
    table = first.places if isinstance(first, Placement) else ()
    seats = {place.node: place.group_rank for place in table}
    chosen = choose(there, seats, rules)
    random.shuffle(there)  # type: ignore[attr-defined]
    assert choose(there, seats, rules) == chosen, "the order of arrival does not matter"
    if isinstance(chosen, str):
        assert chosen
        return
    check(there, seats, rules, chosen)


def check(there: list[NodeInfo], seats: dict[str, int], rules: Rules, chosen: Placement) -> None:
    known = {node.name: node for node in there}
    names = [place.node for place in chosen.places]
    assert len(set(names)) == len(names)
    assert max(1, rules.fewest) <= len(names) <= rules.most
    assert set(names).isdisjoint(chosen.spares)
    ranks = [r for p in chosen.places for r in range(p.first_rank, p.first_rank + p.slots)]
    assert ranks == list(range(len(ranks))), "each rank in exactly one place"
    assert [place.group_rank for place in chosen.places] == list(range(len(names)))
    assert all(place.slots == known[place.node].slots > 0 for place in chosen.places)
    if rules.segment:
        for at in range(0, len(names), rules.segment):
            segment = names[at : at + rules.segment]
            domains = {known[name].domain or name for name in segment}
            assert len(segment) == rules.segment
            assert len(domains) == 1, "a segment lies within a domain"
    if not rules.segment and not rules.group_size:
        survivors = [node.name for node in there if node.name in seats and node.slots > 0]
        unique = {known[name].infra_rank for name in survivors} if survivors else set()
        if len(survivors) <= len(names) and len(unique) == len(survivors):
            assert set(survivors) <= set(names), "survivors stay"
        ranks_known = all((n.infra_rank or 0) >= 0 for n in there if n.slots > 0)
        ranks_known = ranks_known and all(n.infra_rank is not None for n in there if n.slots > 0)
        if not ranks_known:
            for rank, name in enumerate(names):
                assert seats.get(name, rank) == rank or seats[name] >= len(names)


@given(st.integers(1, 40), st.sets(st.integers(0, 39), max_size=10))
def test_survivors_are_not_moved_where_there_are_spares(count: int, lost: set[int]) -> None:
    before = [NodeInfo(f"n{i}", 4) for i in range(count)]
    first = choose(before, {}, Rules(count, count))
    assert isinstance(first, Placement)
    seats = {place.node: place.group_rank for place in first.places}
    there = [node for i, node in enumerate(before) if i not in lost]
    there += [NodeInfo(f"a{i}", 4) for i in range(len(lost) + 2)]
    second = choose(there, seats, Rules(count, count))
    assert isinstance(second, Placement)
    for old, new in zip(first.places, second.places, strict=True):
        assert new.node == old.node or int(old.node[1:]) in lost
