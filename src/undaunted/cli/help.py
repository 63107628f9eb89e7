"""The help and the documentation of `undaunted run`, both from the table of options."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from undaunted.cli.options import GROUPS, OPTIONS

if TYPE_CHECKING:
    from undaunted.cli.option import Option

_WIDTH = 80
_COLUMN = 28  # where the explanations begin

_USAGE = "undaunted run [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]"
_EXAMPLES = (
    (
        "4 workers; after a crash or a hang the job goes on",
        "--nproc-per-node 4 --max-restarts 3 train.py --lr 0.1",
    ),
    (
        "one worker per GPU; a rank that is silent for 2 minutes hangs",
        "--nproc-per-node auto --ft-rank-heartbeat-timeout 2m train.py",
    ),
    (
        "a module; output in files and, with a prefix, on the console",
        "--nproc-per-node 2 --tee 3 -m package.train",
    ),
    (
        "rehearse: kill rank 1 at iteration 60",
        "--nproc-per-node 2 --max-restarts 1 --inject-fault sigkill:rank=1,iteration=60 train.py",
    ),
)
_NOTES = (
    "Everything after SCRIPT belongs to the script. Options are those of torchrun and of NVRx's "
    "ft_launcher; _ may stand for -, and --ft-param-X for --ft-X. Each has a variable for its "
    "default, as in PET_MAX_RESTARTS=3."
)
_DOCUMENT_HEAD = """\
# Command line

<!-- Generated: make generated -->

`undaunted run` starts a program as so many workers on this node, watches them, and restarts all of
them when one crashes or hangs. `ft_launcher` is the same command under the name users of NVRx know.

```text
{usage}
```

{notes}

An option on the command line goes before its variable, and that before the default. Empty variables
count as not set. An option of torchrun or NVRx whose area is not built yet is refused, never
ignored. The command exits with 2 when it cannot be run as given; nothing has been started then. See
[exit codes](exit-codes.md) for the others.

Times are seconds or a number with a unit: `500ms`, `90s`, `15m`, `2h`, `1d`. Where `none` is
allowed, `null` and nothing mean the same.

## Examples

{examples}
"""


def run_help() -> str:
    """Text of `undaunted run --help`, at most 80 columns wide."""
    lines = [f"Usage: {_USAGE}", ""]
    lines += ["Run SCRIPT as several workers and restart them when one crashes or hangs.", ""]
    lines.append("Examples:")
    for what, arguments in _EXAMPLES:
        lines.append(f"  # {what}")
        lines += _command_lines(arguments, "  ")
    for group, options in _groups():
        lines += ["", f"{group}:"]
        for option in options:
            lines += _help_lines(option)
    lines += ["", *textwrap.wrap(_NOTES, _WIDTH)]
    return "\n".join(lines) + "\n"


def run_document() -> str:
    """Text of docs/command-line.md."""
    examples = []
    for what, arguments in _EXAMPLES:
        lines = "\n".join(_command_lines(arguments, ""))
        examples.append(f"{what[0].upper()}{what[1:]}:\n\n```text\n{lines}\n```")
    parts = [
        _DOCUMENT_HEAD.format(
            usage=_USAGE,
            notes="\n".join(textwrap.wrap(_NOTES.replace("_ may", "`_` may"), 100)),
            examples="\n\n".join(examples),
        )
    ]
    for group, options in _groups():
        parts.append(
            f"\n## {group}\n\n| option | default | variable | meaning |\n|---|---|---|---|\n"
        )
        parts += [_table_row(option) for option in options]
    return "".join(parts)


def _groups() -> list[tuple[str, list[Option]]]:
    """Headings with the options that work; empty ones are left out."""
    built = [option for option in OPTIONS if not option.not_built]
    groups = [(name, [option for option in built if option.group == name]) for name in GROUPS]
    return [(name, options) for name, options in groups if options]


def _spellings(option: Option) -> str:
    names = [f"-{option.short}"] if option.short else []
    names += [f"--{name}" for name in (option.name, *option.aliases)]
    value = f"[={option.metavar}]" if option.kind == "switch" else f" {option.metavar}".rstrip()
    return ", ".join(names) + value


def _default(option: Option) -> str:
    if option.kind == "flag":
        return ""
    return option.default_text or option.default or ""


def _help_lines(option: Option) -> list[str]:
    default = _default(option)
    text = option.help + (f" [{default}]" if default else "")
    head = "  " + _spellings(option)
    body = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False)
    first = head.ljust(_COLUMN) + body.pop(0) if len(head) < _COLUMN - 1 else head
    return [first, *(" " * _COLUMN + line for line in body)]


def _command_lines(arguments: str, indent: str) -> list[str]:
    """Write a command, over several lines where it is too long for one."""
    lines = textwrap.wrap(
        f"undaunted run {arguments}",
        _WIDTH - 2,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_on_hyphens=False,
    )
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def _table_row(option: Option) -> str:
    default = _default(option)
    if default and not option.default_text:
        default = f"`{default}`"
    spellings = f"`{_spellings(option)}`".replace("|", "\\|")
    cells = (spellings, default, f"`{option.variable}`", option.help)
    return "| " + " | ".join(cells) + " |\n"
