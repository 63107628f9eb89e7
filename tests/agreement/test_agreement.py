"""Ranks are threads here; real processes are in test_connect.py."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.agreement.agreement import Agreement, Alone, Failure
from undaunted.base import name_server
from undaunted.checkpointing.errors import (
    AGREED,
    DamagedCheckpointError,
    NoCheckpointError,
    SaveError,
    StaleEpochError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Ranks = Callable[[int], list[Agreement]]

dist = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch

LONG_S = 60.0
SHORT_S = 0.5  # enough for a store to answer on a busy machine


@pytest.fixture(scope="module", autouse=True)
def first_store() -> None:
    """Torch keeps a pipe of the first store until the process ends."""
    dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


@pytest.fixture(params=[pytest.param("HashStore", marks=pytest.mark.slow), "TCPStore"])
def stores(request: pytest.FixtureRequest) -> Iterator[Callable[[int], list[Any]]]:
    """Makes connections to one new server."""
    made: list[Any] = []

    def make(count: int) -> list[Any]:
        if request.param == "HashStore":
            return [dist.HashStore()] * count
        timeout = timedelta(seconds=LONG_S)
        with name_server.asked_again_soon():
            for _ in range(count):
                port = made[0].port if made else 0
                made.append(
                    dist.TCPStore(
                        "127.0.0.1", port, None, not made, timeout, wait_for_workers=False
                    )
                )
        return made

    yield make
    for one in agreements:
        one.close()
    agreements.clear()
    made.clear()


agreements: list[Agreement] = []


def ranks_of(stores: list[Any]) -> list[Agreement]:
    made = [
        Agreement(one, rank, len(stores), "s0", kinds=AGREED) for rank, one in enumerate(stores)
    ]
    agreements.extend(made)
    return made


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each call returned or raised."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(outcome, calls))


def everyone(
    ranks: list[Agreement], contribution: Callable[[int], Any], decide: Any, timeout_s: float
) -> list[Any]:
    return together(
        [lambda one=one: one.round("r", contribution(one.rank), decide, timeout_s) for one in ranks]
    )


def fail(contributions: Sequence[bytes]) -> bytes:
    raise AssertionError("nothing was to be decided")


def test_rank_0_decides_for_all_from_what_all_contributed(stores: Any) -> None:
    ranks = ranks_of(stores(4))
    for number in range(3):
        answers = everyone(ranks, lambda rank, n=number: b"%d%d" % (n, rank), b"".join, LONG_S)
        assert answers == [b"".join(b"%d%d" % (number, rank) for rank in range(4))] * 4


def test_any_bytes_can_be_contributed_and_decided(stores: Any) -> None:
    everything = bytes(range(256)) * 1000
    assert (
        everyone(ranks_of(stores(2)), lambda _: everything, b"".join, LONG_S)
        == [everything * 2] * 2
    )


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_ends_the_round_at_once_for_all(stores: Any, failing: int) -> None:
    """Rank 1 never comes, and nobody waits for it."""
    ranks = ranks_of(stores(4))
    here = [ranks[0], ranks[2], ranks[3]]
    failure = Failure("/data/x: No space left on device", errno=28)
    began = time.monotonic()
    errors = everyone(here, lambda rank: failure if rank == failing else b"", fail, LONG_S)
    assert time.monotonic() - began < LONG_S / 2
    for error in errors:
        assert type(error) is SaveError
        assert error.ranks == (failing,)
        assert error.errno == 28
        assert str(error) == f"r: rank {failing}: /data/x: No space left on device"


class SlowReader:
    """A store that shows a verdict when rank 0's call is over, or half a second later."""

    def __init__(self, store: Any, over: threading.Event) -> None:
        self._store = store
        self._over = over
        self.was_over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self._store.wait(keys, timeout)
        self.was_over |= self._over.wait(SHORT_S)


