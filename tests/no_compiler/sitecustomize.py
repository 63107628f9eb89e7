"""On PYTHONPATH it spares each rank of a test the import of torch's compiler, 1.8 s of CPU.

The first optimizer or DistributedDataParallel imports it, to be left alone by it. That is all that
is here: who wants anything else of it gets the real one. The fixture ``no_compiler`` puts it there.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

NAME = "torch._dynamo"


def disable(function: Any = None, recursive: bool = True, **_: Any) -> Any:
    return (lambda one: one) if function is None else function


class Lazy(ModuleType):
    """In the place of the compiler until more of it is used."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self.disable = disable
        self.graph_break = lambda **_: None
        self.utils = SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
        self.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)

    def __getattr__(self, name: str) -> Any:
        is_made = NAME in sys.modules
        if not is_made or (name.startswith("__") and name != "__path__"):
            raise AttributeError(name)
        return getattr(real(), name)


def real() -> ModuleType:
    if not finder.asked:
        finder.asked = True
        del sys.modules[NAME], sys.modules["torch"]._dynamo
    return importlib.import_module(NAME)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `Lazy`, and afterwards what the import of the real one has brought."""

    asked = False

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        lazy = name == NAME and not self.asked
        there = name.startswith(f"{NAME}.") and name in sys.modules
        return importlib.util.spec_from_loader(name, self) if lazy or there else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Lazy() if spec.name == NAME else sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is made already."""


finder = Finder()
sys.meta_path.insert(0, finder)
