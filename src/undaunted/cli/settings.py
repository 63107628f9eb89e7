"""From options to settings of the launcher: the file below the command line, and what options mean.

Everything that cannot be meant is refused here, with the remedy, before anything is started.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base import values
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.config import known_settings, settings
from undaunted.fault_tolerance.metrics_config import TOKEN_VARIABLE, MetricsConfig
from undaunted.fault_tolerance.monitoring_config import others
from undaunted.fault_tolerance.run_config import CycleInfoPlace
from undaunted.health.check import Settings
from undaunted.journal.metrics import otlp
from undaunted.progress.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.cli.options import RunParsed

_OFF_SWITCH = "NVRX_DISABLE_RANK_MONITORS"
_GPUS_PER_NUMA = "NVRX_GPUS_PER_NUMA"
_LOCAL_LOGS = "NVRX_NODE_LOCAL_TMPDIR"
# Of `--health-checks`: those that take no value, named as in `health.check.Settings`.
_SWITCHES = ("xid", "ecc", "ethernet")
_ATTEMPT = "SLURM_RESTART_COUNT"
_WARMUP = "warmup"  # the section whose limit is for the first steps
# Names in `Limits.sources` and of the settings.
_LIMITS = {
    "initial_heartbeat": "initial_rank_heartbeat_timeout",
    "heartbeat": "rank_heartbeat_timeout",
    "out_of_section": "rank_out_of_section_timeout",
}


def with_file(parsed: RunParsed, cwd: str) -> tuple[RunParsed, str]:
    """Give settings that nobody has set the values of the file of ``--ft-cfg-path``.

    Returns:
        The command line with these values, and a line for the user ("" if all is as expected).

    Raises:
        UsageError: the file cannot be used.
    """
    path = parsed.options.ft_cfg_path
    if not path:
        return parsed, ""
    from undaunted.fault_tolerance.config_file import OF_A_CALL

    given, notice = _read_file(parsed, path, cwd)
    named = OF_A_CALL if Path(path).name == OF_A_CALL else path
    sources = dict(parsed.sources)
    for field in list(given):
        option = RUN.spellings[f"--{_option(field)}"]
        if option.name in sources:
            del given[field]
            continue
        sources[option.name] = f"{field} in {named}"
    ft = dataclasses.replace(parsed.options.ft, **given)
    options = msgspec.structs.replace(parsed.options, ft=ft)
    return msgspec.structs.replace(parsed, options=options, sources=sources), notice


def _option(field: str) -> str:
    return "ft-" + field.replace("_", "-")


def _read_file(parsed: RunParsed, path: str, cwd: str) -> tuple[dict[str, Any], str]:
    from undaunted.fault_tolerance.config_file import MissingSectionError, read_section

    source = parsed.source("ft-cfg-path")
    try:
        section = read_section(Path(cwd, path))
    except (FileNotFoundError, MissingSectionError) as error:
        missing = "is not there" if isinstance(error, OSError) else "has no section fault_tolerance"
        if parsed.options.ft_ignore_missing_cfg:
            return {}, f"{path} {missing}: the defaults apply"
        # Where settings are given outside of the file, it may well have none.
        given_otherwise = any(parsed.is_given(_option(field)) for field in settings())
        if isinstance(error, MissingSectionError) and given_otherwise:
            return {}, f"{path} {missing}: only options and variables count"
        raise UsageError(
            f"{source}: {path} {missing}; correct it, or add --ft-ignore-missing-cfg to go on with "
            "the defaults"
        ) from None
    except OSError as error:
        raise UsageError(f"{source}: {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    try:
        ignore_unknown = parsed.options.ft_ignore_unknown_settings
        return known_settings(section, ignore_unknown=ignore_unknown), ""
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def limits(parsed: RunParsed, environ: Mapping[str, str]) -> tuple[Limits, str]:
    """Return the limits of the ranks, each with its source, and lines about odd ones."""
    if _switch(environ, _OFF_SWITCH):
        off = Limits(initial_heartbeat_s=None, heartbeat_s=None, learn=False)
        return off, f"{_OFF_SWITCH} is set: hangs will not be noticed"
    ft = parsed.options.ft
    sections = ft.rank_section_timeouts
    sources = {key: parsed.sources.get(_option(field), "default") for key, field in _LIMITS.items()}
    by = parsed.sources.get("ft-rank-section-timeouts", "default")
    sources |= {f"section:{section}": by for section in sections}
    if _WARMUP in sections:
        sources[_WARMUP] = by
    found = Limits(
        initial_heartbeat_s=ft.initial_rank_heartbeat_timeout,
        heartbeat_s=ft.rank_heartbeat_timeout,
        out_of_section_s=ft.rank_out_of_section_timeout,
        sections=sections,
        warmup_s=sections.get(_WARMUP),
        warmup_iterations=ft.num_warmup_iterations,
        floor_s=ft.min_measured_timeout,
        learn=ft.learn_timeouts,
        confirm=not ft.skip_section_response,
        sources=sources,
        settings=others(ft),
    )
    notices = []
    if ft.safety_factor < 1:
        notices.append(
            f"{parsed.source('ft-safety-factor')} {ft.safety_factor:g}: a limit that ranks "
            "calculate is shorter than the longest time they measured; give 1 or more"
        )
    all_limits = (*(getattr(ft, field) for field in _LIMITS.values()), *sections.values())
    if all(limit is None for limit in all_limits):
        notices.append(
            "every timeout is off: hangs will not be noticed; --ft-rank-heartbeat-timeout 15m would"
        )
    return found, "\n".join(notices)


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


def check_settings(parsed: RunParsed, environ: Mapping[str, str]) -> None:
    """Refuse settings that exclude one another.

    Raises:
        UsageError: they do; the message names both and the remedy.
    """
    _check_standalone(parsed)
    _check_progress(parsed)
    _check_logs(parsed, environ)


def _check_standalone(parsed: RunParsed) -> None:
    fewest, _ = parsed.options.nnodes
    # A variable may be that of the cluster, and the option is stronger.
    asked = fewest > 1 and parsed.sources.get("nnodes", "").startswith("--")
    if parsed.options.standalone and asked:
        raise UsageError(
            f"{parsed.source('standalone')} is for one node, but {parsed.source('nnodes')} asks "
            f"for {fewest}; leave one of them out"
        )


def _check_progress(parsed: RunParsed) -> None:
    cycles = parsed.options.ft.max_no_progress_cycles
    if cycles > 0:
        return
    for name in ("ft-checkpoint-iteration-file", "ft-min-progress-iterations"):
        if parsed.sources.get(name, "").startswith("--"):
            raise UsageError(
                f"{parsed.sources[name]} is for the tracking of progress, which "
                f"{parsed.source('ft-max-no-progress-cycles')} {cycles} turns off; leave one of "
                "them out"
            )


def _check_logs(parsed: RunParsed, environ: Mapping[str, str]) -> None:
    prefix = parsed.options.ft_per_cycle_applog_prefix
    if prefix.endswith("/"):
        raise UsageError(
            f"{parsed.source('ft-per-cycle-applog-prefix')} {prefix} is a directory; add the name "
            f"of a file, as in {prefix}train.log"
        )
    if not parsed.options.ft_nvrx_logfile:
        return
    source = parsed.source("ft-nvrx-logfile")
    if not prefix:
        raise UsageError(
            f"{source} needs --ft-per-cycle-applog-prefix, the file of the ranks' output; add it"
        )
    if environ.get(_LOCAL_LOGS):
        raise UsageError(
            f"{source} and {_LOCAL_LOGS} both say where the launcher's lines go; keep one of them"
        )


def _switch(environ: Mapping[str, str], variable: str) -> bool:
    text = environ.get(variable, "").strip()
    try:
        return bool(text) and values.boolean(text)
    except ValueError as error:
        raise UsageError(f"{variable}: {error}") from None


# --- health checks, attribution, files about rounds, messages -------------------------------------


def health_checks(parsed: RunParsed, environ: Mapping[str, str], cwd: str) -> Settings:
    """Return what is to be checked; a file of the PCI tree is relative to ``cwd``."""
    ft = parsed.options.ft
    return Settings(
        nic_link=ft.enable_nic_healthcheck,
        link_state_path=ft.link_state_path_template or "",
        nic_monitor=ft.enable_nic_monitor,
        pci_topology=_path(ft.pci_topo_file, cwd),
        link_down_path=ft.link_down_path_template or "",
        mounts=ft.enable_dist_storage_healthcheck,
        storage_paths=tuple(filter(None, (ft.storage_healthcheck_path or "").split(","))),
        segment_file=_segment_file(ft.segment_health_check_dir, environ),
        commands=tuple(map(_words, parsed.options.check_commands)),
        **_more_checks(parsed),
    )


def _segment_file(directory: str | None, environ: Mapping[str, str]) -> str:
    """Return the file about this task of an array of Slurm, or about the job if it is none."""
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    if not directory or not job:
        return directory or ""
    return f"{directory}/segment_health_check.{job}.{environ.get('SLURM_ARRAY_TASK_ID') or job}"


def _more_checks(parsed: RunParsed) -> dict[str, Any]:
    """Read ``--health-checks``; the directories whose disk counts are known later."""
    asked: dict[str, Any] = {"disk_paths": ()}
    for each in parsed.options.checks:
        try:
            found = _more_check(each.strip())
        except ValueError as error:
            raise UsageError(f"{parsed.source('health-checks')} {each!r}: {error}") from None
        places = asked["disk_paths"] + found.pop("disk_paths", ())
        asked |= {**found, "disk_paths": places}
    return asked


def _more_check(text: str) -> dict[str, Any]:
    name, _, value = text.partition(":")
    match name, bool(value):
        case _, False if name in _SWITCHES:
            return {name: True}
        case "clock", False:
            raise ValueError("say how wrong it may be, as in clock:100ms")
        case "clock", True:
            return {"clock_s": values.positive_seconds(value)}
        case "disk", False:
            raise ValueError("say how much has to be free, as in disk:10G")
        case "disk", True:
            size, _, path = value.partition(":")
            places = (values.absolute_path(path),) if path else ()
            return {"disk_bytes": values.size(size), "disk_paths": places}
    raise ValueError(f"choose from {', '.join(_SWITCHES)}, clock:TIME and disk:SIZE[:/PATH]")


def _words(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"--health-command {command!r}: {error}") from None
    if not words or not Path(words[0]).is_absolute():
        raise UsageError(f"--health-command {command!r}: give the absolute path of a program")
    return words


def attribution_service(parsed: RunParsed) -> str:
    """Return the URL of the service that is asked, "" = none.

    Raises:
        UsageError: what is given is not enough, or contradicts itself.
    """
    ft, source = parsed.options.ft, parsed.source("ft-attribution-endpoint")
    by_parts = _from_host_and_port(parsed)
    url = ft.attribution_endpoint or by_parts
    if by_parts and url != by_parts:
        raise UsageError(
            f"{source} {url} and {parsed.source('ft-attrsvc-host')} {ft.attrsvc_host} name two "
            "services; keep one of them"
        )
    if url == "localhost":
        _check_own_service(source)
    for name, value in (
        ("ft-attribution-stop-action", ft.attribution_stop_action),
        ("ft-attribution-token-file", ft.attribution_token_file),
    ):
        if value and not url:
            raise UsageError(
                f"{parsed.source(name)} needs a service: add "
                "--ft-attribution-endpoint http://HOST:PORT"
            )
    if ft.attribution_export_url and url != "localhost":
        raise UsageError(
            f"{parsed.source('ft-attribution-export-url')} is for a service that the launcher "
            "starts: add --ft-attribution-endpoint localhost, or give the service its --export-url"
        )
    if ft.attribution_token_file:
        from undaunted.coordinator.wire.credentials import TokenError, find_token

        try:
            find_token({}, Path(ft.attribution_token_file))
        except TokenError as error:
            raise UsageError(f"{parsed.source('ft-attribution-token-file')}: {error}") from None
    return url


def _check_own_service(source: str) -> None:
    """Look whether the launcher can start a service.

    Raises:
        UsageError: it lacks a package.
    """
    from importlib.util import find_spec

    for name in ("fastapi", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(
                f"{source} localhost needs the package {name}: pip install 'undaunted[services]'"
            )


def _from_host_and_port(parsed: RunParsed) -> str:
    host, port = parsed.options.ft.attrsvc_host, parsed.options.ft.attrsvc_port
    if host is None and port is None:
        return ""
    if host is None:
        source = parsed.source("ft-attrsvc-port")
        raise UsageError(f"{source} alone names no service; add --ft-attrsvc-host")
    source = parsed.source("ft-attrsvc-host")
    if port is None:
        raise UsageError(f"{source} alone names no service; add --ft-attrsvc-port")
    try:
        return values.service(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    except ValueError:
        raise UsageError(f"{source}: {host!r} is not the name or address of a host") from None


def cycle_info(
    parsed: RunParsed, environ: Mapping[str, str], cwd: str, run_id: str, log_prefix: str
) -> CycleInfoPlace | None:
    """Return the place of the files about rounds, None = they are not asked for.

    Args:
        parsed: the command line.
        environ: of the launcher.
        cwd: what a relative directory is relative to.
        run_id: name of the run.
        log_prefix: of the logs per round, "" = there are none.

    Raises:
        UsageError: a name is given for files that are not asked for.
    """
    directory, job_id = parsed.options.ft.cycle_info_dir, parsed.options.ft_cycle_info_job_id
    if not directory:
        if job_id:
            source = parsed.source("ft-cycle-info-job-id")
            raise UsageError(f"{source} {job_id} needs --ft-cycle-info-dir; add it")
        return None
    scheduled = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    attempt = environ.get(_ATTEMPT, "")
    return CycleInfoPlace(
        directory=str(Path(cwd, directory)),
        job_id=job_id or scheduled or run_id,
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() else 0,
        log_prefix=log_prefix,
    )


def message_directory(environ: Mapping[str, str], cwd: str) -> str:
    """Return where messages of the ``nvrx`` logger are, as an absolute path, "" = nowhere."""
    directory = environ.get(_LOCAL_LOGS, "").strip()
    return os.path.abspath(os.path.join(cwd, directory)) if directory else ""  # noqa: PTH100, PTH118


def launcher_messages(directory: str) -> str:
    """Return the file in ``directory`` for this launcher's own lines, "" without a directory."""
    if not directory:
        return ""
    return f"{directory}/launcher_rank_none_{os.getpid()}.msg.{int(time.time() * 1000)}"


