"""The schema of the journal for readers in other languages: a page, and a JSON Schema."""

from __future__ import annotations

import inspect
import re
from typing import Any, Union, get_args

import msgspec

from undaunted.journal import events
from undaunted.journal.events import SCHEMA, AnyEvent

_HEAD = """\
# Schema of the journal

<!-- Generated: make generated -->

`RUN_DIR/journal-NODE.jsonl` has one JSON object per line, at most 1 MiB long. The kinds of
events and their fields are below; a field whose value is its default is left out. [The
journal](design/journal.md) explains how the file is written and read, also when a disk fails.

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
# What a field means whose name says the same in every event.
MEANING = {
    "action": "what was decided, asked for, or recommended",
    "argv": "the user's program with its arguments",
    "at_ns": "when the rank did that, CLOCK_MONOTONIC",
    "boot_id": "of the machine, as in /proc/sys/kernel/random/boot_id",
    "checks": "those that were made",
    "count": "how many events are missing",
    "description": "in the words of the rank",
    "detail": "what is known so far, in words",
    "devices": "how many devices were looked at",
    "duration_ns": "how long it took",
    "elastic": "whether the number of nodes may change",
    "exception": "type and message of an unhandled exception",
    "exit_code": "of the process; null if a signal ended it",
    "first_iteration": "the lowest that a rank began with",
    "import_ns": "how long the imports took",
    "iteration": "by `undaunted.step`",
    "kind": "of the failure",
    "last_iteration": "the highest begun",
    "least": "how many nodes the job needs",
    "limit_source": "where the limit comes from: an option, `learned`, `calculated`",
    "limits": "by what is limited, in seconds; null = no limit",
    "line": "one line for the user",
    "local_rank": "number of the rank on its node",
    "master_addr": "address at which ranks meet",
    "master_port": "port at which ranks meet",
    "max_restarts": "how often the job may be restarted",
    "mode": "`warm` or `fresh`",
    "modules": "what was imported",
    "most": "how many nodes can take part",
    "name": "which",
    "node": "name of a node",
    "nproc_per_node": "ranks of this node",
    "number": "of the round",
    "outcome": "how the job has ended",
    "path": "of a file",
    "pid": "process id",
    "pids": "process ids, in the order of local ranks",
    "problem": "what is wrong, empty if nothing is",
    "rank": "global rank",
    "ranks": "global ranks",
    "reason": "why, in words",
    "restarts_left": "how many restarts remain",
    "run_id": "name of the run",
    "schema": "of the file: the number above",
    "seconds": "for how long",
    "signal": "name of a signal, such as `SIGKILL`",
    "since_ns": "when it happened, CLOCK_MONOTONIC",
    "sources": "by the same names: where each limit comes from",
    "stacks": "path of the file with the evidence in full",
    "subject": "what was checked",
    "text": "in words",
    "timeout_s": "how long it might take",
    "traceback": "of the exception, as Python prints it",
    "unkillable": "process ids",
    "version": "of undaunted",
    "victims": "names of nodes",
    "suspects": "global ranks",
    "waiting": "global ranks",
    "worker_start": "`warm` or `fresh`, as was asked for",
    "world_size": "ranks of the job",
}
PARTS = (events.JobNodes, events.CheckResult)
_ATTRIBUTE = re.compile(r"^ {4}(\w[\w, ]*): (.*(?:\n {8,}.*)*)", re.MULTILINE)
_NAMES = {int: "integer", float: "number", str: "string", bool: "true or false"}


def page() -> str:
    """Return the text of docs/journal-schema.md."""
    parts = [_HEAD.format(schema=SCHEMA, common="\n".join(_rows(events.Event)))]
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


def _of_kind(kind: type[events.Event]) -> str:
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
    common = () if struct is events.Event else events.Event.__struct_fields__
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
    if of in (events.Nanoseconds, events.Seconds):
        return "nanoseconds" if of is events.Nanoseconds else "seconds"
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
