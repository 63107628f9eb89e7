"""`FaultToleranceConfig`: every setting of in-job restart, with its type, default, help and check.

The options ``--ft-...``, the keys of the YAML file and the documentation come from its fields; see
docs/design/settings.md.
"""

import dataclasses
import functools
import signal
from typing import TYPE_CHECKING, Annotated, Any

from undaunted.base import values
from undaunted.base.options import Kind, Opt, Option, options_of
from undaunted.base.text import did_you_mean
from undaunted.base.values import Count, Limit, OptionalText, Period, Seconds, Switch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

# Headings of the help, also of options that are no settings.
TIMEOUTS = "Hang detection (seconds or 500ms, 15m, 2h; none = off)"
PROGRESS = "Progress"
DEVICES = "Devices"
HEALTH = "Health checks"
ATTRIBUTION = "Attribution service"
NODES = "Several nodes"
OUTPUT = "Output"
UNUSED = "Options without effect"

# Options that are refused, never ignored: why, and the remedy.
REFUSED = {
    "numa-binding": "is not built: set the variable NVRX_GPUS_PER_NUMA",
    "logs-specs": "is not offered any more: log-dir, redirects and tee say where output goes",
    "duplicate-stdout-filters": "is not offered any more: use grep on stdout.log in the log-dir",
    "duplicate-stderr-filters": "is not offered any more: use grep on stderr.log in the log-dir",
}