def test_rank_0_which_serves_the_store_raises_when_others_have_read_why(stores: Any) -> None:
    over = threading.Event()
    first, second = stores(2)
    reader = SlowReader(second, over)
    rank_0, rank_1 = ranks_of([first, reader])

    def refuse(_: Sequence[bytes]) -> bytes:
        raise NoCheckpointError("none")

    def lead() -> bytes:
        try:
            return rank_0.round("load", b"", refuse, LONG_S)
        finally:
            over.set()

    errors = together([lead, lambda: rank_1.round("load", b"", refuse, LONG_S)])
    assert [type(error) for error in errors] == [NoCheckpointError] * 2
    assert not reader.was_over


def test_ranks_of_a_group_are_called_what_the_job_calls_them(stores: Any) -> None:
    made = [
        Agreement(one, rank, 2, "s0", job_ranks=[4, 6], kinds=AGREED)
        for rank, one in enumerate(stores(2))
    ]
    agreements.extend(made)
    for error in everyone(made, lambda rank: Failure("disk") if rank else b"", fail, LONG_S):
        assert (str(error), error.ranks) == ("r: rank 6: disk", (6,))
    for error in together(
        [lambda one=one: one.round(f"c{one.rank}", b"", fail, LONG_S) for one in made]
    ):
        assert "rank 4 is at 'c0', but rank 6 at 'c1'" in str(error)
    with pytest.raises(SaveError, match=r"rank 6 of 2 did not answer .* says rank 4") as raised:
        made[0].round("a", b"", fail, SHORT_S)
    assert raised.value.ranks == (6,)


def test_who_comes_late_to_a_failed_round_learns_it_at_once_and_the_next_works(stores: Any) -> None:
    ranks = ranks_of(stores(3))
    everyone(ranks[:2], lambda rank: Failure("disk") if rank == 1 else b"", fail, LONG_S)
    with pytest.raises(SaveError, match="disk"):
        ranks[2].round("r", b"", fail, LONG_S)
    assert everyone(ranks, lambda _: b"x", b"".join, LONG_S) == [b"xxx"] * 3


def test_ranks_that_do_not_answer_are_named_on_all_others(stores: Any) -> None:
    ranks = ranks_of(stores(4))
    errors = everyone([ranks[0], ranks[2]], lambda _: b"", fail, 2.0)
    assert [error.ranks for error in errors] == [(1, 3)] * 2
    assert "ranks 1,3 of 4 did not answer within 2 s" in str(errors[0])


def test_a_rank_0_that_does_not_answer_is_named(stores: Any) -> None:
    ranks = ranks_of(stores(3))
    errors = everyone(ranks[1:], lambda _: b"", fail, SHORT_S)
    assert [error.ranks for error in errors] == [(0,)] * 2
    # It learns, when it comes, what the others believe, and decides nothing.
    with pytest.raises(SaveError) as late:
        ranks[0].round("r", b"", fail, SHORT_S)
    assert str(late.value) == str(errors[0])


def test_a_decision_may_take_longer_than_the_others_have_waited(stores: Any) -> None:
    ranks = ranks_of(stores(2))

    def slow(contributions: Sequence[bytes]) -> bytes:
        threading.Event().wait(2.4)  # longer than rank 1 waits for contributions
        return b"done"

    assert everyone(ranks, lambda _: b"", slow, 2.0) == [b"done"] * 2


