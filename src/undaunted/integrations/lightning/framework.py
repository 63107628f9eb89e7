"""Classes of Lightning, from whichever of its two packages the program uses."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.integrations.requirements import check

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.integrations.requirements import Requirement

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class _Missing:
    """Stands for a class of Lightning, so that modules can be imported without it."""

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        raise ImportError(f"{cls.__name__} needs Lightning: pip install undaunted[lightning]")


def of_lightning(module: str, name: str) -> Any:
    """Return a class of Lightning; what takes its place without Lightning raises ImportError.

    Args:
        module: where it is in the package, such as ``callbacks``.
        name: of the class.
    """
    package = package_of_lightning()
    if package is None:
        return _Missing
    return getattr(importlib.import_module(f"{package}.{module}"), name)


def package_of_lightning() -> str | None:
    """Return the package that the program has imported, else the one that is installed."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    return next(iter(imported + installed), None)


def check_trainer(trainer: Any, needed: Iterable[Requirement]) -> None:
    """Refuse a trainer that lacks what an adapter needs; see `requirements.check`."""
    check(str(package_of_lightning()).partition(".")[0], trainer, needed)
