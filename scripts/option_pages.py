"""The pages docs/command-line.md, docs/commands.md and docs/configuration.md, from the options."""

from __future__ import annotations

import re
import textwrap
import typing
from importlib import import_module
from typing import TYPE_CHECKING, Any

from undaunted.base.options import as_text
from undaunted.cli.command import groups, spellings
from undaunted.cli.main import COMMANDS
from undaunted.cli.options import GROUPS, RUN
from undaunted.fault_tolerance.config import FaultToleranceConfig, settings

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.base.options import Option
    from undaunted.cli.command import Command

_COMMAND_LINE = """\
# Command line

<!-- Generated: make generated -->

`undaunted run` starts a program as several workers on this node, watches them, and restarts all of
them when one crashes or hangs. `ft_launcher` is the same command under the name users of NVRx know.
`undaunted run --help` shows the options that people use, `--help-all` every option; all are on this
page.

```text
{usage}
```

{notes}

An option on the command line goes before its variable, and that before the default. Empty variables
count as not set. An option of torchrun that undaunted does not offer is refused, never
ignored. The command exits with 2 when it cannot be run as given; nothing has been started then. See
[exit codes](exit-codes.md) for the others.

Times are seconds or a number with a unit: `500ms`, `90s`, `15m`, `2h`, `1d`. If `none` is
allowed, `null` and nothing mean the same.

[All commands](commands.md) read their options in the same way.

## Completion in shells

```text
pip install 'undaunted[completion]'
eval "$(undaunted completion bash)"
```

The second line, in `~/.bashrc`, has bash complete commands, options and files. In `~/.zshrc` it
says `zsh`; with fish it is `undaunted completion fish | source`.

## Examples

{examples}
"""
_COMMANDS = """\
# All commands

<!-- Generated: make generated -->

The help of each command, with all of its options. `undaunted COMMAND --help` prints the same text
in a terminal. Values are written as for [undaunted run](command-line.md): times are seconds or have
a unit, and `_` may stand for `-` in names.
"""
_CONFIGURATION = """\
# Configuration

<!-- Generated: make generated -->

Every option of `undaunted run` can be given on the command line, by a variable `PET_...`, in a
file and [from Python](python-api.md). Settings of in-job restart are fields of
`FaultToleranceConfig`, too; their names are those of NVRx, of all its versions.

## A file of options

<!-- file: job.yaml -->
```yaml
workers:
  nproc-per-node: 2
  max-restarts: 3
output:
  tee: 3
  local-ranks-filter: [0]
fault_tolerance:
  rank_heartbeat_timeout: 10m
inject-fault:
  - sigkill:rank=1,iteration=1
```

<!-- file: train.py -->
```python
import undaunted

for iteration in range(3):
    undaunted.step(iteration)
print("trained")
```

<!-- run -->
```bash
undaunted run --config job.yaml --max-restarts 1 train.py
```

* The names are those of [all options](command-line.md), with `-` or `_`. They may stand below
  headings of your choice, such as those of the help. Below `fault_tolerance` the settings of this
  page go without their `ft-`.
* Values are written as on the command line: `nnodes: 2:4`. A list stands for several values, and
  lines `NAME: VALUE` for `NAME=VALUE,...`. A flag is `true`. Empty values count as not set.
* A name that is no option is an error that names the nearest one.
* Paths are relative to where the command is started.
* Variables go before the file, and options before variables. The file goes before that of
  `--ft-cfg-path`.

## A file of settings of in-job restart

<!-- file: ft.yaml -->
```yaml
fault_tolerance:
  rank_heartbeat_timeout: 10m
  rank_section_timeouts:
    setup: 600
    step: 3m
    checkpointing: none
  max_no_progress_cycles: 5
```

<!-- run -->
```bash
undaunted run --ft-cfg-path ft.yaml --ft-rank-heartbeat-timeout 5m train.py
```

* The section `fault_tolerance` may stand at any depth, so the file may be that of a training
  framework. Two sections are an error, and so is none, unless options or variables give settings
  beside it; with `--ft-ignore-missing-cfg` a missing file or section means the defaults.
* A name that is no setting is an error that names the nearest one; with
  `--ft-ignore-unknown-settings` it is passed over.
* Defaults are overridden by the file, that by variables, and those by options.
* Times are seconds or text with a unit (`500ms`, `90s`, `15m`, `2h`); `none` and `null` turn a test
  off. Signals and log levels are names in any case, or numbers.
* Settings that exclude one another, and a file that turns off every timeout, are reported when the
  launcher starts.

How to choose timeouts: [Limits](timeouts.md). A limit that is not set is learned while the job
runs.

## In Python

```python
from undaunted.fault_tolerance import FaultToleranceConfig

config = FaultToleranceConfig(rank_heartbeat_timeout="15m", rank_termination_signal="SIGTERM")
assert config.rank_heartbeat_timeout == 900.0
config.to_yaml_file("ft-out.yaml")
assert FaultToleranceConfig.from_yaml_file("ft-out.yaml") == config
```

Values are checked and converted when they are set; a wrong one is a `ValueError` that names
the field. `from_kwargs` and `from_yaml_file` refuse unknown names unless told
`ignore_not_recognized=True`; `from_args` always does. `is_progress_tracking_enabled` tells whether
rounds that do not advance end the job.

## Settings
"""


