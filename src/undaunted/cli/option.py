"""What an option of `undaunted run` is, and the headings of the help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = "Workers"
PROGRAM = "Program"
STOPPING = "Stopping"
TESTING = "Testing"
METRICS = "Metrics"
SETTINGS = "Settings from a file"

# Variables of other tools that mean an option; its own goes before.
OTHER_VARIABLES = {
    "ft-log-level": "FT_LAUNCHER_LOGLEVEL",
    "workers-stop-timeout": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
}


class Option(NamedTuple):
    """One option.

    Attributes:
        name: long spelling without dashes; also gives the name of the variable.
        group: heading it stands under.
        help: what it does, a sentence without its full stop.
        convert: text to value; ValueError says what is wrong and what to do.
        metavar: what stands for the value in the help; "" for flags.
        kind: ``value``; ``flag`` (no value); ``switch`` (``true`` or ``false`` may follow).
        default: as it would be given; None = the value is None.
        default_text: shown as the default where the text itself would not say it.
        short: one-letter spelling without its dash.
        aliases: other long spellings.
        repeat: may be given several times; the value is a list.
        setting: field of `FaultToleranceConfig` that it sets, "" = none.
        not_built: area that is not built yet, "" = it works; asking for anything is refused.
    """

    name: str
    group: str
    help: str
    convert: Callable[[str], Any] = str
    metavar: str = ""
    kind: Literal["value", "flag", "switch"] = "value"
    default: str | None = None
    default_text: str = ""
    short: str = ""
    aliases: tuple[str, ...] = ()
    repeat: bool = False
    setting: str = ""
    not_built: str = ""

    @property
    def variable(self) -> str:
        """Environment variable that gives the default."""
        return variable_of(self.name)

    @property
    def variables(self) -> list[str]:
        """All variables that give the default; the first one that is set counts."""
        names = [variable_of(name) for name in (self.name, *self.aliases)]
        return [*names, OTHER_VARIABLES[self.name]] if self.name in OTHER_VARIABLES else names


def variable_of(name: str) -> str:
    """Environment variable of an option, named as torchrun does."""
    return "PET_" + name.upper().replace("-", "_")
