"""Which distribution this is, and whether NVIDIA's is installed as well."""

from __future__ import annotations

import warnings
from importlib.metadata import Distribution, distributions
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "nvidia-resiliency-ext"
VERSION = "0.6.0+undaunted.0.1.0"
_MARK = "+undaunted"


def others(found: Iterable[Distribution] | None = None) -> list[str]:
    """Return the versions of distributions of this name that are not ours.

    Args:
        found: distributions to look through; those on ``sys.path`` by default.
    """
    every = distributions(name=NAME) if found is None else found
    return sorted({one.version for one in every if _MARK not in one.version})


def warn_of_another(found: Iterable[Distribution] | None = None) -> None:
    """Warn if NVIDIA's own package lies in another directory of ``sys.path``."""
    for version in others(found):
        warnings.warn(
            f"{NAME} {version} is installed beside undaunted's modules of that name; this process "
            f"uses undaunted's. Which one is used depends on the order of sys.path: remove one "
            f"of them with `pip uninstall {NAME}`.",
            RuntimeWarning,
            stacklevel=3,
        )
