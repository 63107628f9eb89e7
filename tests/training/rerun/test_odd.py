"""What a later process learns of an odd result."""

from __future__ import annotations

import json

import pytest

from undaunted.training.rerun.odd import Call, Caller, Odd, loaded_odd, saved_odd
from undaunted.training.rerun.slot import Slot

ODD = Odd(Call(Caller("loss", 3), 2), 7.5, True, Slot("node1", "cuda:3", "GPU-1"))


def test_it_is_the_same_in_a_later_process():
    assert loaded_odd(json.loads(json.dumps(saved_odd(ODD)))) == ODD


def test_nothing_odd_has_the_same_names():
    saved = saved_odd(None)
    assert {*saved} == {*saved_odd(ODD)}
    assert loaded_odd(saved) is None


@pytest.mark.parametrize("name", [*saved_odd(ODD)])
def test_a_part_of_it_is_none(name):
    saved = saved_odd(ODD)
    del saved[name]
    with pytest.raises(KeyError):
        loaded_odd(saved)