def command_line() -> str:
    """Text of docs/command-line.md."""
    usage = f"undaunted {RUN.name} {RUN.usage}"
    notes = "\n".join(textwrap.wrap(RUN.tail.replace("_ may", "`_` may"), 100))
    parts = [_COMMAND_LINE.format(usage=usage, notes=notes, examples="\n\n".join(_examples()))]
    head = "| option | default | variable | meaning |\n|---|---|---|---|\n"
    for group, options in groups(RUN):
        parts.append(f"\n## {group}\n\n{head}")
        parts += [_option_row(option) for option in options]
    return "".join(parts)


def commands() -> str:
    """Text of docs/commands.md."""
    parts = [_COMMANDS]
    for name in COMMANDS:
        module = import_module(f"undaunted.cli.{name.replace('-', '_')}")
        command = getattr(module, name.replace("-", "_").upper())
        parts.append(_section(command, ()))
        actions = getattr(module, "ACTIONS", {}).values()
        parts += [_section(action, command.options) for action in actions]
    return "".join(parts)


def configuration() -> str:
    """Text of docs/configuration.md."""
    parts = [_CONFIGURATION]
    for group in GROUPS:
        rows = [_field_row(one) for one in settings().values() if one.about.group == group]
        if rows:
            parts.append(
                f"\n### {group}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
            )
            parts += rows
    return "".join(parts)


def _examples() -> list[str]:
    """Return the examples of the help as blocks with a sentence each."""
    text = textwrap.dedent(RUN.about.partition("Examples:\n")[2])
    found = re.findall(r"# (.+)\n((?:[^#].*\n)+)", text)
    return [
        f"{what[0].upper()}{what[1:]}:\n\n```text\n{lines.rstrip()}\n```" for what, lines in found
    ]


def _option_row(option: Option) -> str:
    names, default, meaning = _cells(option, RUN)
    return _row(names, default, f"`{option.variables[0]}`", meaning)


def _section(command: Command[Any], shown: Collection[Option]) -> str:
    """Return the part of a page about one command.

    Args:
        command: may be an action of another one.
        shown: options that the page has shown already.
    """
    hashes = "###" if " " in command.name else "##"
    usage = f"undaunted {command.name} {command.usage}"
    parts = [f"\n{hashes} undaunted {command.name}\n\n```text\n{usage}\n\n{command.about}```\n"]
    if command is RUN:
        return f"{parts[0]}\nIts options have [a page to themselves](command-line.md).\n"
    for group, options in groups(command):
        new = [one for one in options if one not in shown]
        rows = [_cells(one, command) for one in new if one.name in (command.shown or one.names)]
        if rows:
            head = "option" if group == "Options" else f"option: {group[0].lower()}{group[1:]}"
            parts.append(f"\n| {head} | default | meaning |\n|---|---|---|\n")
            parts += [_row(*row) for row in rows]
    if command.tail:
        tail = textwrap.fill(command.tail, 80, break_on_hyphens=False)
        parts.append(f"\n```text\n{tail}\n```\n")
    return "".join(parts)


def _cells(option: Option, command: Command[Any]) -> tuple[str, str, str]:
    default = option.default_of(command.schema())
    if default and not option.about.shown:
        default = f"`{default}`"
    return f"`{spellings(option)}`".replace("|", "\\|"), default, option.about.help


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


def _field_row(setting: Option) -> str:
    kind = typing.get_type_hints(FaultToleranceConfig)[setting.field]
    type_name = kind.__name__ if isinstance(kind, type) else str(kind).replace("|", "\\|")
    default = setting.about.shown or as_text(getattr(FaultToleranceConfig(), setting.field))
    names = [f"`{setting.field}`"] + [f"`--{alias}`" for alias in setting.about.aliases]
    return f"| {', '.join(names)} | `{type_name}` | `{default}` | {setting.about.help} |\n"