def test_a_rank_0_that_never_decides_is_given_up_and_bound_by_that(stores: Any) -> None:
    ranks = ranks_of(stores(2))
    given_up = threading.Event()

    def hangs(contributions: Sequence[bytes]) -> bytes:
        given_up.wait(LONG_S)
        return b"done"

    def rank_1() -> Any:
        try:
            return ranks[1].round("r", b"", fail, 2 * SHORT_S)
        finally:
            given_up.set()

    errors = together([lambda: ranks[0].round("r", b"", hangs, 2 * SHORT_S), rank_1])
    assert [type(error) for error in errors] == [SaveError] * 2
    assert "rank 0 has not decided" in str(errors[0])
    assert str(errors[0]) == str(errors[1])


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(5, "Input/output error", "/data"), SaveError),
        (StaleEpochError("round 3 has begun", [0]), StaleEpochError),
        (NoCheckpointError("nothing there"), NoCheckpointError),
        (DamagedCheckpointError("bad block", "/x", ["w"], 3), DamagedCheckpointError),
        (KeyError("x"), SaveError),
    ],
)
def test_what_rank_0_raises_is_raised_by_all(
    stores: Any, raised: Exception, expected: type[Exception]
) -> None:
    def decide(contributions: Sequence[bytes]) -> bytes:
        raise raised

    errors = everyone(ranks_of(stores(2)), lambda _: b"", decide, LONG_S)
    assert [type(error) for error in errors] == [expected] * 2
    assert errors[0].__cause__ is raised
    assert str(errors[0]) == str(errors[1])
    assert errors[1].__dict__ == errors[0].__dict__
    if isinstance(raised, OSError):
        assert errors[1].errno == 5
        assert "rank 0: OSError: [Errno 5] Input/output error: '/data'" in str(errors[1])
    if isinstance(raised, DamagedCheckpointError):
        assert (errors[1].path, errors[1].names, errors[1].block) == ("/x", ("w",), 3)


def test_ranks_that_are_at_different_calls_are_told(stores: Any) -> None:
    ranks = ranks_of(stores(3))
    errors = together(
        [
            lambda one=one, name=name: one.round(name, b"", fail, LONG_S)
            for one, name in zip(ranks, ("save-3", "save-3", "find-1"), strict=True)
        ]
    )
    assert {str(error) for error in errors} == {
        (
            "rank 0 is at 'save-3', but rank 2 at 'find-1': all ranks have to make the same calls "
            "in the same order"
        )
    }


@pytest.mark.parametrize("lone", [0, 1])
def test_ranks_meet_again_after_some_were_alone_in_calls(stores: Any, lone: int) -> None:
    ranks = ranks_of(stores(3))
    for step in (2, 3):
        with pytest.raises(SaveError, match=rf"save {step}: ranks .* did not answer"):
            ranks[lone].round(f"save {step}", b"", fail, SHORT_S)
    for step in (4, 5):
        answers = together(
            [
                lambda one=one, n=step: one.round(f"save {n}", b"x", b"".join, LONG_S)
                for one in ranks
            ]
        )
        assert answers == [b"xxx"] * 3


def test_a_rank_that_waits_is_not_held_up_by_another_call_that_fails(stores: Any) -> None:
    """Rank 1 is at its next call already when rank 0 fails at the one before."""
    ranks = ranks_of(stores(2))
    failed = threading.Event()

    def rank_0() -> bytes:
        with pytest.raises(SaveError, match="a: rank 0: disk"):
            ranks[0].round("a", Failure("disk"), fail, LONG_S)
        failed.set()
        return ranks[0].round("b", b"0", b"".join, LONG_S)

    assert together([rank_0, lambda: ranks[1].round("b", b"1", b"".join, LONG_S)]) == [b"01"] * 2
    assert failed.is_set()


def test_who_comes_late_to_several_failed_rounds_is_told_of_the_one_it_missed(stores: Any) -> None:
    ranks = ranks_of(stores(2))
    for step in (2, 3):
        with pytest.raises(SaveError):
            ranks[0].round(f"save {step}", b"", fail, SHORT_S)
    with pytest.raises(SaveError, match=r"save 3: rank 1 of 2 did not answer .* says rank 0"):
        ranks[1].round("save 3", b"", fail, LONG_S)


@pytest.mark.parametrize("lone", [0, 1])
def test_who_comes_late_may_wait_for_the_others_to_try_again(stores: Any, lone: int) -> None:
    ranks = ranks_of(stores(2))
    for _ in range(2):
        with pytest.raises(SaveError):
            ranks[lone].round("search", b"", fail, SHORT_S, join_later=True)
    answers = together(
        [
            lambda one=one: one.round("search", b"x", b"".join, LONG_S, join_later=True)
            for one in ranks
        ]
    )
    assert answers == [b"xx"] * 2


