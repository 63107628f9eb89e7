"""Parsers of argparse from the same options: for completion in shells, and for programs.

`undaunted` itself reads its words without argparse, see docs/design/settings.md.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from undaunted.base.options import SWITCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from undaunted.base.options import Kind, Option
    from undaunted.cli.command import Command

# Other names of commands, as in pyproject.toml.
_NAMES = {"ft_launcher": "run", "nvrx-control": "coordinator", "nvrx-smonsvc": "slurm-monitor"}


def argument_parser(
    command: Command[Any], environ: Mapping[str, str] | None = None
) -> argparse.ArgumentParser:
    """Make a parser that takes the options of a command, named as argparse does.

    Settings that are not given are None, so that those of a file can go between; other options are
    at their defaults.

    Args:
        command: which one.
        environ: has the variables ``PET_...``; None = they do not count.

    Returns:
        A parser; the program and its arguments are ``training_script`` and
        ``training_script_args``, as torchrun has them.
    """
    parser = argparse.ArgumentParser(
        f"undaunted {command.name}",
        allow_abbrev=False,
        description=command.about,
        epilog=command.tail,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_options(parser, command.options, spell_with_underscores=True)
    defaults = command.schema()
    for option in command.options:
        dest = option.name.replace("-", "_")
        given = next(filter(None, map((environ or {}).get, option.variables)), None)
        if given is not None:
            parser.set_defaults(**{dest: option.kind.read(given)})
        elif option.field and not option.field.startswith("ft."):
            parser.set_defaults(**{dest: option.value_in(defaults)})
    if command.is_program:
        parser.add_argument("training_script", metavar=command.operand)
        parser.add_argument("training_script_args", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    elif command.operand:
        parser.add_argument("operand", metavar=command.operand, nargs="?")
    return parser


def complete(names: Iterable[str]) -> None:
    """Answer the shell that asks how a command line goes on, by argcomplete; does not return then.

    Args:
        names: of the commands.
    """
    try:
        import argcomplete
    except ImportError:
        return
    words = os.environ.get("COMP_LINE", "").split()
    program = os.path.basename(words[0]) if words else ""  # noqa: PTH119 - a word, no path
    parser = argparse.ArgumentParser(program, allow_abbrev=False)
    if program in _NAMES:
        _add_command(parser, _NAMES[program])
    else:
        commands = parser.add_subparsers()
        for name in names:
            one = commands.add_parser(name, allow_abbrev=False)
            if name in words:
                _add_command(one, name)
    argcomplete.autocomplete(parser, always_complete_options="long")


def _add_command(parser: argparse.ArgumentParser, name: str) -> None:
    module = name.replace("-", "_")
    command: Command[Any] = getattr(import_module(f"undaunted.cli.{module}"), module.upper())
    _add_options(parser, command.options)
    parser.add_argument("--help-all", action="store_true")
    if name in {"chaos", "srun"}:
        from undaunted.cli.options import RUN

        _add_options(parser, RUN.options)
    if command.operand:
        parser.add_argument("operand", nargs=argparse.REMAINDER if command.is_program else "?")


def _add_options(
    parser: argparse.ArgumentParser,
    options: Iterable[Option],
    *,
    spell_with_underscores: bool = False,
) -> None:
    for option in options:
        names = [f"--{name}" for name in option.names]
        if spell_with_underscores:
            names += [f"--{name.replace('-', '_')}" for name in option.names if "-" in name]
        if option.about.short:
            names.append(f"-{option.about.short}")
        about: dict[str, Any] = {"dest": option.name.replace("-", "_")}
        about["help"] = option.about.help.replace("%", "%%")
        if not option.metavar:
            parser.add_argument(*names, action="store_true", **about)
            continue
        about["metavar"] = option.metavar
        about["type"] = _reader(option.kind.read)
        if option.kind.metavar == SWITCH:
            about |= {"nargs": "?", "const": True}
        elif option.kind.repeat:
            about["action"] = "extend"
        action = parser.add_argument(*names, **about)
        if option.kind.choices:
            action.completer = partial(_offer, option.kind)  # type: ignore[attr-defined]


def _offer(kind: Kind, prefix: str, **_: object) -> list[str]:
    """Return how a value may go on, for argcomplete; in a list, by one more word."""
    head = prefix[: prefix.rfind(",") + 1]
    return [head + word for word in kind.choices if not head or _takes(kind, head + word)]


def _takes(kind: Kind, text: str) -> bool:
    try:
        kind.read(text)
    except ValueError:
        return False
    return True


def _reader(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Have argparse show what a reader complains of."""

    def call(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return call
