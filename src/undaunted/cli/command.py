"""All commands read their command lines, and explain themselves, by this."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from undaunted.base.options import SWITCH, Option, build, options_of, variable_of
from undaunted.base.text import did_you_mean
from undaunted.base.values import is_boolean
from undaunted.cli.job_file import Given, options_in
from undaunted.cli.messages import UsageError, complain, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


T = TypeVar("T")

_NEAR = 0.65  # as `difflib` measures it: one wrong letter of three is a slip

_WIDTH = 80
_COLUMN = 28  # where the explanations begin


class HelpAsked(Exception):  # noqa: N818 - nothing went wrong
    """``--help`` (``everything`` is false) or ``--help-all`` was given; nothing else was read."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        super().__init__()


class Words(NamedTuple):
    """A command line, sorted but not yet understood.

    Attributes:
        given: texts by name of option, in the order they were given.
        target: the user's program, or the one argument of the command; "" = not given.
        args: arguments of the program, untouched; or further operands.
    """

    given: dict[str, list[str]]
    target: str
    args: list[str]


class Parsed(msgspec.Struct, Generic[T], frozen=True):
    """The values of a command line, variables and defaults.

    Attributes:
        options: the values.
        sources: who gave an option, by its name; options at their defaults are not there.
        target, args: see `Words`.
    """

    options: T
    sources: Mapping[str, str]
    target: str = ""
    args: Sequence[str] = ()

    def is_given(self, name: str) -> bool:
        """Return whether the option is not at its default."""
        return name in self.sources

    def source(self, name: str) -> str:
        """Return who gave an option, or its spelling: an error message begins with it."""
        return self.sources.get(name, f"--{name}")

    def refuse_several(self, *names: str) -> None:
        """Refuse more than one of these options.

        Raises:
            UsageError: two are given.
        """
        given = [self.sources[name] for name in names if name in self.sources]
        if len(given) > 1:
            raise UsageError(f"{given[0]} and {given[1]} exclude one another; keep one of them")


