"""A session around a loop: what it says, when it stops, what it saves. No launcher, no torch."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from undaunted.progress import layout
from undaunted.progress import writer as writer_module
from undaunted.progress.writer import NullWriter
from undaunted.training.session import Session
from undaunted.training.stopping import WAIT, Answer, ByLauncher, Stop, StopReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREEMPTED = StopReason.PREEMPTED


class Peers:
    """Answers in the place of other ranks. ``after``: what they agree on; None = nobody knows."""

    def __init__(self, after: int | None = None) -> None:
        self.word = 0
        self.said = after
        self.asked: list[int] = []
        self.wanted: list[StopReason] = []
        self.left = self.closed = self.done = False

    def ask(self, iteration: int) -> int:
        self.asked.append(iteration)
        return self.word

    def after(self, timeout_s: float, give_up: Callable[[], bool]) -> Answer | None:
        assert timeout_s > 0
        assert give_up() in {False, True}
        return None if self.said is None else Answer(self.said, PREEMPTED, "rank 3 wants a stop")

    def want(self, reason: StopReason, rank: int | None = None) -> None:
        self.wanted.append(reason)
        self.about = rank
        self.word = WAIT

    def leave(self, told_s: float = 0.0) -> None:
        self.left, self.told_s = True, told_s

    def saved(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        assert timeout_s > 0
        assert not give_up()
        self.done = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def page(monkeypatch):
    """The page of this process, which nobody reads."""
    mine = NullWriter("test")
    monkeypatch.setattr(writer_module, "current", mine)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    return mine


def session_with(peers: Peers | None = None, **settings) -> Session:
    session = Session(**{"stop_signals": (), **settings})
    if peers is not None:
        session._answers, session._connected = peers, True
    return session


def sections(page: NullWriter) -> dict[str, int]:
    count = layout.SECTION_COUNT
    return {name: page._words[one._slot + count] for name, one in page._sections.items()}


def test_a_loop_that_ends_by_itself(page):
    with session_with() as session:
        for iteration in range(5, 8):
            with session.step(iteration):
                pass
            assert not session.should_stop(iteration)
    assert (session.stop, session.exit_code) == (None, 0)
    assert sections(page) == {"setup": 1, "step": 3}
    assert page._words[layout.ITERATION] == 8


def test_setup_ends_with_the_first_step(page):
    with session_with() as session:
        assert sections(page)["setup"] == 0
        with session.step(0):
            assert sections(page)["setup"] == 1


def test_the_process_asks_for_a_stop_and_is_alone():
    with session_with() as session:
        assert not session.should_stop(0)
        session.request_stop()
        assert session.should_stop(1)
        assert session.should_stop(2), "it stays so"
    assert session.stop is not None
    assert (session.stop.reason, session.stop.iteration) == (StopReason.REQUESTED, 1)
    assert session.exit_code == 75


def test_all_ranks_stop_after_the_same_iteration():
    peers = Peers(after=12)
    with session_with(peers) as session:
        assert not session.should_stop(10)
        peers.word = WAIT
        assert [session.should_stop(iteration) for iteration in (11, 12)] == [False, True]
        assert not peers.done
    assert session.stop == Stop(PREEMPTED, 12, "rank 3 wants a stop")
    assert (peers.done, peers.closed) == (True, True)


def test_nobody_answers(caplog):
    peers = Peers()
    peers.word = WAIT
    with caplog.at_level(logging.WARNING), session_with(peers) as session:
        assert [session.should_stop(iteration) for iteration in range(3)] == [False] * 3
    assert len([each for each in caplog.messages if "could not agree" in each]) == 1


def test_iterations_that_are_counted_anew():
    peers = Peers(after=8)
    with session_with(peers) as session:
        for iteration in (0, 1, 2, 0, 1, 2, 0, 0):
            session.should_stop(iteration)
        assert peers.asked == [0, 1, 2, 3, 4, 5, 6, 6]
        peers.word = WAIT
        assert not session.should_stop(1)
        assert session.should_stop(2)
    assert session.stop is not None
    assert session.stop.iteration == 2


@pytest.mark.parametrize("iteration", [-1, "3", 1.5, None])
def test_what_is_no_iteration(iteration):
    with session_with() as session, pytest.raises(ValueError, match="number of an iteration"):
        session.should_stop(iteration)


@pytest.mark.parametrize("iteration", [-1, "5", 1.5, None, 2**48])
def test_a_step_that_is_no_iteration(iteration):
    with session_with() as session, pytest.raises(ValueError, match=r"step\(.*\): give the number"):
        session.step(iteration)


def test_a_step_of_a_number_that_is_no_int():
    class Five:
        def __index__(self):
            return 5

    with session_with() as session, session.step(Five()):
        assert session.iteration == 5


# --- saving ---------------------------------------------------------------------------------------


def test_the_last_iteration_is_saved_when_a_stop_ends_the_loop(page):
    saved = []
    with session_with(save=saved.append) as session:
        session.save(1)
        session.request_stop()
        assert session.should_stop(3)
    assert saved == [1, 3]
    assert sections(page)["checkpointing"] == 2


def test_what_was_saved_is_not_saved_again():
    saved = []
    with session_with(save=saved.append) as session:
        session.request_stop()
        with session.checkpointing(3):
            pass
        assert session.should_stop(3)
    assert saved == []


def test_nothing_is_saved_after_an_error():
    saved, session = [], session_with(Peers(after=0))

    def train() -> None:
        with session:
            session.request_stop()
            assert session.should_stop(0)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert saved == []


def test_an_error_of_the_last_save_is_seen(page):
    def fail(_: int) -> None:
        raise OSError("disk full")

    def train() -> None:
        with session_with(save=fail, stop_signals=["TERM"]) as session:
            session.request_stop()
            assert session.should_stop(0)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(OSError, match="disk full"):
        train()
    assert signal.getsignal(signal.SIGTERM) is before


def test_there_is_nothing_to_save_with():
    with session_with() as session, pytest.raises(ValueError, match=r"Session\(save="):
        session.save(0)


# --- signals and times ----------------------------------------------------------------------------


def test_a_signal_stops_the_loop():
    peers = Peers(after=4)
    with session_with(peers, stop_signals=["SIGUSR1"]) as session:
        assert not session.should_stop(3)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert peers.wanted == [PREEMPTED]
        assert session.should_stop(4)


def test_a_late_signal_does_not_end_a_rank_that_has_stopped(monkeypatch):
    heard = []
    monkeypatch.setattr("undaunted.training.signals.time.monotonic", lambda: now)
    signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    now = 100.0
    with session_with(stop_signals=["SIGUSR1"]) as session:
        session.request_stop()
        assert session.should_stop(0)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == []
    now = 103.0  # it means something else
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == [1]


def test_a_second_signal_is_in_a_hurry(monkeypatch):
    peers = Peers()
    with session_with(peers, stop_signals=["SIGUSR1"]) as session:
        now = time.monotonic()
        for later in (0.0, 0.5, 3.0):  # the one half a second later is the same one
            monkeypatch.setattr("undaunted.training.signals.time.monotonic", lambda: now + later)  # noqa: B023
            os.kill(os.getpid(), signal.SIGUSR1)
        assert session.should_stop(9)
        assert peers.left
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert session.exit_code == 75


def test_the_end_of_the_scheduler_s_time(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", "100000")
    clock = [100000 - 100.0]
    monkeypatch.setattr("undaunted.training.session.time.time", lambda: clock[0])
    ticks = iter([0.0, 30.0])
    peers = Peers(after=2)
    with session_with(peers, save=lambda _: None) as session:
        monkeypatch.setattr("undaunted.training.session.time.monotonic", lambda: next(ticks))
        assert not session.should_stop(0)
        session.save(0)  # takes 30 s: two of these and a minute are not left
        assert session._leave_at == 100000 - 120
        assert not session.should_stop(1)
        assert peers.wanted == [StopReason.DEADLINE]
        monkeypatch.undo()
        assert session.should_stop(2)


@pytest.fixture
def steady(page):
    """A session whose first iterations are over, which the launcher watches."""
    with session_with(stop_signals=["SIGUSR1"]) as session:
        session._answers = ByLauncher(page)
        for iteration in range(30):
            session.begin_step(iteration)
            assert not session.end_step(iteration)
        yield session


def test_the_page_is_told_of_each_iteration(steady, page):
    assert sections(page) == {"setup": 1, "step": 30}
    assert page._words[layout.ITERATION] == 30
    assert page._words[layout.STOP_ASKED] == 29 + 2
    page._words[layout.STOP] = layout.stop_word(31, "requested")
    with steady.step(30):
        assert sections(page)["step"] == 30
    assert not steady.should_stop(30)
    steady.begin_step(31)
    assert steady.end_step(31)
    assert steady.stop.iteration == 31


def test_after_a_signal_the_second_one_is_looked_for(steady, monkeypatch):
    now = time.monotonic()
    for later in (0.0, 3.0):
        monkeypatch.setattr("undaunted.training.signals.time.monotonic", lambda: now + later)  # noqa: B023
        os.kill(os.getpid(), signal.SIGUSR1)
    steady.begin_step(30)
    assert steady.end_step(30)
    assert steady.stop.iteration == 30


@pytest.mark.parametrize("what", ["digests", "an end"])
def test_what_else_is_to_be_done_is_done_in_each_iteration(monkeypatch, page, what):
    seen: list[object] = []
    if what == "digests":
        monkeypatch.setattr("undaunted.progress.api.on_step", lambda *given: seen.append(given))
    with session_with(end_time=time.time() + 1000 if what == "an end" else None) as session:
        session._answers = ByLauncher(page)
        for iteration in range(25):
            session.begin_step(iteration)
            assert not session.end_step(iteration)
    assert len(seen) == (25 if what == "digests" else 0)


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf"])
def test_the_scheduler_s_time_is_not_known(monkeypatch, value):
    monkeypatch.setenv("SLURM_JOB_END_TIME", value)
    with session_with() as session:
        assert session._leave_at == math.inf
        assert not session.should_stop(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"stop_signals": ["SIGKILL"]},
        {"stop_signals": ["TERMINATE"]},
        {"stop_signals": "SIGTERM"},
        {"stacks_after_s": 0},
        {"stacks_after_s": "1m"},
        {"end_time": math.nan},
    ],
)
def test_bad_settings(settings):
    value = next(iter(settings.values()))
    named = repr(value[0] if isinstance(value, list) else value)
    with pytest.raises(ValueError, match=named):
        Session(**settings)


# --- what it says ---------------------------------------------------------------------------------


def messages(caplog) -> str:
    return "\n".join(caplog.messages)


def test_what_is_active_is_said_once(caplog):
    with caplog.at_level(logging.INFO), session_with() as session:
        for iteration in range(50):
            with session.step(iteration):
                pass
            session.should_stop(iteration)
    assert len([each for each in caplog.messages if each.startswith("session: ")]) == 1
    assert "no launcher watches" in messages(caplog)


def test_a_loop_that_never_asks_is_warned(caplog, page):
    with session_with() as session:
        for iteration in range(20):
            with session.step(iteration):
                pass
        assert page._words[layout.STOP_ASKED] >= layout.LEFT, "it gets the signal, as any other"
    assert "should_stop was never asked" in messages(caplog)


def test_a_loop_without_steps_is_warned(caplog):
    with session_with():
        pass
    assert "no step" in messages(caplog)


def test_a_save_that_is_never_called_is_warned(caplog):
    with session_with(save=lambda _: None) as session, session.step(0):
        pass
    assert "no checkpoint was saved" in messages(caplog)


def test_ranks_that_know_by_themselves_stop_without_asking() -> None:
    peers = Peers()
    saved: list[int] = []
    with session_with(peers, save=saved.append) as session:
        with session.step(7):
            pass
        session.stop_here(StopReason.SUSPECT, 6, rank=3, text="the loss is 1e30")
        assert session.should_stop(7)
    assert (peers.wanted, peers.about, peers.left) == ([StopReason.SUSPECT], 3, True)
    assert peers.told_s > 0, "the launcher has to know it before the rank has ended"
    assert peers.asked == [], "what it has said is not taken back"
    assert session.stop == Stop(StopReason.SUSPECT, 6, "the loss is 1e30")
    assert (session.exit_code, saved) == (16, [6])


def test_of_ranks_that_stop_by_themselves_one_has_to_say_why() -> None:
    peers = Peers()
    with session_with(peers) as session:
        with session.step(0):
            pass
        session.stop_here(StopReason.INVALID, 0)
    assert (peers.wanted, peers.left, session.exit_code) == ([], True, 17)


@pytest.mark.parametrize("reason", [StopReason.RESTART, "suspect", 16, None])
def test_no_reason_of_a_rank(reason: object) -> None:
    with session_with() as session:
        with pytest.raises(ValueError, match="SUSPECT"):
            session.request_stop(reason)
        with pytest.raises(ValueError, match="SUSPECT"):
            session.stop_here(reason, 3, rank=0)
        assert session.stop is None
        session.begin_step(0)


# --- what programs do wrong -----------------------------------------------------------------------


def stopping_at(iteration: int) -> Peers:
    """All ranks stop after this iteration, as the first question finds."""
    peers = Peers(iteration)
    peers.word = WAIT
    return peers


def test_a_loop_that_goes_on_is_warned_of_and_what_is_saved_has_the_right_number(caplog) -> None:
    saved: list[int] = []
    with session_with(stopping_at(2), save=saved.append) as session:
        for iteration in range(5):
            with session.step(iteration):
                pass
            session.should_stop(iteration)
    assert saved == [4]
    (warned,) = [each for each in caplog.messages if "begins, though" in each]
    assert "iteration 3" in warned


def test_a_question_that_comes_before_its_step_is_warned_of(caplog) -> None:
    with session_with(stopping_at(0)) as session:
        with session.step(0):
            pass
        assert session.should_stop(1)
    assert "should_stop(1) was asked, but iteration 0 was begun last" in caplog.text


@pytest.mark.parametrize(("peers", "expected"), [(stopping_at(0), [0]), (Peers(), [])])
def test_a_program_that_ends_inside_saves_if_it_was_to_stop(
    peers: Peers, expected: list[int]
) -> None:
    saved: list[int] = []

    def program() -> None:
        with session_with(peers, save=saved.append) as session:
            with session.step(0):
                pass
            session.should_stop(0)
            sys.exit(session.exit_code)

    with pytest.raises(SystemExit):
        program()
    assert saved == expected


def test_a_session_without_with_is_refused() -> None:
    session = Session(stop_signals=())
    with pytest.raises(RuntimeError, match="not entered"), session.step(0):
        pass
    with pytest.raises(RuntimeError, match="not entered"):
        session.should_stop(0)


def test_a_session_that_is_over_is_refused() -> None:
    with session_with() as session, session.step(0):
        pass
    with pytest.raises(RuntimeError, match="not entered"), session.step(1):
        pass
    with pytest.raises(RuntimeError, match="entered once"), session:
        pass


def test_one_session_at_a_time() -> None:
    with session_with() as session:
        with pytest.raises(RuntimeError, match="another session"), Session(stop_signals=()):
            pass
        with session.step(0):
            pass
    with session_with() as session, session.step(0):
        pass


@pytest.mark.parametrize("value", ["checkpoints", 1])
def test_no_function_to_save_with(value: object) -> None:
    with pytest.raises(ValueError, match="save is"):
        Session(save=value)


@pytest.mark.parametrize("value", [True, 3600, 0.0, math.nan, "soon"])
def test_no_end_of_the_time(value: object) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Session(end_time=value)


def test_an_end_that_is_over_stops_at_once_and_says_so(caplog) -> None:
    with session_with(end_time=time.time() - 5) as session:
        with session.step(0):
            pass
        assert session.should_stop(0)
    assert session.stop == Stop(
        StopReason.DEADLINE, 0, "the end of the time that the job has is near"
    )
    assert "is over since" in caplog.text


@pytest.mark.parametrize("value", ["0", "1000", "soon", "1e400"])
def test_an_end_that_the_scheduler_cannot_mean_is_not_used(monkeypatch, caplog, value) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", value)
    with session_with() as session:
        with session.step(0):
            pass
        assert not session.should_stop(0)
    assert "SLURM_JOB_END_TIME" in caplog.text


@pytest.mark.parametrize("iteration", [2**48, 2**63, 2**64])
def test_no_number_of_an_iteration(iteration: int) -> None:
    with session_with() as session:
        session.begin_step(0)
        with pytest.raises(ValueError, match="number of an iteration"):
            session.should_stop(iteration)


@pytest.mark.parametrize("names", [[signal.SIGTERM], [15], ["TERM"]])
def test_signals_by_name_or_number(names) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Session(stop_signals=names) as session:
        assert signal.getsignal(signal.SIGTERM) != before
        session.begin_step(0)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("names", [None, 15, "SIGTERM", [9], ["SIGNOTHING"], [1.5]])
def test_no_signals(names) -> None:
    with pytest.raises(ValueError, match="SIGTERM"):
        Session(stop_signals=names)


def run_in_turns(
    ranks: list[Iterator[None]], draw: random.Random, moment: int, agree: Callable[[], None]
) -> None:
    """Run ranks to their end, any of them next; after so many turns they ``agree`` to stop."""
    left = list(ranks)
    while left:
        one = draw.choice(left)
        if next(one, left) is left:
            left.remove(one)
        moment -= 1
        if moment == 0:
            agree()


@pytest.mark.parametrize("seed", range(40))
def test_ranks_leave_an_evaluation_together(seed: int) -> None:
    """Steps and evaluations, with as many batches as a rank happens to have; one moment to stop."""
    draw = random.Random(seed)
    first = draw.choice([0, 500])
    plan = {i: draw.randrange(4) == 0 for i in range(first - 1, first + 12)}
    places: dict[int, tuple[int, bool]] = {}

    def train(rank: int, session: Session) -> Iterator[None]:
        sizes = random.Random(1000 * seed + rank)
        for i in range(first - 1, first + 12):
            if i >= first:
                session.iteration = i
                yield
                if session.should_stop(i):
                    places[rank] = i, False
                    return
            for _ in range(plan[i] + (plan[i] and seed % 2)):
                for _ in session.evaluating(range(sizes.randrange(5))):
                    yield
                if session.stop is not None:
                    places[rank] = i, True
                    return
        places[rank] = first + 12, False

    peers = [Peers() for _ in range(4)]
    ranks = [train(rank, session_with(each)) for rank, each in enumerate(peers)]

    def agree() -> None:
        last = 1 + max((each.asked[-1] for each in peers if each.asked), default=-1)
        for each in peers:
            each.word, each.said = WAIT, last

    run_in_turns(ranks, draw, draw.randrange(60), agree)
    assert len({*places.values()}) == 1


def train_as_an_adapter(
    session: Session, evaluations: list[int], stops: list[tuple[int, bool]]
) -> Iterator[None]:
    """Evaluate as many batches as given after each iteration. ``stops``: where it has stopped."""
    for iteration, batches in enumerate(evaluations):
        session.begin_step(iteration)
        yield
        if session.end_step(iteration):
            stops.append((iteration, False))
            return
        for batch in range(batches):
            yield
            if session.leaves_evaluation(ended=batch == batches - 1):
                stops.append((iteration, True))
                return


@pytest.mark.parametrize("seed", range(40))
def test_ranks_of_an_adapter_leave_an_evaluation_together(seed: int, monkeypatch) -> None:
    """Their steps tell the page, and nothing else, once the first ones are over."""
    draw = random.Random(seed)
    due = [draw.randrange(4) == 0 for _ in range(40)]
    pages, stops, ranks = [NullWriter("test") for _ in range(3)], [], []
    for page in pages:
        monkeypatch.setattr(writer_module, "current", page)
        session = session_with()
        session._answers, session._connected, session._inside = ByLauncher(page), True, True
        batches = [each and draw.randint(1, 5) for each in due]
        ranks.append(train_as_an_adapter(session, batches, stops))

    def agree() -> None:
        after = 1 + max(page._words[layout.STOP_ASKED] - 2 for page in pages)
        for page in pages:
            page._words[layout.STOP] = layout.stop_word(after, "preempted")

    run_in_turns(ranks, draw, draw.randrange(60, 160), agree)
    assert stops == stops[:1] * (3 if stops else 0)


def test_an_evaluation_is_left_and_what_was_done_before_it_is_saved(page: NullWriter) -> None:
    saved: list[int] = []
    with session_with(save=saved.append) as session:
        with session.step(7):
            pass
        seen = []
        for batch in session.evaluating("abcd"):
            seen.append(batch)
            if batch == "b":
                session.request_stop()
        assert (seen, session.should_stop(7)) == (["a", "b"], True)
    assert (saved, session.exit_code) == ([7], 75)
    assert session.stop is not None
    assert session.stop.iteration == 7
    assert sections(page)["evaluation"] == 1


def test_nothing_is_saved_of_an_evaluation_before_the_first_iteration(caplog) -> None:
    saved: list[int] = []
    with caplog.at_level(logging.WARNING), session_with(save=saved.append) as session:
        session.request_stop()
        assert list(session.evaluating([1, 2])) == [1]
        assert session.stop is not None
    assert (saved, session.stop.iteration, session.exit_code) == ([], -1, 75)
    assert "before the first iteration" in caplog.text
    assert "has seen no step" not in caplog.text


def test_a_session_that_only_evaluates(page: NullWriter, caplog) -> None:
    with caplog.at_level(logging.WARNING), session_with() as session:
        session.ready()
        assert sections(page)["setup"] == 1
        assert list(session.evaluating([1, 2])) == [1, 2]
    assert session.exit_code == 0
    assert "has seen no step" not in caplog.text


def test_an_evaluation_that_the_program_leaves_counts_like_a_whole_one() -> None:
    """By ``break``, or by an exception."""
    one, other = Peers(), Peers()
    for peers, batches in ((one, 2), (other, 9)):
        session = session_with(peers)
        session.should_stop(3)
        for batch in session.evaluating(range(9)):
            if batch == batches:
                break
        with contextlib.suppress(ZeroDivisionError):
            for batch in session.evaluating(range(9)):
                print(1 / (batch - batches + 1))
        session.leaves_evaluation()  # of an adapter that never says it has ended
        assert not session.should_stop(4)
    assert one.asked[-1] == other.asked[-1]


def test_the_next_step_ends_an_evaluation_of_which_nobody_says_that_it_has_ended(
    steady: Session, page: NullWriter
) -> None:
    steady.leaves_evaluation()
    for iteration in (90, 91):
        steady.begin_step(iteration)
        assert not steady.end_step(iteration)
    assert page._words[layout.STOP_ASKED] == 91 + layout.EVALUATION + 2


def test_a_loop_that_only_evaluates_never_asks(caplog) -> None:
    with caplog.at_level(logging.WARNING), session_with(Peers()) as session:
        for iteration in range(25):
            with session.step(iteration):
                list(session.evaluating([1]))
    assert "should_stop was never asked" in caplog.text
