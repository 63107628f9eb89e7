"""Methods of others are what they were, also after an exception."""

from __future__ import annotations

import pytest

from undaunted.integrations.replaced import replaced


class Thing:
    def name(self) -> str:
        return "its class's"


def test_a_method_of_the_class_is_there_again() -> None:
    thing = Thing()
    with replaced(thing, "name", lambda: "another"):
        assert thing.name() == "another"
    assert thing.name() == "its class's"
    assert not vars(thing)


def test_what_the_object_itself_had_is_there_again() -> None:
    thing = Thing()
    thing.__dict__["interval"] = 5
    with pytest.raises(ZeroDivisionError), replaced(thing, "interval", 0):
        1 // vars(thing)["interval"]
    assert vars(thing) == {"interval": 5}
