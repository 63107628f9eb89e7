from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.attribution.flight.dumps import START_NS, Rank, gloo_job, job
from undaunted.attribution.findings import CAUSES, SURE
from undaunted.attribution.flight.culprits import Analysis, analyse
from undaunted.attribution.flight.recording import (
    Call,
    Group,
    Pair,
    Pause,
    Recording,
    Transfer,
    Wait,
    reduce,
)

PENDING = "scheduled"


def judged(ranks: list[Rank], world_size: int = 0) -> Analysis:
    return analyse([reduce(one.dump(), one.rank) for one in ranks], world_size)


def blamed(found: Analysis) -> list[tuple[int, str]]:
    return [(one.rank, one.cause) for one in found.culprits]


def test_nobody_is_blamed_while_nobody_waits() -> None:
    found = judged(job(4))

    assert (found.culprits, found.missing, found.waiting, found.groups) == ([], [], [], [])


def test_nothing_at_all() -> None:
    assert analyse([]).culprits == []
    assert blamed(analyse([Recording(rank=0)])) == []


def test_a_rank_that_does_not_come() -> None:
    ranks = job(4)
    for one in (0, 1, 3):
        ranks[one].call("0", state=PENDING)
    found = judged(ranks)

    assert blamed(found) == [(2, "host_lag")]
    assert found.waiting == [0, 1, 3]
    (group,) = found.groups
    assert (group.number, group.absent, group.operation) == (4, [2], "all_reduce")
    assert found.culprits[0].group == "0"


def test_a_rank_without_a_dump() -> None:
    ranks = job(4)
    for one in ranks:
        one.call("0", state=PENDING)
    found = judged(ranks[:3])

    assert blamed(found) == [(3, "no_dump")]
    assert found.missing == [3]


def test_a_missing_dump_is_not_blamed_while_nobody_waits() -> None:
    found = judged(job(4)[:3], 8)

    assert (found.culprits, found.missing) == ([], [3, 4, 5, 6, 7])


@pytest.mark.parametrize("backend", ["nccl", "nccl2", "nccl-lazy"])
def test_nobody_is_blamed_for_a_dump_that_was_made_earlier(backend: str) -> None:
    """A call of NCCL that has ended was called by all."""
    ranks = job(4)
    for one in ranks[:2]:
        one.call("0")
    for entry in [entry for one in ranks for entry in one.entries]:
        entry["profiling_name"] = entry["profiling_name"].replace("nccl", backend)

    assert judged(ranks).culprits == []


def test_nobody_waits_for_ranks_outside_of_all_groups() -> None:
    ranks = job(4)
    for one in ranks:
        one.call("0", state=PENDING)
    found = judged(ranks[:3], 8)

    assert blamed(found) == [(3, "no_dump")]
    assert found.missing == [3, 4, 5, 6, 7]


