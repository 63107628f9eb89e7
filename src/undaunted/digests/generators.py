"""Digests of a rank's random generators: those that the program has made deterministic.

Those of torch always count: every script that begins with random parameters seeds them. Those of
`random` and numpy begin anywhere; they count from the moment at which the program first seeds them,
in this process or in an earlier one of the run. A script that resumes may only restore them; a note
in the directory tells.
"""

from __future__ import annotations

import functools
import importlib.abc
import os
import random
import sys
from typing import TYPE_CHECKING, Any

from undaunted.digests.record import RNG
from undaunted.digests.state import digest_of

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path

    from undaunted.digests.state import Parts

_PYTHON, _NUMPY = "random", "numpy"


class Generators:
    """The generators of this process. `watch` notices when they are seeded."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Say where notes about the rank are.

        Args:
            directory: exists.
            rank: the global one.
        """
        self._notes = {name: directory / f"seeded-{rank}-{name}" for name in (_PYTHON, _NUMPY)}
        self._pid = os.getpid()
        self._seeded = {name for name, note in self._notes.items() if note.exists()}

    def watch(self) -> Callable[[], None]:
        """Notice from now on when the program seeds a generator; return what ends that."""
        undo = [_wrap(random, lambda: self._note(_PYTHON))]
        # In place right after the import: code that takes `seed` from there gets the wrapped one.
        forget = after_import(
            "numpy.random",
            lambda: undo.append(_wrap(sys.modules["numpy.random"], lambda: self._note(_NUMPY))),
        )

        def end() -> None:
            forget()
            for one in undo:
                one()

        return end

    def parts(self) -> Parts:
        """Return the digests of their states: ``rng`` is torch's, ``numpy.rng``, ``random.rng``."""
        states: list[object] = []
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            states.append(torch.get_rng_state())
            if torch.cuda.is_initialized():
                states.append(torch.cuda.get_rng_state())
        parts = {RNG: digest_of(states)}
        if _PYTHON in self._seeded:  # its text is shorter to hash than its 625 numbers
            parts[f"{_PYTHON}.{RNG}"] = digest_of(repr(random.getstate()))
        numpy: Any = sys.modules.get("numpy.random")
        if _NUMPY in self._seeded and numpy is not None:
            parts[f"{_NUMPY}.{RNG}"] = digest_of(numpy.get_state())
        return parts

    def _note(self, name: str) -> None:
        # Workers that load data seed their own.
        if name not in self._seeded and os.getpid() == self._pid:
            self._seeded.add(name)
            self._notes[name].touch(0o600)


def _wrap(module: Any, note: Callable[[], None]) -> Callable[[], None]:
    """Have a module's `seed` tell of seeds that are given; return what undoes it."""
    seed = module.seed

    @functools.wraps(seed)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        if any(one is not None for one in (*args[:1], *kwargs.values())):
            try:
                note()
            except OSError as error:
                print(f"undaunted: cannot note that there is a seed: {error}", file=sys.stderr)
        return seed(*args, **kwargs)

    module.seed = noticed

    def undo() -> None:
        if module.seed is noticed:
            module.seed = seed

    return undo


def after_import(name: str, callback: Callable[[], object]) -> Callable[[], None]:
    """Call back once the module is imported: now, if it is already, else right after.

    Args:
        name: full name of the module.
        callback: its exceptions go to standard error.

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
