"""The schema of the journal for readers in other languages: a page, and a JSON Schema.

python -m undaunted.journal.schema > docs/journal-schema.md
python -m undaunted.journal.schema --json > docs/journal-schema.json
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Union, get_args

import msgspec

from undaunted.journal import event, events
from undaunted.journal.events import SCHEMA, AnyEvent
from undaunted.journal.schema_words import MEANING

_HEAD = """\
# Schema of the journal

<!-- Generated: python -m undaunted.journal.schema > docs/journal-schema.md -->

`RUN_DIR/journal-NODE.jsonl` has one JSON object per line, at most 1 MiB long. What each kind of
event means and holds is below; a field whose value is its default is left out. How the file is
written and read, and what happens to it when a disk fails: [The journal](design/journal.md).

Schema {schema}. Fields and kinds are only added: skip those you do not know. The number, a field of
`journal_opened`, goes up when an older reader would misread a journal. For programs there is a
[JSON Schema](journal-schema.json) of one line, for the kinds of this version.

## Fields of every event

| field | type | default | meaning |
|---|---|---|---|
| `event` | string | | the kind, one of those below |
{common}

Moments in nanoseconds are CLOCK_MONOTONIC: they can be compared within one boot of one machine.
"""
PARTS = (events.JobNodes, events.CheckResult)
_ATTRIBUTE = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_NAMES = {int: "integer", float: "number", str: "string", bool: "true or false"}


def page() -> str:
    """Return the text of docs/journal-schema.md."""
    parts = [_HEAD.format(schema=SCHEMA, common="\n".join(_rows(event.Event)))]
    parts += [_of_kind(kind) for kind in get_args(AnyEvent)]
    parts += ["## Parts of events\n", *(_described(part, "###") for part in PARTS)]
    return "\n".join(parts)


def json_schema() -> str:
    """Return the text of docs/journal-schema.json."""
    about = {"title": "A line of a journal of undaunted", "$comment": f"schema {SCHEMA}"}
    schema = {**about, **msgspec.json.schema(AnyEvent)}
    for part in schema["$defs"].values():  # indented as in the source, before Python 3.13
        part["description"] = inspect.cleandoc(part["description"]).replace("``", "`")
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"


def _of_kind(kind: type[event.Event]) -> str:
    return _described(kind, "##", str(kind.__struct_config__.tag))


def _described(struct: type[msgspec.Struct], heading: str, name: str = "") -> str:
    text = inspect.getdoc(struct) or ""
    prose = text.partition("\nAttributes:\n")[0].strip().replace("``", "`")
    lines = [f"{heading} {name or struct.__name__}", "", prose, ""]
    own = _rows(struct)
    if own:
        lines += ["| field | type | default | meaning |", "|---|---|---|---|", *own, ""]
    return "\n".join(lines)


def _rows(struct: type[msgspec.Struct]) -> list[str]:
    """Return a row for each field that not every event has."""
    common = () if struct is event.Event else event.Event.__struct_fields__
    meaning = _meanings(inspect.getdoc(struct) or "")
    return [
        f"| `{field.encode_name}` | {_type(field.type)} | {_default(field)} "
        f"| {meaning.get(field.name) or MEANING.get(field.name, 'see above')} |"
        for field in msgspec.structs.fields(struct)
        if field.name not in common
    ]


def _meanings(text: str) -> dict[str, str]:
    """Return what a docstring says about each attribute."""
    section = text.partition("\nAttributes:\n")[2]
    return {
        name.strip(): " ".join(words.split()).replace("``", "`").rstrip(".")
        for names, words in _ATTRIBUTE.findall(section)
        for name in names.split(",")
    }


def _type(of: Any) -> str:
    if of in (event.Nanoseconds, event.Seconds):
        return "nanoseconds" if of is event.Nanoseconds else "seconds"
    if of in _NAMES:
        return _NAMES[of]
    origin, args = getattr(of, "__origin__", None), get_args(of)
    if origin is list:
        return f"list of {_type(args[0])}"
    if origin is dict:
        return f"object of {_type(args[1])}"
    if type(None) in args:
        (other,) = (_type(arg) for arg in args if arg is not type(None))
        return f"{other} or null"
    if isinstance(of, type) and issubclass(of, msgspec.Struct):
        return f"[{of.__name__}](#{of.__name__.lower()})"
    if args and origin is not Union:  # a number with bounds
        return _type(args[0])
    raise TypeError(f"no words for {of}")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default_factory()).decode()}`"
    if field.default is msgspec.NODEFAULT:
        return ""
    return f"`{msgspec.json.encode(field.default).decode()}`"


if __name__ == "__main__":
    sys.stdout.write(json_schema() if sys.argv[1:] == ["--json"] else page())
