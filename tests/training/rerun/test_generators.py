"""Random generators are kept, and put back."""

from __future__ import annotations

import random
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402 - comes with torch

from undaunted.training.rerun import generators as module  # noqa: E402 - needs torch
from undaunted.training.rerun.generators import Generators  # noqa: E402

pytestmark = pytest.mark.torch


def draws():
    # Normal numbers come in pairs, the second of which is kept outside of the generator.
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(1).item(),
        torch.randn(1).item(),
    ]


def test_they_give_the_same_numbers_again():
    generators = Generators()
    for seed in range(5):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        generators.keep()
        first = draws()
        draws()
        generators.put_back()
        assert draws() == first


def test_the_second_of_two_normal_numbers_is_kept():
    generators = Generators()
    random.gauss(0, 1)
    np.random.randn()
    generators.keep()
    first = random.gauss(0, 1), np.random.randn()  # which change no generator
    generators.keep()
    generators.put_back()
    generators.keep()
    second = random.gauss(0, 1), np.random.randn()
    generators.put_back()
    assert (random.gauss(0, 1), np.random.randn()) == second
    assert second != first


def test_a_state_is_got_again_only_if_something_was_drawn(monkeypatch):
    generators = Generators()
    times = []
    real = random.getstate
    generators._python._get = lambda: (times.append(1), real())[1]
    for _ in range(3):
        generators.keep()
    assert len(times) == 1
    random.random()
    generators.keep()
    assert len(times) == 2


def dropout():
    return torch.nn.functional.dropout(torch.ones(8), training=True)


# Each of them changes the state of torch's generator for the CPU.
CHANGES = {
    "rand": lambda: torch.rand(1),
    "rand of an odd count": lambda: torch.rand(17),
    "rand of a whole round": lambda: torch.rand(624),
    "randn": lambda: torch.randn(1),
    "the second of a pair": lambda: (torch.randn(1), torch.randn(1)),
    "the second of a pair in double": lambda: torch.randn(1, dtype=torch.float64),
    "many normal numbers": lambda: torch.randn(33),
    "randint": lambda: torch.randint(9, (3,)),
    "randperm": lambda: torch.randperm(5),
    "bernoulli": lambda: torch.empty(3).bernoulli_(),
    "exponential": lambda: torch.empty(3).exponential_(),
    "dropout": dropout,
    "manual_seed": lambda: torch.manual_seed(11),
    "a seed with the same numbers": lambda: torch.manual_seed(11 + (1 << 32)),
    "set_state": lambda: torch.set_rng_state(torch.Generator().manual_seed(3).get_state()),
    "in another thread": lambda: in_a_thread(lambda: torch.rand(1)),
}


def in_a_thread(what):
    thread = threading.Thread(target=what)
    thread.start()
    thread.join()


def state_of_torch():
    return torch.default_generator.get_state()


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "got each time"])
def test_each_change_of_torchs_generator_is_noticed(seen, monkeypatch):
    if not seen:
        monkeypatch.setattr(module, "_torch_memory", lambda: None)
    generators = Generators()
    torch.manual_seed(1)
    generators.keep()
    assert bool(generators._torch.seen) is seen
    for name, change in CHANGES.items():
        change()
        now = state_of_torch()
        generators.keep()
        torch.manual_seed(2)
        torch.randn(1)
        generators.put_back()
        assert torch.equal(state_of_torch(), now), name


def test_a_second_normal_number_alone_is_noticed():
    generators = Generators()
    for kind in (torch.float32, torch.float64):
        torch.randn(1, dtype=kind)
        generators.keep()
        second = torch.randn(1, dtype=kind)
        generators.keep()
        after = state_of_torch()
        generators.put_back()
        assert torch.equal(state_of_torch(), after)
        assert torch.randn(1, dtype=kind) != second


def test_of_torch_nothing_is_got_again_without_a_draw():
    generators = Generators()
    generators.keep()
    assert len(generators._seen) == 4  # Python's, two of NumPy, torch's
    times, real = [], generators._torch._get
    generators._torch._get = lambda: (times.append(1), real())[1]
    for _ in range(3):
        random.random()
        generators.keep()
    assert times == []
    torch.rand(1)
    generators.keep()
    assert times == [1]


def test_a_module_that_is_imported_later_is_found(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy.random")
    generators = Generators()
    generators.keep()
    assert len(generators._seen) == 2
    monkeypatch.setitem(sys.modules, "numpy.random", np.random)
    generators.keep()
    assert len(generators._seen) == 4
    first = np.random.rand()
    generators.put_back()
    assert np.random.rand() == first


@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_what_is_read_lies_in_a_block_of_the_expected_size(size, monkeypatch):
    monkeypatch.setattr(module, "_malloc_usable_size", lambda: lambda _address: size)
    monkeypatch.setattr(module, "_view", lambda *_: pytest.fail("memory was read"))
    assert module._torch_view(torch.Generator()) is None
    monkeypatch.setattr(module, "_malloc_usable_size", lambda: None)
    assert module._torch_view(torch.Generator()) is None


def test_a_torch_whose_draws_cannot_be_seen_is_asked_each_time(monkeypatch):
    real = module._torch_view
    # As if numbers lay where they are looked for, but those of pairs lay elsewhere.
    monkeypatch.setattr(module, "_torch_view", lambda one: real(one)[: module._MT19937_BYTES + 16])
    module._torch_memory.cache_clear()
    try:
        assert module._torch_memory() is None
    finally:
        module._torch_memory.cache_clear()


def test_where_torchs_generator_lies_is_found_without_a_draw_from_it():
    module._torch_memory.cache_clear()
    before = state_of_torch()
    assert module._torch_memory() is not None
    assert torch.equal(state_of_torch(), before)


def test_another_generator_of_numpy():
    generators = Generators()
    generators.keep()
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(7))
        generators.keep()
        first = np.random.rand()
        generators.put_back()
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(before)


def test_another_process_gets_them():
    generators = Generators()
    assert generators.state_dict() == {}
    generators.keep()
    saved = generators.state_dict()
    first = draws()
    later = Generators()
    later.load_state_dict(saved)
    assert draws() == first
    later.put_back()
    assert draws() == first


def test_devices_in_use_count():
    class Generator:
        state = 1

        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = state

    class Devices:
        default_generators = (Generator(), Generator())

        @staticmethod
        def is_initialized():
            return True

    generators = Generators()
    generators._find()
    generators._devices = Devices
    generators.keep()
    Devices.default_generators[1].state = 5
    generators.put_back()
    assert Devices.default_generators[1].state == 1
    assert generators.state_dict()["devices"] == [1, 1]
