"""The options ``--ft-*`` that stand for the fields of `FaultToleranceConfig`."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING, Literal

from undaunted.cli.option import Option
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.config_values import LEVELS

if TYPE_CHECKING:
    from undaunted.fault_tolerance.config_schema import Setting


def option_name(field: str) -> str:
    """Name of the option for a field."""
    return "ft-" + field.replace("_", "-")


def ft_options() -> tuple[Option, ...]:
    """Make the options from the table of settings, in its order."""
    defaults = FaultToleranceConfig()
    return tuple(
        _option(field.name, field.metadata["setting"], getattr(defaults, field.name))
        for field in dataclasses.fields(FaultToleranceConfig)
    )


def as_text(field: str, value: object) -> str:
    """Write a value as it would be given on the command line."""
    if isinstance(value, signal.Signals):
        return value.name
    if field == "log_level":
        return next((name for name, level in LEVELS.items() if level == value), str(value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value else "none"


def _option(field: str, setting: Setting, default: object) -> Option:
    is_switch = isinstance(default, bool)
    kind: Literal["switch", "value"] = "switch" if is_switch else "value"
    return Option(
        option_name(field),
        setting.group,
        setting.help,
        setting.read,
        setting.metavar,
        kind,
        default=as_text(field, default),
        aliases=setting.aliases,
        setting=field,
        not_built=setting.not_built,
    )
