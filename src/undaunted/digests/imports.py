"""Calls back when a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec


def after_import(name: str, callback: Callable[[], object]) -> Callable[[], None]:
    """Call back once the module is imported: now, if it is already, else right after.

    Args:
        name: full name of the module.
        callback: what it raises is said on standard error.

    Returns:
        What forgets about it.
    """
    if name in sys.modules:
        _call(name, callback)
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the other finders do, and gives it a loader that calls back."""

    def __init__(self, name: str, callback: Callable[[], object]) -> None:
        self._name = name
        self._callback = callback

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in list(sys.meta_path):
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None

    def _imported(self) -> None:
        self.remove()
        _call(self._name, self._callback)


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, imported: Callable[[], None]) -> None:
        self._loader = loader
        self._imported = imported

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None, "it is being imported"
        # It and others are to find the loader that there always is.
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported()


def _call(name: str, callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception as error:  # noqa: BLE001 - the import is the program's, the rest is ours
        problem = f"{type(error).__name__}: {error}"
        print(f"undaunted: {name} cannot be watched: {problem}", file=sys.stderr, flush=True)