def test_a_rank_0_that_comes_late_does_not_wait_for_what_is_over(stores: Any) -> None:
    ranks = ranks_of(stores(3))
    with pytest.raises(SaveError):
        ranks[1].round("r", b"", fail, SHORT_S)
    began = time.monotonic()
    with pytest.raises(SaveError, match="says rank 1"):
        ranks[0].round("r", b"", fail, LONG_S)
    assert time.monotonic() - began < LONG_S / 2


class Counted:
    """A store that notes how much its user reads."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _note(self, value: bytes) -> bytes:
        self.read += len(value)
        return value

    def get(self, key: str) -> bytes:
        return self._note(self._store.get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self._note(one) for one in self._store.multi_get(keys)]

    def compare_set(self, key: str, expected: str, value: bytes) -> bytes:
        return self._note(self._store.compare_set(key, expected, value))


def scattered(ranks: Sequence[Agreement], decide: Any, contribution: Any = b"") -> list[Any]:
    return together(
        [lambda one=one: one.scatter("r", contribution, decide, LONG_S) for one in ranks]
    )


@pytest.mark.parametrize("length", [10_000, 9 << 20])  # 9 MiB: a TCPStore refuses it
def test_a_rank_is_sent_its_own_part_and_no_other(stores: Any, length: int) -> None:
    connections = [Counted(one) for one in stores(4)]
    ranks = ranks_of(connections)
    before = connections[0].num_keys()
    for number in range(2):
        parts = [bytes([number, rank]) * (length // 2) for rank in range(4)]
        assert scattered(ranks, lambda _, parts=parts: parts) == parts
    for one in connections[1:]:
        assert 2 * length <= one.read < 3 * length
    assert connections[0].read < length
    assert connections[0].num_keys() - before <= 3 + 3 * (length >> 20)


def test_rounds_of_both_kinds_follow_each_other(stores: Any) -> None:
    ranks = ranks_of(stores(3))
    for _ in range(2):
        assert scattered(ranks, lambda _: [b"a", b"b", b"c"]) == [b"a", b"b", b"c"]
        assert everyone(ranks, lambda _: b"x", b"".join, LONG_S) == [b"xxx"] * 3


@pytest.mark.parametrize("failing", [0, 2])
def test_a_failure_ends_a_round_with_parts_for_all(stores: Any, failing: int) -> None:
    ranks = ranks_of(stores(4))
    here = [ranks[0], ranks[2], ranks[3]]
    errors = together(
        [
            lambda one=one: one.scatter(
                "r", Failure("disk", 28) if one.rank == failing else b"", fail, LONG_S
            )
            for one in here
        ]
    )
    assert [(type(error), error.ranks, error.errno) for error in errors] == [
        (SaveError, (failing,), 28)
    ] * 3


def test_parts_for_another_number_of_ranks_are_an_error_of_all(stores: Any) -> None:
    errors = scattered(ranks_of(stores(2)), lambda _: [b"one"])
    assert [(type(error), error.ranks) for error in errors] == [(SaveError, (0,))] * 2


def test_parts_that_come_after_the_verdict_are_nobodys(stores: Any) -> None:
    """Rank 1 has given up when rank 0 decides: both believe that, and no part is left behind."""
    connections = stores(2)
    ranks, before = ranks_of(connections), connections[0].num_keys()
    given_up = threading.Event()

    def hangs(_: Sequence[bytes]) -> list[bytes]:
        given_up.wait(LONG_S)
        return [b"0", b"1" * (9 << 20)]

    def rank_1() -> Any:
        try:
            return ranks[1].scatter("r", b"", hangs, 2 * SHORT_S)
        finally:
            given_up.set()

    errors = together([lambda: ranks[0].scatter("r", b"", hangs, 2 * SHORT_S), rank_1])
    assert [(type(error), error.ranks) for error in errors] == [(SaveError, (0,))] * 2
    assert connections[0].num_keys() - before <= 5  # of the end, and of who has read of it
    assert scattered(ranks, lambda _: [b"a", b"b"]) == [b"a", b"b"]


def test_what_is_too_long_for_one_value_is_contributed_too(stores: Any) -> None:
    long = bytes(range(256)) * (36 << 10)  # 9 MiB: a TCPStore refuses it
    connections = stores(2)
    agreements, before = ranks_of(connections), connections[0].num_keys()
    for _ in range(2):
        assert (
            everyone(
                agreements,
                lambda rank: long if rank else b"short",
                lambda given: given[1][-256:],
                LONG_S,
            )
            == [long[-256:]] * 2
        )
    assert connections[0].num_keys() - before <= 5  # of the end, and of who has read of it


def test_what_is_too_long_for_one_value_is_decided_too(stores: Any) -> None:
    long = bytes(range(256)) * (36 << 10)  # 9 MiB: a TCPStore refuses it
    agreements = ranks_of(stores(2))
    for _ in range(2):
        assert everyone(agreements, lambda _: b"", lambda _: long, LONG_S) == [long, long]


def test_keys_do_not_pile_up(stores: Any) -> None:
    connections = stores(3)
    ranks = ranks_of(connections)
    before = connections[0].num_keys()
    after = []
    for number in range(8):
        everyone(ranks, lambda _, n=number: Failure("x") if n in (2, 3) else b"", b"".join, LONG_S)
        after.append(connections[0].num_keys() - before)
    assert after[-1] <= 3
    assert max(after) <= 3 * 4


def test_lanes_and_sessions_do_not_meet(stores: Any) -> None:
    store = stores(1)[0]
    alone = [Agreement(store, 0, 1, session, lane) for session in "ab" for lane in "cd"]
    agreements.extend(alone)
    for number, one in enumerate(alone):
        mine = b"%d" % number
        assert one.round("r", mine, lambda found: found[0], LONG_S) == mine


def test_abort_ends_a_wait_and_all_later_ones() -> None:
    class Link:
        """Wakes the store's waits, as shutting a connection down does."""

        def interrupt(self) -> None:
            for key in ("verdict", "go"):
                store.set(f"undaunted/agreement/s0/main/0/{key}", b"\xc0")

    store = dist.HashStore()
    rank = Agreement(store, 0, 2, "s0", link=Link(), kinds=AGREED)
    contributed = threading.Event()

    def wait() -> None:
        store.wait(["undaunted/agreement/s0/main/0/0"])
        contributed.set()

    watcher = threading.Thread(target=wait)
    watcher.start()

    def abort() -> None:
        assert contributed.wait(LONG_S)
        rank.abort()

    errors = together([lambda: rank.round("r", b"", fail, LONG_S), abort])
    watcher.join()
    assert "given up" in str(errors[0])
    with pytest.raises(SaveError, match="given up"):
        rank.round("r", b"", fail, LONG_S)


