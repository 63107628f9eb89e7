"""`FaultToleranceConfig`: undaunted's, where names that are no settings are left out by default."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.config import FaultToleranceConfig as UndauntedConfig
from undaunted.fault_tolerance.config import settings
from undaunted.fault_tolerance.config_file import read_section

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("nvrx")


class FaultToleranceConfig(UndauntedConfig):
    """See `undaunted.fault_tolerance.FaultToleranceConfig`.

    Differs from it in a default: `from_kwargs` and `from_yaml_file` leave out names they do not
    know, with a warning, as programs for NVRx pass everything they have.
    """

    @classmethod
    def from_kwargs(
        cls, ignore_not_recognized: bool = True, **values: object
    ) -> FaultToleranceConfig:
        """Make a configuration from fields by name; see the class it differs from."""
        unknown = sorted(values.keys() - settings().keys())
        if unknown and ignore_not_recognized:
            _log.warning("FaultToleranceConfig: unknown settings are left out: %s", unknown)
            values = {name: value for name, value in values.items() if name not in unknown}
        made = super().from_kwargs(ignore_not_recognized, **values)
        assert isinstance(made, cls)
        return made

    @classmethod
    def from_yaml_file(
        cls, cfg_path: str | Path, ignore_not_recognized: bool = True
    ) -> FaultToleranceConfig:
        """Make a configuration from a YAML file; see the class it differs from."""
        return cls.from_kwargs(ignore_not_recognized, **read_section(cfg_path))


__all__ = ["FaultToleranceConfig"]
