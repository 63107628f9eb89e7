"""The name of this distribution, and whether NVIDIA's is installed as well."""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "nvidia-resiliency-ext"
VERSION = "0.6.0+undaunted.0.1.0"
_MARK = "+undaunted"
# importlib.metadata would find the same, but takes 40 ms to import.
_FOLDER = re.compile(r"nvidia_resiliency_ext-([^-]+)(?:-.*)?\.(?:dist|egg)-info")


def others(directories: Iterable[str] | None = None) -> list[str]:
    """Return the versions of distributions of this name that are not ours.

    Args:
        directories: to look through, those of ``sys.path`` by default.
    """
    found = set()
    for directory in sys.path if directories is None else directories:
        try:
            names = os.listdir(directory or ".")
        except OSError:
            continue  # a zip file, or a directory that is not there
        found |= {match[1] for name in names if (match := _FOLDER.fullmatch(name))}
    return sorted(version for version in found if _MARK not in version)


def warn_of_another(directories: Iterable[str] | None = None) -> None:
    """Warn if NVIDIA's own package lies in another directory of ``sys.path``."""
    for version in others(directories):
        warnings.warn(
            f"{NAME} {version} is installed beside undaunted's modules of that name; this process "
            f"uses undaunted's. Which one is used depends on the order of sys.path: remove one "
            f"of them with `pip uninstall {NAME}`.",
            RuntimeWarning,
            stacklevel=3,
        )
