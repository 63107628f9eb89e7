"""Which random generators count, from when on."""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from undaunted.digests.generators import Generators, after_import

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


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "digests_example.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "digests_example", raising=False)
    return "digests_example"


def test_at_once_if_it_is_imported() -> None:
    seen: list[str] = []
    after_import("json", lambda: seen.append(json.__name__))()
    assert seen == ["json"]


def test_after_the_import_when_everything_is_there(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(sys.meta_path)
    seen: list[bool] = []
    after_import(module, lambda: seen.append(sys.modules[module].ready))
    assert seen == []
    found = importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    assert seen == [True]
    assert sys.meta_path == before
    assert found.__spec__ is not None
    assert found.__loader__ is found.__spec__.loader
    assert "undaunted" not in type(found.__loader__).__module__
    importlib.import_module(module)
    assert seen == [True]


def test_a_module_that_is_not_there_is_not_there() -> None:
    forget = after_import("digests_absent", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("digests_absent")
    before = list(sys.meta_path)
    forget()
    assert len(sys.meta_path) == len(before) - 1
    forget()


def test_what_was_forgotten_is_not_called(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    after_import(module, lambda: seen.append(1))()
    importlib.import_module(module)
    monkeypatch.delitem(sys.modules, module)
    assert seen == []


def test_a_callback_that_raises_does_not_end_the_import(
    module: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    after_import(module, lambda: 1 / 0)
    assert importlib.import_module(module).ready
    monkeypatch.delitem(sys.modules, module)
    assert "digests_example cannot be watched: ZeroDivisionError" in capfd.readouterr().err
