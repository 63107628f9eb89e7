from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attribution.flight.dumps import Rank, job
from undaunted.attribution.flight.recording import (
    UNKNOWN,
    NotADumpError,
    Recording,
    decode,
    encode,
    ranks_of,
    reduce,
    runs,
)


def group_of(recording: Recording, name: str):
    return next(one for one in recording.groups if one.name == name)


def test_where_a_rank_is() -> None:
    rank = job(4)[1].call("0", state="scheduled").call("0", state="scheduled")
    recording = reduce(rank.dump(), 1)
    group = group_of(recording, "0")

    assert (recording.rank, recording.entries, recording.version) == (1, 5, "2.9")
    assert (group.enqueued, group.oldest, group.order) == (5, 4, 3)
    assert ranks_of(group.members) == (0, 1, 2, 3)
    assert str(recording.calls[group.call_at(4)]) == "all_reduce Float [4]"
    assert group.call_at(99) == -1
    assert group.ended(3)
    assert not group.ended(4)
    assert group.came_to(4)
    assert not group.came_to(5)


def made_anew(before: Rank) -> Rank:
    """The same rank after a restart inside its process: names as before, numbers go on."""
    after = Rank(before.rank, before.groups)
    after.ids = {name: number + len(before.ids) for name, number in before.ids.items()}
    after.entries = list(before.entries)
    return after


def test_groups_of_before_a_restart_inside_the_process_are_left_out() -> None:
    before = Rank(0, {"0": [0, 1], "1": [0, 1]}).call("1")
    for _ in range(4):
        before.call("0", state="scheduled", size=(8,))
    recording = reduce(made_anew(before).call("0").call("0", state="scheduled").dump())
    group = group_of(recording, "0")

    assert (group.enqueued, group.oldest) == (2, 2)
    assert str(recording.calls[group.call_at(2)]) == "all_reduce Float [4]"
    assert group_of(recording, "1").enqueued == -1


def test_a_group_that_was_made_anew_shows_that_all_others_are_over() -> None:
    before = Rank(0, {"0": [0, 1], "1": [0, 1]}).call("0").call("1").call("0")
    recording = reduce(made_anew(before).call("1").dump())

    assert [(one.name, one.enqueued) for one in recording.groups] == [("1", 1), ("0", -1)]


@pytest.mark.parametrize("number", [None, "x", -7, 1 << 70, [1]])
def test_numbers_that_are_none_leave_nothing_out(number) -> None:
    dump = Rank(0, {"1": [0, 1]}).call("1").call("1").dump()
    dump["entries"][0]["pg_id"], dump["entries"][1]["pg_id"] = number, "none"

    assert group_of(reduce(dump), "1").enqueued == 2


def test_members_that_are_no_text() -> None:
    dump = job(2)[0].dump()
    dump["pg_config"]["0"]["ranks"] = "\ud800"

    assert group_of(reduce(dump), "0").members == ()


def test_it_is_small() -> None:
    ranks = list(range(4096))
    rank = Rank(0, {"0": ranks, "1": ranks[::8], "2": ranks[:8]})
    for _ in range(2000):
        rank.call("0").call("2")
    rank.call("1", state="scheduled")

    assert len(encode(reduce(rank.dump()))) < 500


def test_it_travels() -> None:
    recording = reduce(job(4)[0].recv("0", 3, state="scheduled").dump(), 0)

    assert decode(encode(recording)) == recording


@given(st.binary(max_size=60))
def test_what_is_no_recording_is_refused(data: bytes) -> None:
    with contextlib.suppress(NotADumpError):
        decode(data)


def test_retired_entries_of_gloo_have_ended() -> None:
    rank = job(2)[0]
    for entry in rank.entries:
        entry.update(state="scheduled", retired=True, profiling_name="gloo:all_reduce")

    assert group_of(reduce(rank.dump()), "0").oldest == -1


@pytest.mark.parametrize("completed", [2, 3])
def test_the_last_retired_entry_of_nccl_has_timed_out(completed: int) -> None:
    """As torch goes on after a timeout, it may count as the last one that has ended."""
    rank = job(2)[0]
    for entry in rank.entries:
        entry.update(state="scheduled", retired=True)
    rank.ended["0"] = completed

    assert group_of(reduce(rank.dump()), "0").oldest == completed


