"""The analyses that `undaunted mcp` offers under NVRx's names, and their arguments."""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING, Any

from undaunted.services.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODULES = {tool.__name__: tool for tool in (
    Tools.log_analyzer, Tools.fr_analyzer, Tools.log_fr_analyzer
)}  # fmt: skip


def register_all_modules() -> None:
    """Do nothing: the analyses are known from the start."""


def create_args_from_dict(module_name: str, config: Mapping[str, Any]) -> argparse.Namespace:
    """Return the arguments of an analysis; those that are not given are at their defaults, or None.

    Args:
        module_name: ``log_analyzer``, ``fr_analyzer`` or ``log_fr_analyzer``.
        config: arguments by name.

    Raises:
        ValueError: there is no such analysis.
    """
    if module_name not in _MODULES:
        raise ValueError(f"there is no module {module_name!r}; there are: {', '.join(_MODULES)}")
    _, *parameters = inspect.signature(_MODULES[module_name]).parameters.values()
    defaults = {
        one.name: None if one.default is inspect.Parameter.empty else one.default
        for one in parameters
    }
    return argparse.Namespace(**defaults | dict(config))