@dataclasses.dataclass
class FaultToleranceConfig:
    """Settings of in-job restart, named as in NVRx. Times are seconds; None turns a test off.

    Every value is checked and converted when it is set: times may be text with a unit
    (``"15m"``), signals and log levels names or numbers, section limits a mapping or
    ``"step:60,checkpoint:10m"``. docs/configuration.md lists all fields.

    Raises:
        ValueError: a value makes no sense; the message names the field, the value and the remedy.
    """

    # --- hang detection ---
    rank_heartbeat_timeout: Annotated[
        Limit, Opt("Longest time between two heartbeats of a rank", TIMEOUTS)
    ] = 2700.0
    initial_rank_heartbeat_timeout: Annotated[
        Limit,
        Opt(
            "Longest time until the first heartbeat; if given, it also ends jobs that never call "
            "undaunted.step"
        ),
    ] = 3600.0
    rank_section_timeouts: Annotated[
        dict[str, float | None],
        Kind(values.sections, "NAME:TIME,..."),
        Opt(
            "Longest time in each section, as in step:60,checkpoint:10m; the section warmup is for "
            "the first steps"
        ),
    ] = dataclasses.field(default_factory=dict)
    rank_out_of_section_timeout: Annotated[
        Limit, Opt("Longest time outside all sections, once sections are used", rare=True)
    ] = None
    num_warmup_iterations: Annotated[
        Count,
        Opt(
            "In the first N iterations of a round, the limit of warmup replaces that of step",
            rare=True,
        ),
    ] = 5
    safety_factor: Annotated[
        float,
        Kind(values.number(0.01), "X"),
        Opt("A limit that ranks calculate is X times the longest time they measured", rare=True),
    ] = 5.0
    learn_timeouts: Annotated[
        Switch, Opt("Limits that are not given are learned while the job runs")
    ] = True
    min_measured_timeout: Annotated[
        Seconds, Opt("Shortest limit that may be learned or calculated", rare=True)
    ] = 60.0
    skip_section_response: Annotated[
        Switch,
        Opt(
            "false = RankMonitorClient waits until the launcher confirms each call, and raises "
            "without an answer",
            rare=True,
        ),
    ] = True
    rank_termination_signal: Annotated[
        signal.Signals,
        Kind(values.signal_number, "SIGNAL"),
        Opt("Signal that ends a hung rank", rare=True),
    ] = signal.SIGKILL
    install_exception_hook: Annotated[
        Switch, Opt("Ranks report unhandled exceptions before they exit", rare=True)
    ] = True
    # --- progress ---
    max_no_progress_cycles: Annotated[
        int,
        Kind(values.whole(), "N"),
        Opt("N rounds in a row without progress end the job with 93; 0 = never", PROGRESS),
    ] = 3
    min_progress_iterations: Annotated[
        int,
        Kind(values.whole(1), "N"),
        Opt("A round with fewer than N new iterations has made no progress", rare=True),
    ] = 1
    checkpoint_iteration_file: Annotated[
        OptionalText,
        Opt(
            "Text file with the iteration of the last checkpoint; without it, the iterations that "
            "ranks report count",
            metavar="FILE",
        ),
    ] = None
    last_copies_mb_per_s: Annotated[
        float,
        Kind(values.number(0), "MB"),
        Opt(
            "When a job fails, checkpoints that are only in memory are written out: time for it = "
            "their size / (MB per second), at least 60 s; 0 = they are not written",
            rare=True,
        ),
    ] = 200.0
    # --- devices ---
    gpu_memory_reclaim_timeout: Annotated[
        Seconds,
        Opt(
            "How long a restart waits for GPU memory to be free; 0 = it does not wait",
            DEVICES,
            rare=True,
        ),
    ] = 50.0
    gpu_memory_tolerance_mb: Annotated[
        float,
        Kind(values.number(0), "MIB"),
        Opt("GPU memory that may be in use at a restart", rare=True),
    ] = 512.0
    gpu_memory_poll_interval: Annotated[
        Period, Opt("Longest time between two looks at GPU memory", rare=True)
    ] = 2.0
    numa_bind_strict: Annotated[
        Switch,
        Opt(
            "With NVRX_GPUS_PER_NUMA: true = memory only from the rank's NUMA node; false = "
            "of other nodes too when that one is full",
            rare=True,
        ),
    ] = True
    # --- output ---
    log_level: Annotated[
        int,
        Kind(values.log_level, "LEVEL", choices=tuple(values.LEVELS)),
        Opt(
            "Lowest level of the launcher's lines: INFO (DEBUG is the same), WARNING, ERROR",
            OUTPUT,
            shown="INFO",
            variables=("FT_LAUNCHER_LOGLEVEL",),
        ),
    ] = 20
    # --- several nodes ---
    use_infra_group_rank: Annotated[
        Switch,
        Opt("No effect: ranks always follow the scheduler's order of nodes", NODES, rare=True),
    ] = True
    segment: Annotated[
        int | None,
        Kind(values.optional(values.whole(1)), "N"),
        Opt("Nodes of a segment, all in one NVLink domain; 1 on one node", rare=True),
    ] = None
    # --- health checks ---
    node_health_check_interval: Annotated[
        Period,
        Opt(
            "Time between two checks in a round: of GPUs, and of NICs with --ft-enable-nic-monitor",
            HEALTH,
            rare=True,
        ),
    ] = 5.0
    enable_nic_monitor: Annotated[
        Switch, Opt("A NIC that loses its link makes the node unhealthy", rare=True)
    ] = False
    enable_nic_healthcheck: Annotated[
        Switch,
        Opt("Before a round: NICs whose link was active must still have it", rare=True),
    ] = True
    pci_topo_file: Annotated[
        OptionalText,
        Opt("The PCI tree (XML): only NICs beside GPUs are watched", metavar="FILE", rare=True),
    ] = None
    link_down_path_template: Annotated[
        str | None,
        Kind(values.optional(values.device_template), "PATH"),
        Opt("Counter of lost links, with {dev_name} for the device", rare=True),
    ] = None
    link_state_path_template: Annotated[
        str | None,
        Kind(values.optional(values.nic_template), "PATH"),
        Opt("State of a link, with {nic} for the NIC", rare=True),
    ] = None
    enable_dist_storage_healthcheck: Annotated[
        Switch, Opt("Before a round: Lustre and NFS mounts must answer", rare=True)
    ] = False
    storage_healthcheck_path: Annotated[
        str | None,
        Kind(values.optional(values.absolute_paths), "PATHS"),
        Opt(
            "Before a round: these files and directories must be readable; absolute, separated by "
            "commas",
            aliases=("ft-storage-health-check-path",),
            rare=True,
        ),
    ] = None
    segment_health_check_dir: Annotated[
        str | None,
        Kind(values.optional(values.absolute_path), "DIR"),
        Opt(
            "Before a round, in a job of Slurm: a file in DIR, /PATH, that is not empty excludes "
            "this task of the array: segment_health_check.JOB.TASK",
            rare=True,
        ),
    ] = None
    # --- attribution service ---
    attribution_endpoint: Annotated[
        str | None,
        Kind(values.optional(values.service), "URL"),
        Opt(
            "Service that reads the log of each round: http://HOST:PORT, https://HOST:PORT, "
            "unix:///PATH, or localhost: one that the launcher starts",
            ATTRIBUTION,
            rare=True,
        ),
    ] = None
    attribution_token_file: Annotated[
        OptionalText,
        Opt("File (mode 0600) with the token for that service", metavar="FILE", rare=True),
    ] = None
    attribution_stop_action: Annotated[
        str | None,
        values.one_of("ACTION", "log", "no-restart", nothing=True),
        Opt(
            "When the service advises to stop: log = say so; no-restart = end the job with 93",
            rare=True,
        ),
    ] = None
    attribution_export_url: Annotated[
        str | None,
        Kind(values.optional(values.web_url), "URL"),
        Opt("A service that the launcher starts sends its results there", rare=True),
    ] = None
    attrsvc_host: Annotated[
        OptionalText,
        Opt("Host of the service; with a port instead of the URL", metavar="HOST", rare=True),
    ] = None
    attrsvc_port: Annotated[
        int | None,
        Kind(values.optional(values.whole(1, 65535)), "PORT"),
        Opt("Port of the service", rare=True),
    ] = None
    cycle_info_dir: Annotated[
        OptionalText,
        Opt(
            "Directory for a file about each round: its nodes and times",
            OUTPUT,
            metavar="DIR",
            rare=True,
        ),
    ] = None
    # --- what undaunted does not need ---
    workload_check_interval: Annotated[
        Period, Opt("No effect: a timer waits for the next limit", UNUSED, rare=True)
    ] = 5.0
    restart_check_interval: Annotated[
        Period, Opt("No effect: restarts are written to the journal at once", rare=True)
    ] = 60.0
    check_remaining_processes: Annotated[
        Switch, Opt("No effect: all that ranks have started is ended with the round", rare=True)
    ] = False

    if not TYPE_CHECKING:  # checkers would take it that any name can be set

        def __setattr__(self, name: str, value: object) -> None:
            """Check and convert a value, when the object is made and later."""
            if name not in settings():
                raise AttributeError(f"unknown setting {name!r}{_hint(name)}")
            super().__setattr__(name, read_setting(name, value))

    @property
    def is_progress_tracking_enabled(self) -> bool:
        """Return whether rounds without progress end the job."""
        return self.max_no_progress_cycles > 0

    @classmethod
    def from_kwargs(
        cls, ignore_not_recognized: bool = False, **values: object
    ) -> "FaultToleranceConfig":
        """Make a configuration from fields by name; others are at their defaults.

        Args:
            ignore_not_recognized: leave out names that are no fields, instead of refusing them.
            values: fields.

        Raises:
            ValueError: a name is no field (the nearest one is named), or a value makes no sense.
        """
        return cls(**known_settings(values, ignore_unknown=ignore_not_recognized))

    @classmethod
    def from_yaml_file(
        cls, cfg_path: "str | Path", ignore_not_recognized: bool = False
    ) -> "FaultToleranceConfig":
        """Make a configuration from the section ``fault_tolerance`` of a YAML file.

        Args:
            cfg_path: the file; the section may be at any depth in mappings and lists.
            ignore_not_recognized: leave out keys that are no fields, instead of refusing them.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not YAML or has no such section, a key is no field, or a value makes
                no sense.
        """
        from undaunted.fault_tolerance.config_file import read_section

        return cls.from_kwargs(ignore_not_recognized, **read_section(cfg_path))

    @classmethod
    def from_args(cls, args: "argparse.Namespace") -> "FaultToleranceConfig":
        """Make a configuration from parsed arguments named as those of NVRx's launcher.

        Args:
            args: ``ft_cfg_path`` names a YAML file (``ft_ignore_missing_cfg``: it need not exist or
                have the section); every ``ft_FIELD`` that is not None goes before the file.

        Raises:
            OSError, ValueError: as `from_yaml_file`.
        """
        from undaunted.fault_tolerance.config_file import MissingSectionError, read_section

        found: dict[str, Any] = {}
        path = getattr(args, "ft_cfg_path", None)
        try:
            found = known_settings(read_section(path)) if path else {}
        except (FileNotFoundError, MissingSectionError):
            if not getattr(args, "ft_ignore_missing_cfg", False):
                raise
        for name in settings():
            given = getattr(args, f"ft_{name}", None)
            if given is not None:
                found[name] = given
        return cls(**found)

    def to_yaml_file(self, cfg_path: "str | Path") -> None:
        """Write all settings as the section ``fault_tolerance``; only this user may read the file.

        Raises:
            OSError: the file cannot be written.
        """
        from undaunted.fault_tolerance.config_file import write_section

        found = dataclasses.asdict(self)
        found["rank_termination_signal"] = self.rank_termination_signal.name
        write_section(cfg_path, found)


@functools.cache
def settings() -> dict[str, Option]:
    """Every setting by the name of its field, in the order of the class."""
    return {option.field: option for option in options_of(FaultToleranceConfig)}


def read_setting(name: str, value: object) -> Any:
    """Check and convert one value.

    Raises:
        ValueError: it makes no sense; the message begins with the name.
    """
    try:
        return settings()[name].kind.read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def known_settings(
    given: "Mapping[str, object]", *, ignore_unknown: bool = False
) -> dict[str, Any]:
    """Return the values whose names are settings, checked and converted.

    Raises:
        ValueError: a name is no setting and ``ignore_unknown`` is false, or a value makes no sense.
    """
    unknown = [name for name in given if name not in settings()]
    if unknown and not ignore_unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}{_hint(str(unknown[0]))}")
    return {name: read_setting(name, value) for name, value in given.items() if name in settings()}


def _hint(name: str) -> str:
    return did_you_mean(name, settings()) or "; docs/configuration.md lists all"
