"""Methods of objects are what they were, in whatever order callbacks leave."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

import pytest

from undaunted.integrations.lightning.changes import around
from undaunted.integrations.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator


class Owner:
    def method(self, number: int) -> int:
        return number + 1


@pytest.mark.parametrize("order", [*itertools.permutations("abc")])
def test_contexts_around_a_method_end_in_any_order(order: tuple[str, ...]) -> None:
    owner, seen = Owner(), []

    @contextlib.contextmanager
    def context(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    inside = {name: contextlib.ExitStack() for name in "abc"}
    for name in "abc":
        inside[name].enter_context(around(owner, "method", lambda name=name: context(name)))
    left = ["a", "b", "c"]
    for name in order:
        seen.clear()
        assert owner.method(1) == 2
        assert seen == left
        inside[name].close()
        left.remove(name)
    assert "method" not in vars(owner)


def test_a_context_sees_the_exception() -> None:
    owner, seen = Owner(), []

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        try:
            yield
        except TypeError as error:
            seen.append(error)
            raise

    with around(owner, "method", context), pytest.raises(TypeError):
        owner.method("1")  # type: ignore[arg-type]
    assert len(seen) == 1
    assert owner.method(1) == 2


def test_what_was_on_the_object_itself_is_put_back() -> None:
    owner = Owner()
    mine = vars(owner)["method"] = lambda number: number
    with replaced(owner, "method", lambda number: -number):
        assert owner.method(1) == -1
    with around(owner, "method", contextlib.nullcontext):
        assert owner.method(1) == 1
    assert owner.method is mine
