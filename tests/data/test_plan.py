"""Jobs with random histories see what an uninterrupted job sees; the oracle is a plain list."""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import pytest

from undaunted.data.plan import DataChangedError, MicroBatch, Plan, Remainder, read_state, state_of

HISTORIES = 10_000
EPOCHS = 3


class Settings(NamedTuple):
    length: int
    micro: int
    shares: int
    remainder: Remainder

    @property
    def step(self) -> int:
        return self.micro * self.shares


def drawn(rng: random.Random) -> Settings:
    micro, count = rng.randint(1, 4), rng.randint(1, 8)
    length = rng.randint(micro * count, 60 + micro * count)
    remainder: Remainder = rng.choice(("drop", "short", "pad"))
    return Settings(length, micro, count, remainder)


def expected(settings: Settings) -> list[list[tuple[int, int]]]:
    """Steps of some epochs: which positions count."""
    steps = []
    for epoch in range(EPOCHS):
        positions = [(epoch, position) for position in range(settings.length)]
        cut = [positions[at : at + settings.step] for at in range(0, len(positions), settings.step)]
        if settings.remainder == "drop" and len(cut[-1]) < settings.step:
            cut.pop()
        steps += cut
    return steps


class Job:
    """Some ranks with a plan; a step is recorded when all of them have done it."""

    def __init__(self, settings: Settings) -> None:
        self._plan = Plan(settings.length, settings.step, settings.micro, settings.remainder)
        self._settings = settings
        self.saved = state_of(0, 0, {})

    def launch(self, ranks: int, steps: int, save_every: int) -> list[list[tuple[int, int]]]:
        """Go on from the saved state; return what was learned, up to the last save."""
        epoch, position, _ = read_state(self.saved, {}, self._plan)
        streams = [self._plan.shares(epoch, position, rank, ranks) for rank in range(ranks)]
        kept: list[list[tuple[int, int]]] = []
        done: list[list[tuple[int, int]]] = []
        for number in range(1, steps + 1):
            learned: list[tuple[int, int]] = []
            counts = set()
            for stream in streams:
                micros: list[MicroBatch] = []
                while not micros or not micros[-1].is_last:
                    micros.append(next(stream))
                counts.add(len(micros))
                for one in micros:
                    assert one.epoch == epoch
                    assert one.real <= one.size <= self._settings.micro
                    assert self._settings.remainder == "short" or one.size == self._settings.micro
                    learned += [(epoch, one.start + at) for at in range(one.real)]
            assert len(counts) == 1  # all ranks take part in as many collectives
            done.append(sorted(learned))
            epoch, position = self._plan.after(epoch, position)
            if number % save_every == 0:
                self.saved = state_of(epoch, position, {})
                kept += done
                done = []
        return kept


@pytest.mark.parametrize("part", range(10))
def test_histories(part: int) -> None:
    """Kills, stops and changes of the world at any step: the steps are the same, none is lost."""
    for seed in range(part * HISTORIES // 10, (part + 1) * HISTORIES // 10):
        rng = random.Random(seed)
        settings = drawn(rng)
        wanted = expected(settings)
        job = Job(settings)
        learned: list[list[tuple[int, int]]] = []
        while len(learned) < len(wanted):
            ranks = rng.randint(1, settings.shares)
            learned += job.launch(ranks, rng.randint(0, 12), rng.randint(1, 4))
        assert learned[: len(wanted)] == wanted, (seed, settings)
        if settings.remainder != "drop":
            counts = Counter(one for step in learned[: len(wanted)] for one in step)
            assert set(counts.values()) == {1}
            assert len(counts) == EPOCHS * settings.length


def test_another_global_batch_goes_on_where_the_last_step_ended() -> None:
    small, large = Plan(100, 8, 2, "short"), Plan(100, 20, 2, "short")
    epoch, position, differences = read_state(state_of(0, 48, {}), {}, large)
    assert (epoch, position, differences) == (0, 48, [])
    assert [one.start for one in large.share(0, 48, 0, 1)] == list(range(48, 68, 2))
    assert large.steps_from(48) == 3
    assert small.after(0, 96) == (1, 0)
    assert Plan(100, 60, 2).begin(0, 48) == (1, 0)  # no whole step is left


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ((100, 0, 1), "global_batch=0"),
        ((100, 8, 0), "micro_batch=0"),
        ((100, 10, 4), "take 8 or 12"),
        ((100, 3, 4), "take 4$"),
        ((7, 8, 4), "an epoch has 7"),
        ((7, 8, 4, "wrap"), "remainder='wrap'"),
    ],
)
def test_numbers_that_do_not_fit(numbers: tuple[int, int, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Plan(*numbers)


def test_more_ranks_than_micro_batches() -> None:
    Plan(100, 16, 4).check_world(4)
    with pytest.raises(ValueError, match="global_batch=20 or more, or micro_batch=3"):
        Plan(100, 16, 4).check_world(5)


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({}, "no state"),
        ({**state_of(0, 0, {}), "version": 9}, "version 9"),
        ({**state_of(0, 0, {}), "epoch": "x"}, "no state"),
        ({**state_of(0, 0, {}), "position": -1}, "position -1"),
        ({**state_of(0, 0, {}), "settings": 3}, "no state"),
        ({**state_of(0, 0, {}), "position": float("inf")}, "no state"),
    ],
)
def test_what_is_no_state(state: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_state(state, {}, Plan(10, 2, 1))
    assert issubclass(DataChangedError, Exception)
