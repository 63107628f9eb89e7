"""Which checkpoints are trusted: a table, and jobs with planted faults."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.checkpointing.format import ledger
from undaunted.checkpointing.format.ledger import Candidate, Failed, Failure, Loaded, choose

# Saved every 30 steps by one session; the newest first.
THREE = [Candidate(name=f"c{step}", step=step, session="s") for step in (90, 60, 30)]
CLOSE = [Candidate(name=f"c{step}", step=step, session="s") for step in (90, 80, 70)]


def failed(name: str, cause: str = "program_error", error: str = "E", **facts: Any) -> Failed:
    facts.setdefault("steps", 3)
    return Failed(at=0.0, name=name, failure=Failure(round=1, cause=cause, error=error, **facts))


def loaded(name: str, session: str, step: int = 90) -> Loaded:
    return Loaded(at=0.0, name=name, step=step, session=session)


NODES = {"nodes": ("a",)}, {"nodes": ("b",)}
NAN = {"cause": "not_finite"}


@pytest.mark.parametrize(
    ("entries", "first"),
    [
        ([], "c90"),
        ([failed("c90")], "c90"),  # once is chance
        ([failed("c90"), failed("c90")], "c60"),
        ([failed("c90", error="E"), failed("c90", error="F")], "c90"),
        ([failed("c90", error="E", **NODES[0]), failed("c90", error="F", **NODES[1])], "c60"),
        ([failed("c90", "killed"), failed("c90", "killed")], "c90"),
        ([failed("c90", "preempted"), failed("c90", "preempted")], "c90"),
        ([failed("c90", "checkpoint_mismatch"), failed("c90", "checkpoint_mismatch")], "c90"),
        ([failed("c90", error="NameError: name 'x' is not defined")] * 2, "c90"),
        ([failed("c90"), failed("c90", steps=20)], "c90"),  # too late to be its fault
        ([failed("c90"), failed("c90", steps=None)], "c90"),
        ([failed("c90", **NAN)], "c60"),
        ([failed("c90", **NAN), failed("c60", **NAN)], "c30"),
        # All lead to the same: none is to blame.
        ([failed(f"c{step}", **NAN) for step in (90, 60, 30)], "c90"),
        # The one before, which was proven when the next one was saved, leads to the same.
        ([failed("c90"), failed("c90"), failed("c60")], "c90"),
        # It has been a base before.
        ([loaded("c90", "t"), failed("c90", steps=40), failed("c90"), failed("c90")], "c60"),
    ],
)
def test_which_is_tried_first(entries: list[Any], first: str) -> None:
    choice = choose(THREE, entries)
    assert choice.order[0].name == first
    assert {one.name for one in choice.order} == {one.name for one in THREE}
    assert choice.is_none_trusted == (first in choice.doubts)


def test_unproven_ones_are_passed_over_one_after_the_other() -> None:
    entries: list[Any] = [failed("c90"), failed("c90"), failed("c80"), failed("c80")]
    assert choose(CLOSE, entries).order[0].name == "c70"


def test_failures_count_in_the_job_in_which_they_happened() -> None:
    def round_of(run: str, name: str = "c90") -> Loaded:
        return Loaded(at=0.0, name=name, step=90, session="t", run=run)

    def first(entries: list[Any], run: str | None) -> str:
        return choose(THREE, entries, run=run).order[0].name

    one = [round_of("a"), failed("c90"), round_of("a"), failed("c90"), round_of("a", "c60")]
    assert [first(one, run) for run in ("a", "b", None)] == ["c60", "c90", "c60"]
    assert first([*one, round_of("b")], None) == "c90"  # as its own job sees it
    # Each start of a job, in the same run directory, knows how the one before has failed.
    chain = [round_of("a"), failed("c90", run="a"), round_of("b"), failed("c90", run="b")]
    assert [first(chain, run) for run in ("c", None)] == ["c60", "c60"]
    assert first([*chain, round_of("c", "c60")], "d") == "c90"


def test_errors_of_a_former_program_leave_checkpoints_to_the_corrected_one() -> None:
    def first(program: str, *failures: Failed) -> str:
        entries: list[Any] = []
        for failure in failures:
            load = Loaded(at=0.0, name="c90", step=90, session="t", run="a", program="former")
            entries += [load, failure]
        return choose(THREE, entries, run="a", program=program).order[0].name

    twice = [failed("c90", error="ValueError: x")] * 2
    assert [first(program, *twice) for program in ("former", "", "new")] == ["c60", "c60", "c90"]
    # No program has caused these.
    assert first("new", failed("c90", **NAN)) == "c60"
    damaged = "undaunted.checkpointing.errors.DamagedCheckpointError: x"
    assert first("new", *[failed("c90", "checkpoint_mismatch", damaged)] * 2) == "c60"


def test_a_reason_names_what_happened() -> None:
    twice: list[Any] = [failed("c90", ranks=(3,), error="ValueError: x")] * 2
    why = choose(THREE, twice).doubts["c90"]
    for part in ("2 rounds", "3 steps", "rank 3", "ValueError: x"):
        assert part in why


def test_nothing_is_doubted_where_it_is_turned_off() -> None:
    assert choose(THREE, [failed("c90"), failed("c90")], within=0).order == THREE


def test_a_failure_belongs_to_the_load_of_its_round() -> None:
    entries: list[Any] = [
        Loaded(at=0.0, name="c1", step=1, session="s", run="r", round=0),
        Loaded(at=0.0, name="c2", step=2, session="s", run="r", round=1),
    ]
    about = ledger.attributed(entries, Failure(round=1, cause="x"), "r", 5.0)
    assert about is not None
    assert about.name == "c2"
    assert ledger.attributed([*entries, about], Failure(round=1, cause="x"), "r", 5.0) is None
    assert ledger.attributed(entries, Failure(round=2, cause="x"), "r", 5.0) is None
    assert ledger.attributed(entries, Failure(round=1, cause="x"), "other", 5.0) is None
    assert ledger.attributed([], Failure(round=0, cause="x"), "r", 5.0) is None


def test_a_torn_or_foreign_ledger_loses_only_its_lines() -> None:
    entries: list[ledger.Entry] = [loaded("c90", "s"), failed("c90"), loaded("c60", "t")]
    content = ledger.encode(entries)
    assert ledger.decode(content) == entries
    assert ledger.decode(content[:-9]) == entries[:2]
    damaged = content.replace(b"program_error", b"program_errer")
    assert ledger.decode(damaged) == [entries[0], entries[2]]
    assert ledger.decode(b"\xff\x00 nothing\n" + content) == entries
    many = [loaded(f"c{at}", "s") for at in range(ledger.MOST_ENTRIES + 9)]
    assert ledger.decode(ledger.encode(many)) == many[9:]


@given(st.binary(max_size=200))
def test_garbage_is_no_ledger(content: bytes) -> None:
    assert ledger.decode(content) == []


class Job:
    """A job that saves, fails and goes on, with checkpoints of which some are bad."""

    def __init__(self, generator: random.Random, every: int) -> None:
        self.generator, self.every = generator, every
        self.saved: list[tuple[Candidate, str]] = []  # with the kind of its fault, oldest first
        self.entries: list[ledger.Entry] = []
        self.rounds = 0

    def train(self, step: int, until: int, session: str, fault: str = "") -> int:
        """Train from a step; the last checkpoint has the fault."""
        while step + self.every <= until:
            step += self.every
            last = step + self.every > until
            one = Candidate(name=f"{step}-{session}", step=step, session=session)
            self.saved = [s for s in self.saved if s[0].step != step]
            self.saved.append((one, fault if last else ""))
            self.saved = self.saved[-3:]
        return step

    def start(self) -> tuple[Candidate, str]:
        """Load; returns which checkpoint, and its fault. Torn ones are found by their checksums."""
        newest = self.saved[::-1]
        whole = [one for one in newest if one[1] not in ("flipped on disk", "torn")]
        chosen = choose([one for one, _ in whole], self.entries).order[0]
        self.rounds += 1
        self.entries.append(
            Loaded(at=0.0, name=chosen.name, step=chosen.step, session=f"r{self.rounds}")
        )
        return next(one for one in whole if one[0] == chosen)

    def fail(self, name: str, fault: str) -> None:
        cause, error = FAULTS[fault]
        steps = self.generator.randrange(20)
        nodes = (self.generator.choice("abcd"),)
        failure = Failure(round=self.rounds, cause=cause, error=error, steps=steps, nodes=nodes)
        self.entries.append(Failed(at=0.0, name=name, failure=failure))


# What a program meets that goes on from such a checkpoint.
FAULTS = {
    "nan": ("not_finite", "FloatingPointError: loss is nan"),
    "copy flipped": ("not_finite", "FloatingPointError: loss is inf"),
    "other rank": ("mismatch", "RuntimeError: # elements, expected #"),
    "wrong step": ("data_error", "IndexError: index # is out of range"),
    "stale": ("program_error", "AssertionError: replicas differ"),
    "flipped on disk": ("", ""),
    "torn": ("", ""),
}
NOISE = ("killed", "node_failed", "disk_full", "preempted", "program_error")


@pytest.mark.parametrize("fault", FAULTS)
def test_no_finished_run_stands_on_a_bad_checkpoint(fault: str) -> None:
    for seed in range(150):
        generator = random.Random(f"{fault} {seed}")
        job = Job(generator, every=generator.choice([5, 20, 100]))
        step = job.train(0, job.every * generator.randrange(3, 9), "first", fault)
        spent = 0
        while True:
            one, bad = job.start()
            if not bad:
                break
            spent += 1
            assert spent <= 2, (seed, job.entries)
            job.fail(one.name, bad)
        # It goes on, also through failures that have nothing to do with checkpoints.
        for number in range(generator.randrange(4)):
            step = job.train(one.step, step + job.every * 2, f"later {number}")
            cause = generator.choice(NOISE)
            before = job.saved[-1][0]
            loaded_now, bad = job.start()
            assert (loaded_now, bad) == (before, ""), (seed, cause)
            error = f"E{number}"
            failure = Failure(round=job.rounds, cause=cause, error=error, steps=1, nodes=("a",))
            job.entries.append(Failed(at=0.0, name=before.name, failure=failure))
            one = before
