"""Changes of callbacks on the objects of a trainer while it trains, which they put back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from undaunted.integrations.replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Context = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def around(owner: object, name: str, context: Context) -> Iterator[None]:
    """Have a context around each call of a method of an object, inside of this.

    Callbacks may put theirs around the same method, and leave in any order.
    """
    surrounded = vars(owner).get(name)
    if not isinstance(surrounded, _Surrounded):
        surrounded = _Surrounded(owner, name)
    surrounded.contexts.append(context)
    try:
        yield
    finally:
        surrounded.contexts.remove(context)
        if not surrounded.contexts:
            surrounded.change.close()


class _Surrounded:
    """Takes the place of a method, which it calls inside of contexts."""

    def __init__(self, owner: object, name: str) -> None:
        self.contexts: list[Context] = []
        self.change = contextlib.ExitStack()
        self._method = getattr(owner, name)
        self.change.enter_context(replaced(owner, name, self))

    def __call__(self, *args: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as inside:
            for context in self.contexts:
                inside.enter_context(context())
            return self._method(*args, **options)
