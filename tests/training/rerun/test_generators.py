"""Random generators are kept, and put back."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402 - comes with torch

from undaunted.training.rerun.generators import Generators  # noqa: E402 - needs torch

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
    generators._find_torch()
    generators._devices = Devices
    generators.keep()
    Devices.default_generators[1].state = 5
    generators.put_back()
    assert Devices.default_generators[1].state == 1
    assert generators.state_dict()["devices"] == [1, 1]