def test_numbers_and_truths_as_text() -> None:
    rank = job(2)[0].call("0", state="scheduled")
    plain = reduce(rank.dump(), 0)
    dump = json.loads(json.dumps(rank.dump()))
    for entry in dump["entries"]:
        for key in ("record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "time_created_ns"):
            entry[key] = str(entry[key])
        entry["is_p2p"], entry["retired"] = "false", str(entry["retired"]).lower()
    for status in dump["pg_status"].values():
        status.update({key: str(value) for key, value in status.items()})

    assert reduce(dump, 0) == plain


def test_an_older_dump_without_some_keys() -> None:
    rank = job(2)[0].call("0", state="scheduled").recv("0", 1, state="scheduled")
    for entry in rank.entries:
        del entry["retired"], entry["is_p2p"], entry["process_group"]
    recording = reduce(rank.dump(), 0)

    assert group_of(recording, "0").oldest == 4
    assert [(one.sends, one.peer) for one in recording.transfers] == [(False, 1)]


def test_a_group_without_entries_has_its_counters() -> None:
    rank = Rank(0, {"0": [0, 1], "10": [0, 1], "9": [0]})
    rank.ids = {"0": 0, "9": 1, "10": 2}
    rank.numbers["10"], rank.ended["10"] = 7, 6
    group = group_of(reduce(rank.dump()), "10")

    assert (group.enqueued, group.oldest) == (7, 7)


def test_numbers_of_groups_that_do_not_fit_are_not_guessed() -> None:
    rank = Rank(0, {"0": [0, 1], "3": [0, 1], "7": [0, 1]})
    rank.call("7")
    rank.entries[-1]["pg_id"] = 1  # two of three groups are numbered, and not in this order
    dump = rank.dump()
    dump["pg_status"] = {"1": {"last_enqueued_collective": 5, "last_completed_collective": 5}}

    assert group_of(reduce(dump), "3").enqueued == -1


def test_counters_of_a_group_with_transfers_are_not_used() -> None:
    rank = job(2)[0].send("0", 1)
    dump = rank.dump()
    dump["pg_status"]["0"]["last_enqueued_collective"] = 40

    assert group_of(reduce(dump), "0").enqueued == 3


def test_a_group_whose_collectives_were_overwritten_is_unknown() -> None:
    rank = job(2)[0].send("0", 1)
    del rank.entries[:3]

    assert group_of(reduce(rank.dump()), "0").enqueued == UNKNOWN


def test_only_operations_that_have_not_ended() -> None:
    """As NVRx dumps: what has ended shows in the counters alone."""
    rank = job(2)[0].call("0", state="scheduled")
    del rank.entries[:3]
    group = group_of(reduce(rank.dump()), "0")

    assert (group.enqueued, group.oldest) == (4, 4)


@pytest.mark.parametrize(
    "dump",
    [
        None,
        [],
        "",
        {},
        {"a": 1},
        3,
        {"entries": 5},
        {"entries": [1, "x"]},
        {"entries": [], "pg_status": []},
        {"pg_config": ""},
    ],
)
def test_what_is_no_dump_is_refused(dump) -> None:
    with pytest.raises(NotADumpError):
        reduce(dump)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.data())
def test_any_value_in_any_place(data: st.DataObject) -> None:
    dump = job(2)[0].call("0", state="scheduled").recv("0", 1, state="scheduled").dump()
    place = data.draw(st.sampled_from(sorted(dump)))
    if place == "entries" and data.draw(st.booleans()):
        entry = data.draw(st.integers(0, len(dump["entries"]) - 1))
        key = data.draw(st.sampled_from(sorted(dump["entries"][entry])))
        dump["entries"][entry][key] = data.draw(ANY)
    else:
        dump[place] = data.draw(ANY)
    try:
        recording = reduce(dump, 0)
    except NotADumpError:
        return

    assert decode(encode(recording)) == recording


@given(st.lists(st.integers(0, 500), unique=True, max_size=40))
def test_ranks_survive_as_runs(ranks: list[int]) -> None:
    assert ranks_of(runs(tuple(ranks))) == tuple(ranks)


def test_runs_are_few() -> None:
    assert runs(tuple(range(4096))) == ((0, 4096, 1),)
    assert runs(tuple(range(3, 64, 8))) == ((3, 8, 8),)