def test_a_thousand_groups_of_all_ranks_cost_little_memory() -> None:
    """41 MiB; lists of the members of each group would take 283. More ranks only take time."""
    every = ((0, 1 << 14, 1),)
    groups = tuple(Group(str(name), members=every, enqueued=1, oldest=1) for name in range(1024))
    tracemalloc.start()
    try:
        found = analyse([Recording(rank=rank, groups=groups) for rank in range(2)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(found.culprits) == 256
    assert peak < 96 << 20


def test_groups_of_which_some_ranks_do_not_know_the_members() -> None:
    ranks = job(4, {"1": [0, 1], "2": [2, 3]})
    for one in ranks:
        one.call("1" if one.rank < 2 else "2")
    ranks[2].call("2", state=PENDING)
    recordings = [reduce(one.dump(), one.rank) for one in ranks]
    unknown = tuple(replace(one, members=()) for one in recordings[3].groups)
    recordings[3] = replace(recordings[3], groups=unknown)
    found = analyse(recordings)

    assert blamed(found) == [(3, "host_lag")]
    assert [(one.name, one.size, one.absent) for one in found.groups] == [("2", 2, [3])]


def test_ranks_at_the_end_that_only_the_caller_knows() -> None:
    ranks = [Rank(rank, {"0": []}) for rank in range(2)]

    assert judged(ranks, 4).missing == [2, 3]


def test_a_device_that_does_not_finish() -> None:
    ranks = job(4)
    for one in ranks:
        one.call("0", state=PENDING if one.rank == 1 else "completed")
        one.call("0", state=PENDING)
    found = judged(ranks)

    assert blamed(found) == [(1, "device_lag")]
    assert found.waiting == [0, 2, 3]


def test_a_victim_in_one_group_keeps_others_waiting_in_another() -> None:
    """Ranks 0 and 1 wait for 2 and 3, of which 3 is to blame."""
    ranks = job(4, {"1": [0, 1], "2": [2, 3]})
    ranks[2].call("2", state=PENDING)
    for one in (0, 1):
        ranks[one].call("1")
        ranks[one].call("0", state=PENDING)
    found = judged(ranks)

    assert blamed(found) == [(3, "host_lag")]
    assert found.waiting == [0, 1, 2]


def test_a_device_lag_behind_another_wait_is_none() -> None:
    """What rank 1 has not finished in one group stands behind what it waits in for rank 3."""
    ranks = job(4, {"1": [1, 3]})
    ranks[1].call("1", state=PENDING)
    for one in (0, 1, 2):
        ranks[one].call("0", state=PENDING if one == 1 else "completed")

    assert blamed(judged(ranks)) == [(3, "host_lag")]


@pytest.mark.parametrize(
    "other", [{"name": "broadcast"}, {"size": (8,)}, {"dtype": "BFloat16"}], ids=str
)
def test_a_call_that_does_not_match(other) -> None:
    ranks = job(4)
    for one in ranks:
        one.call("0", state=PENDING, **(other if one.rank == 3 else {}))
    found = judged(ranks)

    assert blamed(found) == [(3, "mismatch")]
    assert "all_reduce Float [4]" in found.culprits[0].evidence


def test_inputs_of_an_uneven_call_may_differ() -> None:
    ranks = job(4)
    for one in ranks[:3]:
        one.call("0", "all_to_all", state=PENDING, size=(one.rank + 1,))

    assert blamed(judged(ranks)) == [(3, "host_lag")]


def test_the_same_elements_in_another_shape_match() -> None:
    ranks = job(3)
    for one in ranks[:2]:
        one.call("0", state=PENDING, size=(2, 2) if one.rank else (4,))

    assert blamed(judged(ranks)) == [(2, "host_lag")]


def test_of_two_the_one_that_differs_from_other_groups() -> None:
    ranks = job(4, {"1": [0, 1], "2": [2, 3]})
    for one in ranks:
        group = "1" if one.rank < 2 else "2"
        one.call(group, state=PENDING, size=(8,) if one.rank == 0 else (4,))

    assert blamed(judged(ranks)) == [(0, "mismatch")]


def test_of_two_both_if_nothing_tells_them_apart() -> None:
    ranks = job(2)
    for one in ranks:
        one.call("0", state=PENDING, size=(8,) if one.rank == 0 else (4,))
    found = judged(ranks)

    assert blamed(found) == [(0, "mismatch"), (1, "mismatch")]
    assert {one.confidence for one in found.culprits} == {0.5}


def test_a_circle_is_blamed_on_whom_it_is_new_to() -> None:
    ranks = job(4, {"1": [2, 3]})
    for _ in range(3):
        for one in ranks:
            if one.rank >= 2:
                one.call("1")
            one.call("0")
    ranks[3].call("0", state=PENDING)  # before its other group
    ranks[2].call("1", state=PENDING)
    for one in ranks[:2]:
        one.call("0", state=PENDING)

    assert blamed(judged(ranks)) == [(3, "mismatch")]


def test_a_chain_of_receives_leads_to_its_end() -> None:
    ranks = job(4, {"1": [0, 1, 2, 3]})
    ranks[0].recv("1", 1, state=PENDING)
    ranks[1].recv("1", 2, state=PENDING)
    ranks[3].recv("1", 2, state=PENDING)
    found = judged(ranks)

    assert blamed(found) == [(2, "host_lag")]
    assert found.waiting == [0, 1, 3]


def test_a_receive_of_what_was_sent_is_a_lag_of_the_device() -> None:
    ranks = job(2)
    ranks[0].send("0", 1)
    ranks[1].recv("0", 0, state=PENDING)
    ranks[0].recv("0", 1, state=PENDING)

    assert blamed(judged(ranks)) == [(1, "device_lag")]


def test_operations_of_a_batch_end_with_it() -> None:
    rank = job(2)[0].send("0", 1, state=PENDING)
    number = rank.entries[-1]["p2p_seq_id"]
    rank._add("0", "nccl:coalesced", "completed", is_p2p=True)
    rank.entries[-1]["p2p_seq_id"] = number

    assert reduce(rank.dump()).transfers == ()


def test_all_inside_and_nobody_behind_is_nobody_s_fault() -> None:
    ranks = job(4)
    for one in ranks:
        one.call("0", state=PENDING)
    found = judged(ranks)

    assert found.culprits == []
    assert found.waiting == [0, 1, 2, 3]


def test_a_device_that_has_not_begun_what_the_others_have() -> None:
    ranks = job(3)
    for one in ranks:
        one.call("0", state="started" if one.rank != 1 else PENDING)

    assert blamed(judged(ranks)) == [(1, "device_lag")]


def test_the_main_thread_waits_for_a_transfer_that_is_not_recorded() -> None:
    ranks = job(3)
    ranks[0].call("0", state=PENDING)
    recordings = [reduce(one.dump(), one.rank) for one in ranks]
    waits = Wait("recv", 2)
    recordings[1] = Recording(1, recordings[1].groups, recordings[1].calls, waits=waits)

    assert blamed(analyse(recordings)) == [(2, "host_lag")]


def test_findings_are_of_known_causes() -> None:
    ranks = job(4)
    for one in (0, 1):
        ranks[one].call("0", state=PENDING)
    findings = judged(ranks[:3]).findings()

    assert [one.ranks for one in findings] == [(2,)]
    assert all(one.cause in CAUSES and one.quote and one.source for one in findings)


def test_ranks_of_which_the_same_is_said_are_one_finding() -> None:
    ranks = gloo_job(4)
    for one in ranks[2:]:
        one.call_at(0.4, left=False)
    (finding,) = judged(ranks[2:]).findings()

    assert finding.cause == "no_dump"
    assert finding.ranks == (0, 1)


def test_thousands_of_ranks_in_little_time() -> None:
    """A circle-free graph of 2,000 that wait for 2,000: edges go through operations."""
    whole = tuple(range(4000))
    recordings = []
    template = Rank(0, {"0": list(whole)})
    done, waits = reduce(template.dump(), 0), reduce(template.call("0", state=PENDING).dump(), 0)
    for rank in whole:
        kind = waits if rank % 2 else done
        recordings.append(Recording(rank, kind.groups, kind.calls))

    assert len(analyse(recordings).culprits) == 256


def test_a_dump_that_is_missing_beside_one_that_others_wait_for() -> None:
    ranks = job(4, {"1": [2, 3]})
    for one in ranks[:2]:
        one.call("0", state=PENDING)
    found = judged(ranks[:2])

    assert blamed(found) == [(2, "no_dump"), (3, "no_dump")]


def test_messages_are_matched_by_their_numbers() -> None:
    """Rank 1 has what rank 0 is still sending, and waits for the next."""
    ranks = job(2)
    ranks[0].send("0", 1, state="started").send("0", 1, state=PENDING)
    ranks[1].recv("0", 0).recv("0", 0, state="started")

    assert blamed(judged(ranks)) == [(0, "device_lag")]


def test_parts_of_a_batch_that_has_ended_are_not_pending() -> None:
    """As NVRx dumps: the batch itself is left out."""
    rank = Rank(0, {"1": [0, 1]}).send("1", 1).send("1", 1, state=PENDING)
    rank.ended["1"], rank.numbers["1"] = 2, 2
    dump = rank.dump()
    dump["entries"][0].update(state=PENDING, retired=False)
    for entry in dump["entries"]:
        entry["collective_seq_id"] = 0

    assert reduce(dump).transfers == ()


def test_a_broadcast_may_end_on_some_while_one_is_held_up_elsewhere() -> None:
    ranks = job(4, {"1": [2, 3]})
    ranks[2].call("1", state=PENDING)  # for rank 3, which does not come
    for one in ranks[:3]:
        one.call("0", "broadcast", state="completed" if one.rank == 0 else PENDING)
    ranks[3].call("0", "broadcast")

    assert blamed(judged(ranks)) == [(3, "host_lag")]


def test_the_few_in_an_operation_that_nobody_is_missing_in() -> None:
    ranks = job(4, {"1": [0, 1]})
    for one in ranks[:2]:
        one.call("1", state="started")
    for one in ranks[2:]:
        one.call("0", state=PENDING)
    found = judged(ranks)

    assert blamed(found) == [(0, "device_lag"), (1, "device_lag")]
    assert {one.confidence for one in found.culprits} == {0.5}


# --- gloo: ranks that have left a collective, with an error or without ----------------------------


def test_a_rank_that_comes_after_the_timeout_of_the_others() -> None:
    """All have called and left it, the victims with an error, as the calls of the late one do."""
    ranks = gloo_job(4)
    for one in ranks:
        one.call_at(5.4 if one.rank == 2 else 0.4)
    found = judged(ranks)

    assert blamed(found) == [(2, "host_lag")]
    assert found.culprits[0].confidence >= SURE


def test_a_late_rank_where_entries_of_its_victims_were_not_retired_yet() -> None:
    ranks = gloo_job(4)
    for one in ranks:
        one.call_at(5.4 if one.rank == 2 else 0.4, left=one.rank == 2)
    found = judged(ranks)

    assert blamed(found) == [(2, "host_lag")]
    assert found.waiting == [0, 1, 3]


@pytest.mark.parametrize("left", [True, False], ids=["killed", "stopped"])
def test_a_rank_without_a_dump_in_a_group_of_which_members_are_not_known(left: bool) -> None:
    """Rank 1 waits for 0, or has failed with it; 2 and 3 wait for 1."""
    ranks = gloo_job(4, {"1": [0, 1], "2": [2, 3]})
    ranks[1].call_at(0.4, "1", left=left)
    for one in ranks[2:]:
        one.call_at(0.4, "2").call_at(0.5, left=False)

    assert blamed(judged(ranks[1:])) == [(0, "no_dump")]


@pytest.mark.parametrize("there", [[2], [1, 2, 3], [0, 3]])
def test_a_rank_without_a_dump_is_not_blamed_where_every_call_has_ended(there: list[int]) -> None:
    """That is what a job that is well looks like, or a rank that hangs outside of collectives."""
    found = judged([one for one in gloo_job(4) if one.rank in there], 4)

    assert found.culprits == []
    assert found.missing == [rank for rank in range(4) if rank not in there]


def test_a_rank_without_a_dump_is_not_blamed_for_a_wait_of_others() -> None:
    """Rank 2 waits for 3; what 1 has left together with 0 keeps neither."""
    ranks = gloo_job(4, {"1": [0, 1], "2": [2, 3]})
    ranks[1].call_at(0.4, "1")
    for one in ranks[2:]:
        one.call_at(0.4, "2")
    ranks[2].call_at(0.5, "2", left=False)

    assert blamed(judged(ranks[1:])) == [(3, "host_lag")]


def test_a_rank_without_a_dump_behind_a_chain_of_ranks_that_have_failed() -> None:
    """Rank 3 waits for 2, which has failed with 1, which has failed with 0."""
    ranks = gloo_job(4, {"1": [0, 1], "2": [1, 2], "3": [2, 3]})
    ranks[1].call_at(0.4, "1")
    ranks[2].call_at(0.4, "2")
    ranks[3].call_at(0.4, "3", left=False)

    assert blamed(judged(ranks[1:])) == [(0, "no_dump")]


def test_a_rank_that_is_later_than_others_but_not_too_late() -> None:
    ranks = gloo_job(4)
    for one in ranks:
        one.call_at(2.3 if one.rank == 2 else 0.4)

    assert judged(ranks).culprits == []


def test_a_clock_that_is_ahead_makes_nobody_late() -> None:
    ranks = gloo_job(4)
    for one in ranks:
        one.call_at(0.4)
    for entry in ranks[2].entries:
        entry["time_created_ns"] += 3_600_000_000_000

    assert judged(ranks).culprits == []


def test_a_rank_that_is_late_as_it_has_waited_for_another() -> None:
    """Ranks 0 and 1 fail, and 2 and 3 come late; 3 has waited for 2 in their own group."""
    ranks = gloo_job(4, {"1": [2, 3]})
    for one in ranks[:2]:
        one.call_at(0.4)
    ranks[2].call_at(5.4, "1").call_at(5.5)
    ranks[3].call_at(0.4, "1").call_at(5.5)

    assert blamed(judged(ranks)) == [(2, "host_lag")]


def test_a_late_rank_that_has_waited_for_one_outside_of_the_group_that_failed() -> None:
    ranks = gloo_job(4, {"1": [0, 1, 3], "2": [2, 3]})
    ranks[0].call_at(0.4, "1")
    ranks[1].call_at(0.4, "1")
    ranks[2].call_at(5.4, "2")
    ranks[3].call_at(0.4, "2").call_at(5.5, "1")

    assert blamed(judged(ranks)) == [(2, "host_lag")]


def test_two_late_ranks_are_both_named_with_little_confidence() -> None:
    ranks = gloo_job(4)
    for one in ranks:
        one.call_at(5.4 if one.rank in {1, 2} else 0.4)
    found = judged(ranks)

    assert blamed(found) == [(1, "host_lag"), (2, "host_lag")]
    assert all(one.confidence < SURE for one in found.culprits)


def test_a_call_that_does_not_match_and_that_all_have_left() -> None:
    ranks = gloo_job(4)
    for one in ranks:
        one.call_at(0.4, name="barrier" if one.rank == 2 else "all_reduce")

    assert blamed(judged(ranks)) == [(2, "mismatch")]


def test_nobody_is_blamed_where_some_have_left_and_nobody_was_late() -> None:
    """Their entries are not retired yet, or they are still in it: that is not known."""
    for still in ([0], [0, 1, 3]):
        ranks = gloo_job(4)
        for one in ranks:
            one.call_at(0.4, left=one.rank not in still)

        assert judged(ranks).culprits == []


@pytest.mark.parametrize("behind", [1, 3])
def test_dumps_of_a_healthy_job_a_moment_apart(behind: int) -> None:
    ranks = gloo_job(4)
    for one in ranks:
        for step in range(4, 4 + behind if one.rank != 2 else 4):
            one.call_at(step / 10)
    found = judged(ranks)

    assert all(one.confidence < SURE for one in found.culprits)
    assert found.waiting == []


def test_a_rank_inside_of_a_call_that_an_older_dump_does_not_have() -> None:
    """They have left a call that rank 2 never came to: its dump is older, or they failed."""
    ranks = gloo_job(4)
    for one in ranks:
        if one.rank != 2:
            one.call_at(0.4).call_at(0.5, left=False)
    found = judged(ranks)

    assert blamed(found) == [(2, "host_lag")]
    assert found.culprits[0].confidence < SURE


@pytest.mark.parametrize(
    ("dumped", "sure"),
    [
        ({2: 0.35}, False),  # the others called it after that, and may have ended it
        ({2: 2.5}, True),  # the others had failed by then
        ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, True),  # all at once: they have left it without rank 2
        ({0: 1.5, 1: 1.5, 2: 0.5, 3: 1.5}, False),
    ],
)
def test_our_dumps_know_when_they_were_made(dumped: dict[int, float], sure: bool) -> None:
    ranks = gloo_job(4)
    for one in ranks:
        if one.rank != 2:
            one.call_at(0.4)
    dumps = {one.rank: one.dump() for one in ranks}
    for rank, at in dumped.items():
        dumps[rank]["dumped_ns"] = START_NS + round(at * 1e9)
    found = analyse([reduce(dump, rank) for rank, dump in dumps.items()])

    assert blamed(found) == [(2, "host_lag")]
    assert (found.culprits[0].confidence >= SURE) == sure


def test_a_dump_that_is_older_than_the_call_in_which_others_wait() -> None:
    ranks = gloo_job(4)
    for one in ranks:
        if one.rank != 2:
            one.call_at(0.4, left=False)
    dumps = {one.rank: one.dump() for one in ranks}
    early = {**dumps[2], "dumped_ns": START_NS + 350_000_000}
    found = analyse([reduce(dump, rank) for rank, dump in {**dumps, 2: early}.items()])

    assert blamed(found) == [(2, "host_lag")]
    assert found.culprits[0].confidence < SURE


NUMBERS = st.integers(-3, 6) | st.integers(-(1 << 63), 1 << 63)
NAMES = st.sampled_from(["0", "1", ""])
CALLS = st.builds(Call, st.sampled_from(["all_reduce", "_broadcast", ""]), NAMES, NAMES, NUMBERS)
MEMBERS = st.lists(st.tuples(NUMBERS, st.integers(-1, 8), NUMBERS), max_size=2).map(tuple)
GROUPS = st.builds(
    Group,
    *(NAMES, NAMES, MEMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.floats(), NUMBERS),
    st.lists(st.integers(-2, 3), max_size=6).map(tuple),
    st.sampled_from(["nccl", "gloo", ""]),
    st.floats(),
)
CALLED = st.tuples(NAMES, NUMBERS)
RECORDINGS = st.builds(
    Recording,
    st.integers(-1, 4) | NUMBERS,
    st.lists(GROUPS, max_size=3).map(tuple),
    st.lists(CALLS, max_size=3).map(tuple),
    st.lists(
        st.builds(Transfer, NAMES, st.booleans(), NUMBERS, NUMBERS, st.floats(), st.booleans()),
        max_size=3,
    ).map(tuple),
    st.lists(st.builds(Pair, NAMES, st.booleans(), NUMBERS, NUMBERS, NUMBERS), max_size=2).map(
        tuple
    ),
    NUMBERS,
    st.none() | st.builds(Wait, NAMES, NUMBERS),
    st.integers(0, 9),
    dumped=st.floats(),
    pause=st.none() | st.builds(Pause, st.floats(), CALLED, CALLED),
)


@given(st.lists(RECORDINGS, max_size=5))
def test_any_recordings(recordings: list[Recording]) -> None:
    """They come from other nodes: whatever they say, there is an answer."""
    found = analyse(recordings)

    assert not {one.rank for one in found.culprits} & set(found.waiting)
    assert all(one.cause in CAUSES for one in found.findings())


def test_a_circle_with_a_rank_that_waits_for_itself() -> None:
    send, waits = Transfer("1", True, 1, 5), Wait("recv", 2)
    itself = Recording(1, (Group("1"),), transfers=(send,), strange=5, waits=waits)
    other = Recording(2, (Group("1", members=((0, 3, 1),), enqueued=3, oldest=3, order=18),))

    assert {one.cause for one in analyse([itself, other]).culprits} == {"mismatch"}


def test_a_dump_of_a_rank_that_cannot_be_costs_nothing() -> None:
    assert analyse([Recording(1 << 60), Recording(0, world_size=1 << 60)]).culprits == []
