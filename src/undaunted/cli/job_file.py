"""All options of a command from one file: `undaunted run --config job.yaml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from undaunted.base.text import did_you_mean
from undaunted.cli.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from undaunted.base.options import Option

# Heading of settings that go without their ``ft-``, as in files of ``--ft-cfg-path``.
_FT = "fault_tolerance"


class Given(NamedTuple):
    """The source of the value of an option.

    Attributes:
        source: who, for messages: ``--max-restarts``, ``max_restarts in job.yaml``.
        texts: as on a command line; of settings of ``fault_tolerance`` also lists and mappings.
    """

    source: str
    texts: list[Any]


def options_in(
    path: str, source: str, known: Mapping[str, Option], refused: Mapping[str, str]
) -> dict[str, Given]:
    """Return what a file says, by the name of the option.

    Args:
        path: of the file: options by name, below headings or not.
        source: who gave the path, for messages.
        known: options by spelling.
        refused: why others are refused, by name.

    Raises:
        UsageError: the file cannot be read, or has a name that is no option, or one twice.
    """
    from undaunted.fault_tolerance.config_file import read_texts

    try:
        document = read_texts(path)
    except OSError as error:
        raise UsageError(f"{source}: {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    found: dict[str, Given] = {}
    for name, spelling, value in _lines(document, known):
        option = known.get(spelling)
        if option is None:
            reason = refused.get(spelling.removeprefix("--"))
            raise UsageError(f"{path}: {name} {reason or _no_option(spelling, known)}")
        if option.name in found:
            raise UsageError(f"{path}: {name} is given twice; keep one of them")
        if value not in (None, ""):  # as of variables: not set
            found[option.name] = Given(f"{name} in {path}", _texts(option, value, path))
    return found


def _lines(
    document: Mapping[str, Any], known: Mapping[str, Option]
) -> Iterator[tuple[str, str, Any]]:
    """Yield names, spellings and values; those below headings, too."""
    for name, value in document.items():
        spelling = _spelling(name)
        if spelling in known or not isinstance(value, dict):
            if spelling in known or value not in (None, ""):  # a heading without lines
                yield name, spelling, value
            continue
        for inner, content in value.items():
            spelling = _spelling(inner)
            if name == _FT and spelling not in known:
                spelling = _spelling(f"ft-{inner}")
            yield inner, spelling, content


def _spelling(name: str) -> str:
    return "--" + str(name).replace("_", "-")


def _no_option(spelling: str, known: Mapping[str, Option]) -> str:
    names = [one.removeprefix("--") for one in known if len(one) > 2]
    hint = did_you_mean(spelling.removeprefix("--"), names)
    return f"is no option{hint or '; see --help-all'}"


def _texts(option: Option, value: Any, path: str) -> list[Any]:
    if option.field.startswith("ft."):
        return [value]
    if isinstance(value, dict):
        between = "=" if "=" in option.metavar else ":"
        pairs = [_text(each, option, path, f"{name}{between}") for name, each in value.items()]
        return [",".join(pairs)]
    if isinstance(value, list):
        words = [_text(each, option, path) for each in value]
        return words if option.kind.repeat else [",".join(words)]
    return [value]


def _text(value: Any, option: Option, path: str, before: str = "") -> str:
    if not isinstance(value, str):
        raise UsageError(f"{path}: {option.name} has {value!r} where a text or number must be")
    return before + value
