"""Random generators are kept, and put back."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402 - comes with torch

from undaunted.base import random_generators  # noqa: E402 - needs torch
from undaunted.base.random_generators import (  # noqa: E402
    from_plain,
    set_states,
    states,
    to_plain,
)

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
        torch.randn(1, dtype=torch.float64).item(),
    ]


@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_they_give_the_same_numbers_again(drawn):
    for _ in range(drawn):
        draws()
    kept = states()
    first = draws()
    draws()
    set_states(kept)
    assert draws() == first


def test_another_process_gets_them():
    kept = to_plain(states())
    first = draws()
    set_states(from_plain(kept))
    assert draws() == first


def test_what_is_missing_stays_as_it_is():
    kept = to_plain(states())
    random.random()
    first = random.getstate()
    set_states(from_plain({"torch": kept["torch"]}))
    assert random.getstate() == first


def test_a_process_that_has_not_imported_a_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.delitem(sys.modules, "torch")
    kept = states()
    assert kept._replace(python=None) == (None, None, None, ())
    set_states(kept)


@pytest.mark.parametrize("kept", ["states()", "from_plain(json.load(sys.stdin))"])
def test_numpy_is_imported_and_its_generators_are_not_yet(kept):
    """NumPy imports them at their first use: what a program draws then is what was kept."""
    script = f"""if True:
        import json, sys
        import numpy as np
        from undaunted.base.random_generators import from_plain, set_states, states
        kept = {kept}
        set_states(kept)
        first = np.random.rand()
        set_states(kept)
        assert np.random.rand() == first
    """
    given = json.dumps({"numpy": to_plain(states())["numpy"]})
    subprocess.run([sys.executable, "-c", script], input=given, text=True, check=True)


def test_another_generator_of_numpy():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(7))
        kept = states()
        first = np.random.rand()
        set_states(kept)
        assert np.random.rand() == first
        assert "numpy" not in to_plain(kept)
    finally:
        np.random.set_bit_generator(before)


class Generator:
    state = 1

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_devices_in_use_count(monkeypatch):
    class Devices:
        default_generators = (Generator(), Generator())

        @staticmethod
        def is_initialized():
            return True

    monkeypatch.setattr(random_generators, "_devices", lambda: Devices)
    kept = states()
    Devices.default_generators[1].state = 5
    set_states(kept)
    assert Devices.default_generators[1].state == 1
    assert to_plain(kept)["devices"] == [1, 1]
    assert from_plain(to_plain(kept)).devices == (1, 1)
    assert states(devices=False).devices == ()
