"""An option is a typed field of a class. docs/design/settings.md says what follows from it.

Modules with such classes do without ``from __future__ import annotations``, so that fields can be
read without evaluating text.
"""

from __future__ import annotations

import operator
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
SWITCH = "true|false"  # what may stand for the value of a switch


class Kind(NamedTuple):
    """The way from text to a value.

    Attributes:
        read: text, or a value from YAML, to value; ValueError says what is wrong and what to do.
        metavar: what stands for the value in the help; "" = a flag, which takes none; ``SWITCH`` =
            the value may be left out, which means true.
        repeat: the option may be given several times; ``read`` makes lists, which are joined.
        choices: words that shells offer, () = none; ``read`` may take others, or several of them
            separated by commas.
    """

    read: Callable[[Any], Any]
    metavar: str = ""
    repeat: bool = False
    choices: tuple[str, ...] = ()


class Opt(NamedTuple):
    """The facts about an option beyond its name, type, kind and default.

    Attributes:
        help: what it does, a sentence without its full stop.
        group: heading it stands under; "" = that of the field before.
        metavar: instead of the kind's.
        shown: shown as the default where the value itself would not say it.
        aliases: other long spellings, without dashes.
        short: one-letter spelling, without its dash.
        rare: only shown by ``--help-all``.
        variables: of other tools, which mean this option; its own goes before.
        name: long spelling without dashes; "" = that of the field.
    """

    help: str
    group: str = ""
    metavar: str = ""
    shown: str = ""
    aliases: tuple[str, ...] = ()
    short: str = ""
    rare: bool = False
    variables: tuple[str, ...] = ()
    name: str = ""


class Part(NamedTuple):
    """Marks a field whose class has options of its own.

    Attributes:
        prefix: of their names, without the dash.
    """

    prefix: str


class Option(NamedTuple):
    """An option as the parser and the help see it.

    Attributes:
        name: long spelling without dashes.
        field: where its value goes, ``max_restarts`` or ``ft.segment``; "" = nowhere.
        kind: how its text is read.
        about: all else; its group is filled in.
    """

    name: str
    field: str
    kind: Kind
    about: Opt

    @property
    def names(self) -> tuple[str, ...]:
        """All long spellings."""
        return (self.name, *self.about.aliases)

    @property
    def metavar(self) -> str:
        """The word for the value in the help, "" for a flag."""
        return self.about.metavar or self.kind.metavar

    @property
    def variables(self) -> list[str]:
        """Environment variables that give the value; the first one that is set counts."""
        return [*map(variable_of, self.names), *self.about.variables]

    def default_of(self, options: object) -> str:
        """Return what the help shows as the default.

        Args:
            options: an object of the class, with all fields at their defaults.
        """
        if self.about.shown or not self.metavar or not self.field:
            return self.about.shown
        return as_text(self.value_in(options))

    def value_in(self, options: object) -> Any:
        """Return the value that the option has in an object of the class."""
        return operator.attrgetter(self.field)(options)


def variable_of(name: str) -> str:
    """Environment variable of an option, named as torchrun does."""
    return "PET_" + name.upper().replace("-", "_")


def as_text(value: object) -> str:
    """Write a value as it would be given on the command line."""
    if isinstance(value, signal.Signals):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    is_empty = isinstance(value, str | tuple | list | dict | frozenset) and not value
    return "none" if value is None or is_empty else str(value)


def options_of(schema: type) -> tuple[Option, ...]:
    """Return the options of a class, in the order of its fields; those of its bases come last."""
    return tuple(_options(schema, "", ""))


def _options(schema: type, prefix: str, path: str) -> Iterator[Option]:
    for one in schema.__mro__:
        group = ""
        for field, annotation in getattr(one, "__annotations__", {}).items():
            kind, about, part = map(partial(_mark, annotation), (Kind, Opt, Part))
            if part is not None:
                inner = f"{prefix}{part.prefix}-"
                yield from _options(annotation.__origin__, inner, f"{path}{field}.")
            if about is not None:
                group = about.group or group
                name = about.name or prefix + field.replace("_", "-")
                yield Option(name, path + field, kind, about._replace(group=group))


def _mark(annotation: Any, kind: type) -> Any:
    """Return the last mark of this kind of an annotation, None if it has none."""
    marks = reversed(getattr(annotation, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, kind)), None)


def build(schema: type[T], values: Mapping[str, Any]) -> T:
    """Make an object of the class; what is not given is at its default.

    Args:
        schema: the class.
        values: by `Option.field`.
    """
    own: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        part, dot, field = path.rpartition(".")
        (parts.setdefault(part, {}) if dot else own)[field] = value
    for part, inner in parts.items():
        own[part] = _annotation(schema, part).__origin__(**inner)
    return schema(**own)


def _annotation(schema: type, field: str) -> Any:
    found = (getattr(one, "__annotations__", {}).get(field) for one in schema.__mro__)
    return next(filter(None, found))
