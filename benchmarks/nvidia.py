"""Whether NVIDIA's own package is there to be compared with, not our modules of the same name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGE = "nvidia_resiliency_ext"


def has_nvrx() -> bool:
    """Whether `nvidia_resiliency_ext` would be NVIDIA's: only ours has a module `_installed`."""
    spec = importlib.util.find_spec(PACKAGE)
    return (
        spec is not None
        and spec.origin is not None
        and not Path(spec.origin).with_name("_installed.py").exists()
    )
