"""Names and modules of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: its ``__name__``.
        modules: by name, the module that has it, relative to the package; "" = it is one itself.
    """

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"{package}.{modules[name] or name}")
        value = getattr(module, name) if modules[name] else module
        setattr(sys.modules[package], name, value)
        return value

    return get