class Command(msgspec.Struct, Generic[T], eq=False, dict=True):
    """One command: its options and the texts of its help.

    Attributes:
        name: ``run``, as in ``undaunted run``.
        schema: class whose fields are the options; all have defaults.
        usage: what follows the name.
        about: what it does, with examples; lines of at most 80 columns.
        tail: after the options.
        groups: headings in the order of the help; others follow.
        shown: names of the options that ``--help`` shows; () = all that are not rare.
        operand: what the one argument beside options is called, "" = there is none.
        more: how many operands there may be after it, of a command that runs no program.
        is_program: the operand is a program, and all after it belongs to that.
        has_variables: options have variables ``PET_...``; those of other tools always count.
        file: name of the option that gives a file of options; "" = there is none.
        accepted: options that are read and have no effect.
        refused: why options are refused, and the remedy, by name.
    """

    name: str
    schema: type[T]
    usage: str
    about: str
    tail: str = ""
    groups: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    operand: str = ""
    more: int = 0
    is_program: bool = False
    has_variables: bool = False
    file: str = ""
    accepted: tuple[Option, ...] = ()
    refused: Mapping[str, str] = {}

    def run(self, argv: Sequence[str], body: Callable[[Parsed[T]], int]) -> int:
        """Read the command line and do what it says; return the exit code."""
        try:
            return body(self.parse(argv, os.environ))
        except HelpAsked as asked:
            return self.explain(asked)
        except UsageError as error:
            return complain(self.name, error)

    def explain(self, asked: HelpAsked) -> int:
        """Print the help that was asked for; return the exit code."""
        return show(self.name, help_text(self, everything=asked.everything))

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """All options, in the order of the class."""
        return (*options_of(self.schema), *self.accepted)

    @cached_property
    def spellings(self) -> dict[str, Option]:
        """Options by spelling, ``--max-restarts`` and ``-m``."""
        found = {f"--{name}": option for option in self.options for name in option.names}
        return found | {f"-{one.about.short}": one for one in self.options if one.about.short}

    def parse(self, argv: Sequence[str], environ: Mapping[str, str]) -> Parsed[T]:
        """Read a command line; other options come from variables, from a file, from defaults.

        ``_`` may stand for ``-``, and NVRx's older ``--ft-param-X`` for ``--ft-X``; abbreviations
        are refused.

        Raises:
            UsageError: an option is unknown or not built yet, or its value makes no sense.
            HelpAsked: help was asked for.
        """
        return self.read(self.sort(argv), environ)

    def sort(self, argv: Sequence[str], others: Mapping[str, Option] | None = None) -> Words:
        """Find the options on a command line and, after them, the program.

        Args:
            argv: the words.
            others: options of another command that are taken as well, by spelling.

        Raises:
            UsageError: an option is unknown, or its value is missing.
            HelpAsked: help was asked for.
        """
        known = {**self.spellings, **(others or {})}
        given: dict[str, list[str]] = {}
        operands: list[str] = []
        rest = list(argv)
        while rest:
            word = rest.pop(0)
            if word in {"-h", "--help", "--help-all"}:
                raise HelpAsked(everything=word == "--help-all")
            if word == "--":
                operands += rest
                break
            if not word.startswith("-") or word == "-":
                operands.append(word)
                if not self.is_program:
                    continue
                operands += rest
                break
            option, text = self._take(word, rest, known)
            if not option.kind.repeat:
                given[option.name] = []
            given.setdefault(option.name, []).append(text)
        if not self.is_program and len(operands) > bool(self.operand) + self.more:
            one = bool(self.operand) and not self.more
            most = f"give one {self.operand}" if one else "leave it out"
            raise UsageError(f"unexpected {operands[-1]!r}: {most}; see --help")
        return Words(given, operands[0] if operands else "", operands[1:])

    def read(self, words: Words, environ: Mapping[str, str]) -> Parsed[T]:
        """Understand words; options of other commands among them are passed over.

        Raises:
            UsageError: an option is not built yet, or its value makes no sense; the file of options
                cannot be read.
        """
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        in_file = self._file(words.given, environ)
        for option in self.options:
            given = self._given(option, words.given, environ) or in_file.get(option.name)
            if given is None:
                continue
            value = _convert(option, *given)
            sources[option.name] = given.source
            if option.field:
                values[option.field] = value
        for name, reason in self.refused.items():
            if environ.get(variable_of(name)):
                raise UsageError(f"{variable_of(name)} {reason}")
        return Parsed(build(self.schema, values), sources, words.target, words.args)

    def unknown_variables(self, environ: Mapping[str, str]) -> str:
        """Return a line for the user about each variable that looks like an option's and is none's.

        They are not refused: the environment may be that of the cluster, made for another launcher.
        """
        known = {name for option in self.options for name in option.variables}
        names = [name for name, text in environ.items() if name.startswith("PET_") and text]
        lines = []
        for name in sorted(set(names) - known):
            old = name.replace("PET_FT_PARAM_", "PET_FT_")
            hint = did_you_mean(old, known, beginning="PET_", likeness=_NEAR)
            lines.append(f"the variable {name} sets no option{hint}")
        return "\n".join(lines)

    def _take(self, word: str, rest: list[str], known: Mapping[str, Option]) -> tuple[Option, str]:
        """Return the option that a word is and its text, which may be the first of the rest."""
        spelling, text = _split(word)
        option = known.get(_normalised(spelling))
        if option is None:
            raise UsageError(self._unknown(spelling, known))
        if not option.metavar:
            if text is not None:
                raise UsageError(f"{spelling} takes no value, but was given {text!r}")
            return option, "1"
        if text is not None:
            return option, text
        following = rest[0] if rest else None
        if option.kind.metavar == SWITCH:
            with_value = following is not None and is_boolean(following)
            return option, rest.pop(0) if with_value else "true"
        if following is None or following.startswith("--") or _normalised(following) in known:
            raise UsageError(f"{spelling} needs a value ({option.metavar})")
        return option, rest.pop(0)

    def _unknown(self, spelling: str, known: Mapping[str, Option]) -> str:
        name = _normalised(spelling).removeprefix("--")
        if name in self.refused:
            return f"{spelling} {self.refused[name]}"
        if name == "version":
            return f"unknown option {spelling}: `undaunted --version` prints the version"
        names = [f"--{other}" for other in (*self.refused, "help", "help-all")]
        names += [other for other in known if other.startswith("--")]
        begun = [other for other in names if len(name) > 2 and other.startswith(f"--{name}")]
        wanted = begun[0] if begun else f"--{name}"
        hint = did_you_mean(wanted, names, beginning="--", likeness=_NEAR)
        return f"unknown option {spelling}{hint or '; see --help'}"

    def _given(
        self, option: Option, given: Mapping[str, list[str]], environ: Mapping[str, str]
    ) -> Given | None:
        """Return what command line or variables say of an option."""
        if option.name in given:
            return Given(f"--{option.name}", given[option.name])
        for variable in option.variables if self.has_variables else option.about.variables:
            if environ.get(variable):
                return Given(variable, [environ[variable]])
        return None

    def _file(self, given: Mapping[str, list[str]], environ: Mapping[str, str]) -> dict[str, Given]:
        """Return what the file of options says, if there is one."""
        if not self.file:
            return {}
        option = self.spellings[f"--{self.file}"]
        path = self._given(option, given, environ)
        if path is None or not path.texts[-1]:
            return {}
        known = {name: one for name, one in self.spellings.items() if one is not option}
        return options_in(path.texts[-1], path.source, known, self.refused)


