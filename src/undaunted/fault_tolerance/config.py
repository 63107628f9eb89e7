"""`FaultToleranceConfig`: every setting of in-job restart, with its type, default and check.

This dataclass is the one table of the settings. The options of the command line, the reading of
YAML files and the documentation come from it; see `Setting`.
"""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING, Any

from undaunted.fault_tolerance import config_values as read
from undaunted.fault_tolerance.config_schema import (
    ATTRIBUTION,
    DEVICES,
    HEALTH,
    NODES,
    OUTPUT,
    PROGRESS,
    TIMEOUTS,
    UNUSED,
    Setting,
)
from undaunted.fault_tolerance.config_schema import setting as _setting

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_SWITCH = "true|false"
_TEXT = read.optional(read.text)


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
    rank_heartbeat_timeout: float | None = _setting(
        2700.0, TIMEOUTS, read.limit, "TIME", "Longest time between two heartbeats of a rank"
    )
    initial_rank_heartbeat_timeout: float | None = _setting(
        3600.0,
        TIMEOUTS,
        read.limit,
        "TIME",
        "Longest time until the first heartbeat; if given, it also ends jobs that never call "
        "undaunted.step",
    )
    rank_section_timeouts: dict[str, float | None] = _setting(  # noqa: RUF009 - makes a field
        {},
        TIMEOUTS,
        read.sections,
        "NAME:TIME,...",
        "Longest time in each section, as in step:60,checkpoint:10m; warmup is for the first steps",
    )
    rank_out_of_section_timeout: float | None = _setting(
        None,
        TIMEOUTS,
        read.limit,
        "TIME",
        "Longest time outside all sections, once sections are used",
    )
    num_warmup_iterations: int = _setting(
        5,
        TIMEOUTS,
        read.whole(0),
        "N",
        "How many iterations of a round the section limit warmup replaces that of step",
    )
    safety_factor: float = _setting(
        5.0,
        TIMEOUTS,
        read.number(1),
        "X",
        "Limits that ranks calculate are so many times the longest wait seen",
    )
    learn_timeouts: bool = _setting(
        True, TIMEOUTS, read.boolean, _SWITCH, "Replace limits that nobody gave by learned ones"
    )
    min_measured_timeout: float = _setting(
        60.0, TIMEOUTS, read.seconds, "TIME", "No limit that is learned or calculated is shorter"
    )
    skip_section_response: bool = _setting(
        True,
        TIMEOUTS,
        read.boolean,
        _SWITCH,
        "false = RankMonitorClient has each call confirmed by the launcher, and raises otherwise",
    )
    rank_termination_signal: signal.Signals = _setting(  # noqa: RUF009 - makes a field
        signal.SIGKILL, TIMEOUTS, read.signal_number, "SIGNAL", "Signal that ends a hung rank"
    )
    install_exception_hook: bool = _setting(
        True,
        TIMEOUTS,
        read.boolean,
        _SWITCH,
        "Report unhandled exceptions of ranks before they exit",
    )
    # --- progress ---
    max_no_progress_cycles: int = _setting(
        3,
        PROGRESS,
        read.whole(),
        "N",
        "So many rounds in a row that do not advance end the job with 93; 0 = never",
    )
    min_progress_iterations: int = _setting(
        1,
        PROGRESS,
        read.whole(1),
        "N",
        "A round that advances by fewer iterations has not advanced",
    )
    checkpoint_iteration_file: str | None = _setting(
        None,
        PROGRESS,
        _TEXT,
        "FILE",
        "Text file with the iteration of the last checkpoint; without it, what ranks report counts",
    )
    last_copies_mb_per_s: float = _setting(
        200.0,
        PROGRESS,
        read.number(0),
        "MB",
        "When a job fails: what is in memory only gets the time to be written at so many MB/s, at "
        "least 60 s; 0 = it is not written",
    )
    # --- devices ---
    gpu_memory_reclaim_timeout: float = _setting(
        50.0,
        DEVICES,
        read.seconds,
        "TIME",
        "Before a restart: how long to wait for GPU memory to be free; 0 = do not wait",
    )
    gpu_memory_tolerance_mb: float = _setting(
        512.0,
        DEVICES,
        read.number(0),
        "MIB",
        "GPU memory that may be in use at a restart",
    )
    gpu_memory_poll_interval: float = _setting(
        2.0,
        DEVICES,
        read.positive_seconds,
        "TIME",
        "Longest time between two looks at GPU memory",
    )
    check_remaining_processes: bool = _setting(
        False,
        DEVICES,
        read.boolean,
        _SWITCH,
        "Name processes that a round has left behind",
    )
    numa_bind_strict: bool = _setting(
        True,
        DEVICES,
        read.boolean,
        _SWITCH,
        "With NVRX_GPUS_PER_NUMA: true = memory only of the rank's NUMA node; false = preferably",
    )
    # --- output ---
    log_level: int = _setting(
        20,
        OUTPUT,
        read.log_level,
        "LEVEL",
        "Lines of the launcher from this level on: INFO (DEBUG is the same), WARNING, ERROR",
    )
    # --- several nodes ---
    use_infra_group_rank: bool = _setting(
        True, NODES, read.boolean, _SWITCH, "Ranks follow the scheduler's; one node has one order"
    )
    segment: int | None = _setting(
        None, NODES, read.optional(read.whole(1)), "N", "Nodes per segment; 1 on one node"
    )
    # --- health checks ---
    node_health_check_interval: float = _setting(
        5.0,
        HEALTH,
        read.positive_seconds,
        "TIME",
        "Between two health checks in a round: of GPUs, and of NICs with enable_nic_monitor",
    )
    enable_nic_monitor: bool = _setting(
        False, HEALTH, read.boolean, _SWITCH, "A NIC that loses its link makes the node unhealthy"
    )
    enable_nic_healthcheck: bool = _setting(
        True,
        HEALTH,
        read.boolean,
        _SWITCH,
        "Before a round: links of NICs that were active must be",
    )
    pci_topo_file: str | None = _setting(
        None, HEALTH, _TEXT, "FILE", "The PCI tree (XML): only NICs beside GPUs are watched"
    )
    link_down_path_template: str | None = _setting(
        None,
        HEALTH,
        read.optional(read.device_template),
        "PATH",
        "Counter of lost links, with {dev_name} for the device",
    )
    link_state_path_template: str | None = _setting(
        None,
        HEALTH,
        read.optional(read.nic_template),
        "PATH",
        "State of a link, with {nic} for the NIC",
    )
    enable_dist_storage_healthcheck: bool = _setting(
        False, HEALTH, read.boolean, _SWITCH, "Before a round: Lustre and NFS mounts must answer"
    )
    storage_healthcheck_path: str | None = _setting(
        None,
        HEALTH,
        read.optional(read.absolute_paths),
        "PATHS",
        "Before a round: absolute paths, separated by commas, that must be readable",
        aliases=("ft-storage-health-check-path",),
    )
    # --- attribution service ---
    attribution_endpoint: str | None = _setting(
        None,
        ATTRIBUTION,
        read.optional(read.service),
        "URL",
        "Service that is asked what the log of each round shows: http://HOST:PORT, unix:///PATH",
    )
    attribution_stop_action: str | None = _setting(
        None,
        ATTRIBUTION,
        read.optional(read.choice("log", "no-restart")),
        "ACTION",
        "When the service advises to stop: log = say so; no-restart = end the job with 93",
    )
    attribution_export_url: str | None = _setting(
        None,
        ATTRIBUTION,
        _TEXT,
        "URL",
        "Where the service sends its results",
        not_built="an attribution service that the launcher starts",
    )
    attrsvc_host: str | None = _setting(
        None, ATTRIBUTION, _TEXT, "HOST", "Host of the service; with a port instead of the URL"
    )
    attrsvc_port: int | None = _setting(
        None, ATTRIBUTION, read.optional(read.whole(1, 65535)), "PORT", "Its port"
    )
    cycle_info_dir: str | None = _setting(
        None, OUTPUT, _TEXT, "DIR", "Directory of a file about each round: its nodes and times"
    )
    # --- what undaunted does not need ---
    workload_check_interval: float = _setting(
        5.0,
        UNUSED,
        read.positive_seconds,
        "TIME",
        "Nothing is polled: a timer waits for the next limit",
    )
    restart_check_interval: float = _setting(
        60.0, UNUSED, read.positive_seconds, "TIME", "Restarts are written to the journal at once"
    )

    if not TYPE_CHECKING:  # checkers would take it that any name can be set

        def __setattr__(self, name: str, value: object) -> None:
            """Check and convert a value, when the object is made and later."""
            field = type(self).__dataclass_fields__.get(name)
            if field is None:
                known = _nearest(name, settings())
                raise AttributeError(f"unknown setting {name!r}{known}")
            super().__setattr__(name, read_setting(name, field.metadata["setting"], value))

    @property
    def is_progress_tracking_enabled(self) -> bool:
        """Whether rounds without progress end the job."""
        return self.max_no_progress_cycles > 0

    @classmethod
    def from_kwargs(
        cls, ignore_not_recognized: bool = False, **values: object
    ) -> FaultToleranceConfig:
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
        cls, cfg_path: str | Path, ignore_not_recognized: bool = False
    ) -> FaultToleranceConfig:
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
    def from_args(cls, args: argparse.Namespace) -> FaultToleranceConfig:
        """Make a configuration from parsed arguments named as those of NVRx's launcher.

        Args:
            args: ``ft_cfg_path`` names a YAML file (``ft_ignore_missing_cfg``: it need not exist or
                have the section); every ``ft_FIELD`` that is not None goes before the file.

        Raises:
            OSError, ValueError: as `from_yaml_file`.
        """
        from undaunted.fault_tolerance.config_file import MissingSectionError, read_section

        values: dict[str, Any] = {}
        path = getattr(args, "ft_cfg_path", None)
        try:
            values = known_settings(read_section(path)) if path else {}
        except (FileNotFoundError, MissingSectionError):
            if not getattr(args, "ft_ignore_missing_cfg", False):
                raise
        for name in settings():
            given = getattr(args, f"ft_{name}", None)
            if given is not None:
                values[name] = given
        return cls(**values)

    def to_yaml_file(self, cfg_path: str | Path) -> None:
        """Write all settings as the section ``fault_tolerance``; only this user may read the file.

        Raises:
            OSError: the file cannot be written.
        """
        from undaunted.fault_tolerance.config_file import write_section

        values = dataclasses.asdict(self)
        values["rank_termination_signal"] = self.rank_termination_signal.name
        write_section(cfg_path, values)


def settings() -> dict[str, Setting]:
    """Every setting by the name of its field, in the order of the class."""
    return {
        field.name: field.metadata["setting"] for field in dataclasses.fields(FaultToleranceConfig)
    }


def read_setting(name: str, setting: Setting, value: object) -> Any:
    """Check and convert one value.

    Raises:
        ValueError: it makes no sense; the message begins with the name.
    """
    try:
        return setting.read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def known_settings(values: Mapping[str, object], *, ignore_unknown: bool = False) -> dict[str, Any]:
    """Return the values whose names are settings, checked and converted.

    Raises:
        ValueError: a name is no setting and ``ignore_unknown`` is false, or a value makes no sense.
    """
    table = settings()
    unknown = [name for name in values if name not in table]
    if unknown and not ignore_unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}{_nearest(str(unknown[0]), table)}")
    return {
        name: read_setting(name, table[name], value)
        for name, value in values.items()
        if name in table
    }


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else "; docs/configuration.md lists all"
