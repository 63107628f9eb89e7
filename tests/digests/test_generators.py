"""Which random generators count, from when on."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from undaunted.digests.generators import Generators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[[], Generators]]:
    """Begins when it is called: test runners seed as well, between fixtures and test."""
    ends = []

    def begin() -> Generators:
        generators = Generators(tmp_path, 3)
        ends.append(generators.watch())
        return generators

    yield begin
    for end in ends:
        end()


def test_a_generator_that_nobody_seeds_does_not_count(watched: Callable[[], Generators]) -> None:
    generators = watched()
    before = generators.parts()
    random.random()
    random.seed()
    random.seed(None)
    assert generators.parts() == before


def test_one_that_was_seeded_counts(watched: Callable[[], Generators]) -> None:
    generators = watched()
    unseeded = generators.parts()
    assert set(unseeded) == {"rng"}
    random.seed(1)
    assert generators.parts().keys() - unseeded.keys() == {"random.rng"}
    seeded = generators.parts()
    assert seeded != unseeded
    random.random()
    assert generators.parts() != seeded
    random.seed(a=1)
    assert generators.parts() == seeded


def test_the_next_process_of_the_run_may_only_restore_it(
    watched: Callable[[], Generators], tmp_path: Path
) -> None:
    generators = watched()
    random.seed(1)
    state, digest = random.getstate(), generators.parts()
    later, other = Generators(tmp_path, 3), Generators(tmp_path, 4)
    random.seed()
    assert later.parts() != digest
    random.setstate(state)
    assert later.parts() == digest
    assert other.parts() != digest


def test_children_seed_their_own(watched: Callable[[], Generators], tmp_path: Path) -> None:
    generators = watched()
    unseeded = generators.parts()
    if (child := os.fork()) == 0:
        random.seed(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert list(tmp_path.iterdir()) == []
    assert generators.parts() == unseeded


def test_seeding_goes_on_if_no_note_can_be_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    generators = Generators(tmp_path / "absent", 0)
    end = generators.watch()
    try:
        random.seed(5)
    finally:
        end()
    expected = random.Random(5).random()
    assert random.random() == expected
    assert "cannot note" in capfd.readouterr().err


def test_numpy_counts_likewise(watched: Callable[[], Generators]) -> None:
    generators = watched()
    numpy = pytest.importorskip("numpy")
    state = numpy.random.get_state()
    try:
        before = generators.parts()
        numpy.random.rand()
        assert generators.parts() == before
        numpy.random.seed(1)
        seeded = generators.parts()
        assert seeded != before
        numpy.random.rand()
        assert generators.parts() != seeded
    finally:
        numpy.random.set_state(state)


def test_the_wrapped_functions_are_put_back(tmp_path: Path) -> None:
    before = random.seed
    end = Generators(tmp_path, 0).watch()
    assert random.seed is not before
    end()
    assert random.seed == before


def test_torch_always_counts(watched: Callable[[], Generators]) -> None:
    generators = watched()
    torch = pytest.importorskip("torch")
    state = torch.get_rng_state()
    before = generators.parts()
    torch.rand(1)
    assert generators.parts() != before
    torch.set_rng_state(state)
    assert generators.parts() == before