# --- metrics --------------------------------------------------------------------------------------


def metrics(parsed: RunParsed, environ: Mapping[str, str], cwd: str) -> MetricsConfig | None:
    """Return what is chosen for metrics, None = nobody wants any.

    Raises:
        UsageError: something is missing or contradicts itself.
    """
    given = parsed.options.metrics
    if given.port is None:
        for name in ("address", "token-file", "tls-cert", "tls-key"):
            if parsed.is_given(f"metrics-{name}"):
                source = parsed.source(f"metrics-{name}")
                raise UsageError(f"{source} is of no use without --metrics-port")
    else:
        from undaunted.journal.metrics import exposition

        if not exposition.is_possible():
            raise UsageError(f"{parsed.source('metrics-port')} {exposition.REMEDY}")
    if given.otlp_endpoint:
        _check_otlp(parsed, environ)
    elif given.port is None:
        return None
    config = msgspec.structs.replace(
        given,
        token_file=_path(given.token_file, cwd),
        tls_cert=_path(given.tls_cert, cwd),
        tls_key=_path(given.tls_key, cwd),
    )
    if config.port is not None:
        _check_secrets(config, parsed)
    return config


def _path(text: str | None, cwd: str) -> str:
    return str(Path(cwd, text)) if text else ""


def _check_otlp(parsed: RunParsed, environ: Mapping[str, str]) -> None:
    source, endpoint = parsed.source("otlp-endpoint"), parsed.options.metrics.otlp_endpoint
    if not otlp.is_possible():
        raise UsageError(f"{source} {otlp.REMEDY}")
    names = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if endpoint == otlp.FROM_ENVIRONMENT and not any(map(environ.get, names)):
        raise UsageError(f"{source} {endpoint}: {names[1]} is not set; set it")


def _check_secrets(config: MetricsConfig, parsed: RunParsed) -> None:
    """Check what was given, so that a mistake is shown before any rank is started."""
    from undaunted.coordinator.wire.credentials import TlsError, TokenError
    from undaunted.fault_tolerance.metrics_config import secrets

    if bool(config.tls_cert) != bool(config.tls_key):
        raise UsageError("--metrics-tls-cert and --metrics-tls-key are only of use together")
    try:
        token, _ = secrets(config)
    except TokenError as error:
        source = parsed.sources.get("metrics-token-file")  # a variable names itself
        raise UsageError(f"{source}: {error}" if source else str(error)) from None
    except TlsError as error:
        raise UsageError(f"{parsed.source('metrics-tls-cert')}: {error}") from None
    if not token and not ipaddress.ip_address(config.address).is_loopback:
        raise UsageError(
            f"{parsed.source('metrics-address')} {config.address} can be reached from other "
            f"machines: give --metrics-token-file, or set {TOKEN_VARIABLE}"
        )
