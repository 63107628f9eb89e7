"""Splitting a command line into options, the user's program and its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.cli.not_built import NOT_BUILT
from undaunted.cli.option import Option, variable_of
from undaunted.cli.options import OPTIONS
from undaunted.fault_tolerance.config_values import is_boolean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class UsageError(Exception):
    """The command line cannot be run as it is; the message says why and what to do."""


class Parsed(NamedTuple):
    """What a command line says.

    Attributes:
        values: value by name of option; every option is there.
        sources: who gave it (``--name`` or the variable); options at their default are not there.
        target: the user's program, "" if there is none.
        args: everything after it, untouched.
        wants_help: help was asked for; nothing else was read.
    """

    values: dict[str, Any]
    sources: dict[str, str]
    target: str = ""
    args: list[str] = []  # noqa: RUF012 - a default that is never changed
    wants_help: bool = False


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Read a command line; options not on it come from ``PET_*`` variables, then from defaults.

    Spellings with ``_`` for ``-`` and NVRx's older ``--ft-param-...`` are the same option.
    Abbreviations are not accepted. The first word that is no option is the user's program, and
    everything after it belongs to the program.

    Raises:
        UsageError: an option is unknown or not built yet, or its value makes no sense.
    """
    given: dict[str, list[str]] = {}
    rest = _take_options(argv, given)
    if rest is None:
        return Parsed({}, {}, wants_help=True)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        source, texts = _texts_of(option, given, environ)
        values[option.name] = _convert(option, source, texts)
        if source:
            refuse_not_built(option, values[option.name], source)
            sources[option.name] = source
    _refuse_variables(environ)
    return Parsed(values, sources, rest[0] if rest else "", list(rest[1:]))


def words_of_option(argv: Sequence[str]) -> int:
    """Return how many words the option at the beginning takes: 1, or 2 with its value.

    Raises:
        UsageError: there is no such option, or its value is missing.
    """
    spelling, value = _split(argv[0])
    option = _find(spelling)
    if option.kind == "flag" or value is not None:
        return 1
    return 1 if _following_value(option, spelling, argv[1:2]) is None else 2


def refuse_not_built(option: Option, value: Any, source: str) -> None:
    """Refuse a value that asks for something that is not built yet.

    Raises:
        UsageError: it does.
    """
    if option.not_built and value:
        raise UsageError(f"{source} belongs to {option.not_built}: not built yet, leave it out")


def _take_options(argv: Sequence[str], given: dict[str, list[str]]) -> Sequence[str] | None:
    """Collect options into ``given``; return the words from the program on, None for help."""
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word == "--":
            return argv[position:]
        if word in {"-h", "--help"}:
            return None
        if not word.startswith("-") or word == "-":
            return argv[position - 1 :]
        spelling, value = _split(word)
        option = _find(spelling)
        if option.kind == "flag":
            if value is not None:
                raise UsageError(f"{spelling} takes no value, but was given {value!r}")
            value = "1"
        elif value is None:
            value = _following_value(option, spelling, argv[position : position + 1])
            if value is None:  # a switch on its own
                value = "true"
            else:
                position += 1
        if not option.repeat:
            given[option.name] = []
        given.setdefault(option.name, []).append(value)
    return []


def _split(word: str) -> tuple[str, str | None]:
    """Split ``--name=value`` and ``-xvalue``."""
    if word.startswith("--"):
        spelling, equals, value = word.partition("=")
        return spelling, value if equals else None
    return word[:2], word[2:].removeprefix("=") if len(word) > 2 else None


def _following_value(option: Option, spelling: str, following: Sequence[str]) -> str | None:
    """Return the next word if it is the option's value, None for a switch without one."""
    word = following[0] if following else None
    if option.kind == "switch":
        return word if word is not None and is_boolean(word) else None
    if word is None or word.startswith("--") or _lookup(word) is not None:
        raise UsageError(f"{spelling} needs a value ({option.metavar})")
    return word


def _find(spelling: str) -> Option:
    option = _lookup(spelling)
    if option is not None:
        return option
    name = _normalised(spelling)
    for area, names in NOT_BUILT:
        if name in names:
            raise UsageError(f"{spelling} belongs to {area}: not built yet, leave it out")
    raise UsageError(f"unknown option {spelling}{_nearest(name)}")


def _lookup(spelling: str) -> Option | None:
    if not spelling.startswith("-"):
        return None
    name = _normalised(spelling)
    is_long = spelling.startswith("--")
    for option in OPTIONS:
        if (is_long and name in (option.name, *option.aliases)) or (
            not is_long and spelling == f"-{option.short}"
        ):
            return option
    return None


def _normalised(spelling: str) -> str:
    name = spelling.removeprefix("--").replace("_", "-")
    return "ft-" + name.removeprefix("ft-param-") if name.startswith("ft-param-") else name


def _nearest(name: str) -> str:
    import difflib

    known = [spelling for option in OPTIONS for spelling in (option.name, *option.aliases)]
    known += [other for _, names in NOT_BUILT for other in names]
    begun = [other for other in known if len(name) > 2 and other.startswith(name)]
    close = begun or difflib.get_close_matches(name, [*known, "help"], 1)
    return f"; did you mean --{close[0]}?" if close else "; see --help"


def _texts_of(
    option: Option, given: Mapping[str, list[str]], environ: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return who gave the option ("" = nobody) and the texts."""
    if option.name in given:
        return f"--{option.name}", given[option.name]
    for variable in option.variables:
        if environ.get(variable):
            return variable, [environ[variable]]
    return "", [] if option.default is None else [option.default]


def _convert(option: Option, source: str, texts: list[str]) -> Any:
    try:
        converted = [option.convert(text) for text in texts]
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    if option.repeat:
        return converted
    return converted[0] if converted else None


def _refuse_variables(environ: Mapping[str, str]) -> None:
    for area, names in NOT_BUILT:
        for name in names:
            if environ.get(variable_of(name)):
                raise UsageError(f"{variable_of(name)} belongs to {area}: not built yet, unset it")
