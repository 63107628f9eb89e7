"""What a setting of in-job restart is; `config.FaultToleranceConfig` lists all of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# Groups of settings, each a heading of the help.
TIMEOUTS = "Hang detection (seconds or 500ms, 15m, 2h; none = off)"
PROGRESS = "Progress"
DEVICES = "Devices"
HEALTH = "Health checks"
ATTRIBUTION = "Attribution service"
NODES = "Meeting point (torchrun's; one node needs none of them)"
OUTPUT = "Output"
UNUSED = "Accepted so that command lines keep working, but not needed"


class Setting(NamedTuple):
    """What there is to know about a setting besides its name, type and default.

    Attributes:
        group: heading it stands under.
        help: what it does, a sentence without its full stop.
        read: text or value from YAML to value; ValueError says what is wrong and what to do.
        metavar: what stands for the value in the help.
        aliases: other names of its option, without dashes.
        not_built: area of the product that is not built yet, "" = it works. The launcher refuses
            such a setting; `FaultToleranceConfig` holds it all the same.
    """

    group: str
    help: str
    read: Callable[[Any], Any]
    metavar: str = ""
    aliases: tuple[str, ...] = ()
    not_built: str = ""


def setting(
    default: Any,
    group: str,
    read_value: Callable[[Any], Any],
    metavar: str,
    help_text: str,
    *,
    aliases: tuple[str, ...] = (),
    not_built: str = "",
) -> Any:
    """Make a field of the dataclass."""
    one = Setting(group, help_text, read_value, metavar, aliases, not_built)
    metadata = {"setting": one}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)