def _split(word: str) -> tuple[str, str | None]:
    """Split ``--name=value`` and ``-xvalue``."""
    if word.startswith("--"):
        spelling, equals, value = word.partition("=")
        return spelling, value if equals else None
    return word[:2], word[2:].removeprefix("=") if len(word) > 2 else None


def _normalised(spelling: str) -> str:
    if not spelling.startswith("--"):
        return spelling
    name = spelling.replace("_", "-")
    return name.replace("--ft-param-", "--ft-", 1) if name.startswith("--ft-param-") else name


def _convert(option: Option, source: str, texts: list[Any]) -> Any:
    try:
        values = [option.kind.read(text) for text in texts]
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    return [one for value in values for one in value] if option.kind.repeat else values[-1]


def help_text(command: Command[Any], *, everything: bool) -> str:
    """Text of ``--help``, or of ``--help-all``; at most 80 columns wide."""
    lines = [f"Usage: undaunted {command.name} {command.usage}".rstrip(), ""]
    lines += command.about.strip("\n").splitlines()
    defaults = command.schema()
    more: list[str] = []
    hidden = False
    for group, options in groups(command):
        shown = [option for option in options if everything or _is_shown(command, option)]
        if shown:
            lines += ["", f"{group}:"]
            lines += [line for option in shown for line in _lines(option, defaults)]
        else:
            more.append(group.partition(",")[0].lower())
        hidden = hidden or len(shown) < len(options)
    if command.tail:
        lines += ["", *_wrapped(command.tail, _WIDTH)]
    if hidden and not command.shown:
        also = f", also about {', '.join(more)}" if more else ""
        text = f"More options{also}: undaunted {command.name} --help-all"
        lines += ["", *_wrapped(text, _WIDTH)]
    return "\n".join(lines) + "\n"


def _is_shown(command: Command[Any], option: Option) -> bool:
    return option.name in command.shown if command.shown else not option.about.rare


def groups(command: Command[Any]) -> list[tuple[str, list[Option]]]:
    """Headings with their options; empty ones are left out."""
    order = dict.fromkeys((*command.groups, *(one.about.group for one in command.options)))
    found = [(name, [one for one in command.options if one.about.group == name]) for name in order]
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
    body = _wrapped(text, _WIDTH - _COLUMN)
    first = head.ljust(_COLUMN) + body.pop(0) if len(head) < _COLUMN - 1 else head
    return [first, *(" " * _COLUMN + line for line in body)]


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap  # not on the way to a run

    return textwrap.wrap(text, width, break_on_hyphens=False)