def test_a_rank_alone_decides_by_itself() -> None:
    alone = Alone("s", AGREED)
    assert (alone.rank, alone.world_size, alone.session) == (0, 1, "s")
    assert alone.round("r", b"x", lambda found: found[0] * 2, 1.0) == b"xx"


def test_a_rank_alone_has_the_only_part() -> None:
    assert Alone("s", AGREED).scatter("r", b"x", lambda found: [found[0] * 2], 1.0) == b"xx"


def test_a_failure_of_a_rank_alone_is_raised() -> None:
    with pytest.raises(SaveError, match=r"^disk full$") as caught:
        Alone("s", AGREED).round("r", Failure("disk full", 28), lambda _: b"", 1.0)
    assert (caught.value.ranks, caught.value.errno) == ((0,), 28)


@pytest.mark.parametrize("known", [True, False])
def test_what_a_rank_alone_raises_while_deciding(known: bool) -> None:
    raised = StaleEpochError("old") if known else OSError(5, "Input/output error", "/x")

    def decide(contributions: Sequence[bytes]) -> bytes:
        raise raised

    with pytest.raises(SaveError) as caught:
        Alone("s", AGREED).round("r", b"", decide, 1.0)
    if known:
        assert caught.value is raised
    else:
        assert caught.value.errno == 5
        assert caught.value.__cause__ is raised
