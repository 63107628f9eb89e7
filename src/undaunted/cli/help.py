"""The help of every command, from its options."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from undaunted.base.options import SWITCH

if TYPE_CHECKING:
    from undaunted.base.options import Option
    from undaunted.cli.command import Command

_WIDTH = 80
_COLUMN = 28  # where the explanations begin


def help_text(command: Command[Any], *, everything: bool) -> str:
    """Text of ``--help``, or of ``--help-all``; at most 80 columns wide."""
    lines = [f"Usage: undaunted {command.name} {command.usage}".rstrip(), ""]
    lines += command.about.strip("\n").splitlines()
    defaults = command.schema()
    more: list[str] = []
    for group, options in groups(command):
        shown = [option for option in options if everything or _is_shown(command, option)]
        if shown:
            lines += ["", f"{group}:"]
            lines += [line for option in shown for line in _lines(option, defaults)]
        else:
            more.append(group.partition(",")[0].lower())
    if command.tail:
        lines += ["", *textwrap.wrap(command.tail, _WIDTH)]
    if more and not command.shown:
        text = f"More options, also about {', '.join(more)}: undaunted {command.name} --help-all"
        lines += ["", *textwrap.wrap(text, _WIDTH, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"


def _is_shown(command: Command[Any], option: Option) -> bool:
    return option.name in command.shown if command.shown else not option.about.rare


def groups(command: Command[Any]) -> list[tuple[str, list[Option]]]:
    """Headings with the options that work; empty ones are left out."""
    built = [option for option in command.options if not option.about.not_built]
    order = dict.fromkeys((*command.groups, *(option.about.group for option in built)))
    found = [(name, [one for one in built if one.about.group == name]) for name in order]
    return [(name, options) for name, options in found if options]


def spellings(option: Option) -> str:
    """All spellings of an option with what stands for its value."""
    names = [f"-{option.about.short}"] if option.about.short else []
    names += [f"--{name}" for name in option.names]
    value = f"[={SWITCH}]" if option.kind.metavar == SWITCH else f" {option.metavar}".rstrip()
    return ", ".join(names) + value


def _lines(option: Option, defaults: object) -> list[str]:
    default = option.default_of(defaults)
    text = option.about.help + (f" [{default}]" if default not in {"", "none"} else "")
    head = "  " + spellings(option)
    body = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False)
    first = head.ljust(_COLUMN) + body.pop(0) if len(head) < _COLUMN - 1 else head
    return [first, *(" " * _COLUMN + line for line in body)]
