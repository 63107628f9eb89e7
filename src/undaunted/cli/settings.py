"""Settings of in-job restart: the file below the command line, limits, and what cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.cli.ft_options import option_name
from undaunted.cli.options import OPTIONS
from undaunted.cli.parse import Parsed, UsageError, refuse_not_built
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.config import settings as table_of_settings
from undaunted.fault_tolerance.config_values import boolean
from undaunted.fault_tolerance.monitoring_config import others
from undaunted.progress.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

_OFF_SWITCH = "NVRX_DISABLE_RANK_MONITORS"
_GPUS_PER_NUMA = "NVRX_GPUS_PER_NUMA"
_LOCAL_LOGS = "NVRX_NODE_LOCAL_TMPDIR"
_WARMUP = "warmup"  # the section whose limit is for the first steps
# Names in `Limits.sources` and of the settings.
_LIMITS = {
    "initial_heartbeat": "initial_rank_heartbeat_timeout",
    "heartbeat": "rank_heartbeat_timeout",
    "out_of_section": "rank_out_of_section_timeout",
}


def with_file(parsed: Parsed, cwd: str) -> tuple[Parsed, str]:
    """Give options that nobody has set the values of the file of ``--ft-cfg-path``.

    Returns:
        The command line with these values, and a line for the user ("" if all is as expected).

    Raises:
        UsageError: the file cannot be used, or asks for what is not built yet.
    """
    path = parsed.values["ft-cfg-path"]
    if not path:
        return parsed, ""
    values, notice = _read_file(parsed, path, cwd)
    named = _named(path)
    merged, sources = dict(parsed.values), dict(parsed.sources)
    for option in OPTIONS:
        if option.setting not in values or option.name in sources:
            continue
        source = f"{option.setting} in {named}"
        if values[option.setting] != merged[option.name]:  # the default asks for nothing
            refuse_not_built(option, values[option.setting], source)
        merged[option.name] = values[option.setting]
        sources[option.name] = source
    return parsed._replace(values=merged, sources=sources), notice


def _given_otherwise(parsed: Parsed) -> bool:
    """Whether settings are given outside of the file, which then may well have none."""
    return any(option.setting and option.name in parsed.sources for option in OPTIONS)


def _named(path: str) -> str:
    from undaunted.fault_tolerance.config_file import OF_A_CALL

    return OF_A_CALL if Path(path).name == OF_A_CALL else path


def _read_file(parsed: Parsed, path: str, cwd: str) -> tuple[dict[str, Any], str]:
    from undaunted.fault_tolerance.config import known_settings
    from undaunted.fault_tolerance.config_file import MissingSectionError, read_section

    may_miss = parsed.values["ft-ignore-missing-cfg"]
    try:
        section = read_section(Path(cwd, path))
    except (FileNotFoundError, MissingSectionError) as error:
        missing = "is not there" if isinstance(error, OSError) else "has no section fault_tolerance"
        if may_miss:
            return {}, f"{path} {missing}: the defaults apply"
        if isinstance(error, MissingSectionError) and _given_otherwise(parsed):
            return {}, f"{path} {missing}: only options and variables count"
        raise UsageError(
            f"{parsed.sources['ft-cfg-path']}: {path} {missing}; correct it, or add "
            "--ft-ignore-missing-cfg to go on with the defaults"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{parsed.sources['ft-cfg-path']}: {path}: {reason}") from None
    except ValueError as error:
        raise UsageError(f"{parsed.sources['ft-cfg-path']}: {error}") from None
    try:
        ignore_unknown = parsed.values["ft-ignore-unknown-settings"]
        return known_settings(section, ignore_unknown=ignore_unknown), ""
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def limits(parsed: Parsed, environ: Mapping[str, str]) -> tuple[Limits, str]:
    """Return the limits of the ranks, each with its source, and a line if there is none at all."""
    if _switch(environ, _OFF_SWITCH):
        off = Limits(initial_heartbeat_s=None, heartbeat_s=None, learn=False)
        return off, f"{_OFF_SWITCH} is set: hangs will not be noticed"
    values = {field: parsed.values[option_name(field)] for field in _LIMITS.values()}
    sections: dict[str, float | None] = parsed.values[option_name("rank_section_timeouts")]
    sources = {
        key: parsed.sources.get(option_name(field), "default") for key, field in _LIMITS.items()
    }
    by = parsed.sources.get(option_name("rank_section_timeouts"), "default")
    sources |= {f"section:{section}": by for section in sections}
    if _WARMUP in sections:
        sources[_WARMUP] = by
    found = Limits(
        initial_heartbeat_s=values["initial_rank_heartbeat_timeout"],
        heartbeat_s=values["rank_heartbeat_timeout"],
        out_of_section_s=values["rank_out_of_section_timeout"],
        sections=sections,
        warmup_s=sections.get(_WARMUP),
        warmup_iterations=parsed.values[option_name("num_warmup_iterations")],
        floor_s=parsed.values[option_name("min_measured_timeout")],
        learn=parsed.values[option_name("learn_timeouts")],
        confirm=not parsed.values[option_name("skip_section_response")],
        sources=sources,
        settings=others(_config(parsed)),
    )
    if any(limit is not None for limit in (*values.values(), *sections.values())):
        return found, ""
    option = option_name("rank_heartbeat_timeout")
    return found, f"every timeout is off: hangs will not be noticed; --{option} 15m would"


def _config(parsed: Parsed) -> FaultToleranceConfig:
    return FaultToleranceConfig(
        **{field: parsed.values[option_name(field)] for field in table_of_settings()}
    )


def gpus_per_numa(environ: Mapping[str, str]) -> int:
    """Return how many GPUs a NUMA node has, 0 if ranks are not to be bound.

    Raises:
        UsageError: the variable is no number.
    """
    text = environ.get(_GPUS_PER_NUMA, "").strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text)):
        raise UsageError(f"{_GPUS_PER_NUMA}: {text!r} is not a number of GPUs; give 1 or more")
    return int(text)


def check_settings(parsed: Parsed, environ: Mapping[str, str]) -> None:
    """Refuse settings that exclude one another.

    Raises:
        UsageError: they do; the message names both and the remedy.
    """
    _check_standalone(parsed)
    _check_progress(parsed)
    _check_logs(parsed, environ)


def _check_standalone(parsed: Parsed) -> None:
    fewest, _ = parsed.values["nnodes"]
    # A variable may be that of the cluster, and the option is stronger.
    asked = fewest > 1 and parsed.sources.get("nnodes", "").startswith("--")
    if parsed.values["standalone"] and asked:
        raise UsageError(
            f"{parsed.sources['standalone']} is for one node, but {parsed.sources['nnodes']} asks "
            f"for {fewest}; leave one of them out"
        )


def _check_progress(parsed: Parsed) -> None:
    cycles = option_name("max_no_progress_cycles")
    if parsed.values[cycles] > 0:
        return
    for field in ("checkpoint_iteration_file", "min_progress_iterations"):
        name = option_name(field)
        if name in parsed.sources and parsed.sources[name].startswith("--"):
            raise UsageError(
                f"{parsed.sources[name]} is for the tracking of progress, which "
                f"{parsed.sources[cycles]} {parsed.values[cycles]} turns off; leave one of them out"
            )


def _check_logs(parsed: Parsed, environ: Mapping[str, str]) -> None:
    _check_filters(parsed)
    if parsed.values["logs-specs"]:
        from undaunted.fault_tolerance.output.logs_specs import check_name

        try:
            check_name(parsed.values["logs-specs"])
        except ValueError as error:
            raise UsageError(f"{parsed.sources['logs-specs']}: {error}") from None
    prefix = parsed.values["ft-per-cycle-applog-prefix"] or ""
    if prefix.endswith("/"):
        raise UsageError(
            f"{parsed.sources['ft-per-cycle-applog-prefix']} {prefix} is a directory; add the name "
            f"of a file, as in {prefix}train.log"
        )
    if not parsed.values["ft-nvrx-logfile"]:
        return
    source = parsed.sources["ft-nvrx-logfile"]
    if not prefix:
        raise UsageError(
            f"{source} needs --ft-per-cycle-applog-prefix, the file of the ranks' output; add it"
        )
    if environ.get(_LOCAL_LOGS):
        raise UsageError(
            f"{source} and {_LOCAL_LOGS} both say where the launcher's lines go; keep one of them"
        )


def _check_filters(parsed: Parsed) -> None:
    tee, plug_in = parsed.values["tee"], parsed.values["logs-specs"]
    shown = 0
    for streams in tee.values() if isinstance(tee, dict) else [tee]:
        shown |= streams
    for name, bit in (("duplicate-stdout-filters", 1), ("duplicate-stderr-filters", 2)):
        if parsed.values[name] and not shown & bit and not plug_in:
            raise UsageError(
                f"{parsed.sources[name]} copies lines that --tee shows, and that stream is shown "
                f"of no rank; add --tee {bit}, or 3 for both streams"
            )


def _switch(environ: Mapping[str, str], variable: str) -> bool:
    text = environ.get(variable, "").strip()
    try:
        return bool(text) and boolean(text)
    except ValueError as error:
        raise UsageError(f"{variable}: {error}") from None
