"""The page docs/configuration.md, from the table of settings."""

from __future__ import annotations

from undaunted.cli.options import GROUPS, OPTIONS
from undaunted.fault_tolerance.config import FaultToleranceConfig

_HEAD = """\
# Configuration

<!-- Generated: make generated -->

Every setting of in-job restart is a field of `FaultToleranceConfig`, a key of a YAML file, an
option `--ft-...` and a variable `PET_FT_...`. The names are those of NVRx, of all its versions.

## A file of settings

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

<!-- file: train.py -->
```python
import undaunted

for iteration in range(3):
    undaunted.step(iteration)
print("trained")
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

How to choose timeouts: [Timeouts](timeouts.md). A limit that is not set is learned while the job
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

A setting marked *not built* can be held by `FaultToleranceConfig` and read from a file. The
launcher refuses it if it asks for more than its default, in one sentence: nothing is ignored
silently.
"""


def document() -> str:
    """Text of docs/configuration.md."""
    parts = [_HEAD]
    for group in GROUPS:
        rows = [
            _row(option.setting) for option in OPTIONS if option.setting and option.group == group
        ]
        if rows:
            parts.append(
                f"\n### {group}\n\n| field | type | default | meaning |\n|---|---|---|---|\n"
            )
            parts += rows
    return "".join(parts)


def _row(field: str) -> str:
    (option,) = (option for option in OPTIONS if option.setting == field)
    kind = FaultToleranceConfig.__annotations__[field].removeprefix("signal.")
    kind = kind.replace("|", "\\|")
    names = [f"`{field}`"] + [f"`--{alias}`" for alias in option.aliases]
    meaning = option.help + (" (*not built*)" if option.not_built else "")
    return f"| {', '.join(names)} | `{kind}` | `{option.default}` | {meaning} |\n"
