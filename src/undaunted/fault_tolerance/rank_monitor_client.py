"""`RankMonitorClient`: the familiar interface of a monitored rank, on top of the progress page."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.data import RankInfo, WorkloadControlRequest, encode_request
from undaunted.progress.writer import current_writer

if TYPE_CHECKING:
    from undaunted.progress.writer import PageWriter

_CONTROL_TIMEOUT_S = 10.0


class RankMonitorClientError(Exception):
    """`RankMonitorClient` was used wrongly, or the launcher refused a request."""


@dataclass(frozen=True)
class MonitoringConfig:
    """The limits the launcher holds this rank to, in seconds; None = no limit.

    Empty where there is no launcher, or where its limits are too long for the page.
    """

    initial_rank_heartbeat_timeout: float | None = None
    rank_heartbeat_timeout: float | None = None
    rank_section_timeouts: dict[str, float | None] = field(default_factory=dict)
    rank_out_of_section_timeout: float | None = None


class RankMonitorClient:
    """Tells the launcher what this rank is doing.

    Heartbeats and sections are a few memory stores: they never block, and never raise because
    monitoring failed or the launcher is gone. What they do raise is `RankMonitorClientError` for
    wrong use: before `init_workload_monitoring`, opening a section twice, closing one that is not
    open. They do so for every section, whether a limit is set for it or not, and also without a
    launcher, so that the same script has the same errors everywhere.

    Without a launcher everything works and nothing is watched; this is said once.

    Attributes:
        cfg: limits the launcher applies; None before initialisation.
        is_initialized: between `init_workload_monitoring` and `shutdown_workload_monitoring`.
        rank_info: who this rank is; None before initialisation.
    """

    def __init__(self) -> None:
        self.cfg: MonitoringConfig | None = None
        self.is_initialized = False
        self.rank_info: RankInfo | None = None
        self._open: set[str] = set()
        self._writer: PageWriter

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Begin to be monitored.

        Args:
            num_warmup_iters: for how many iterations after the first the warm-up limit replaces
                the one of section ``step``; None = as the launcher is configured.

        Raises:
            RankMonitorClientError: it has begun already.
        """
        if self.is_initialized:
            raise RankMonitorClientError(
                "init_workload_monitoring was called already; call shutdown_workload_monitoring "
                "before calling it again"
            )
        self._writer = current_writer()
        self.rank_info = _who_am_i()
        self.cfg = _read_config(self._writer)
        self._writer.initialize(num_warmup_iters)
        self.is_initialized = True

    def shutdown_workload_monitoring(self) -> None:
        """End monitoring: no limit applies any more. Does nothing if it has not begun."""
        if not self.is_initialized:
            return
        self._open.clear()
        self._writer.shut_down()
        self.is_initialized = False

    def send_heartbeat(self) -> None:
        """Say that this rank makes progress."""
        if not self.is_initialized:
            self._refuse("send_heartbeat")
        self._writer.heartbeat()

    def start_section(self, section: str) -> None:
        """Open a section. Sections may nest and overlap in any order.

        Args:
            section: its name.

        Raises:
            RankMonitorClientError: it is open already.
        """
        if not self.is_initialized:
            self._refuse("start_section")
        if section in self._open:
            raise RankMonitorClientError(
                f"section {section!r} was started already; end it before starting it again"
            )
        self._open.add(section)
        self._writer.open_section(section)

    def end_section(self, section: str) -> None:
        """Close a section.

        Raises:
            RankMonitorClientError: it is not open.
        """
        if not self.is_initialized:
            self._refuse("end_section")
        if section not in self._open:
            among = ", ".join(sorted(map(repr, self._open))) or "none"
            raise RankMonitorClientError(
                f"section {section!r} cannot be ended, it was not started; open are: {among}"
            )
        self._open.remove(section)
        self._writer.close_section(section)

    def end_all_sections(self) -> None:
        """Close all sections that are open, if any."""
        if not self.is_initialized:
            self._refuse("end_all_sections")
        self._open.clear()
        self._writer.close_all()

    def send_workload_control_request(self, request: WorkloadControlRequest) -> None:
        """Ask the launcher for something about the whole job; wait until it has taken it.

        Args:
            request: for example to exclude this node.

        Raises:
            RuntimeError: there is no launcher.
            RankMonitorClientError: it did not answer within 10 s, or refused.
        """
        writer = current_writer()
        if not writer.attached:
            raise RuntimeError(
                f"{request.action.name} was requested, but there is no launcher to ask "
                f"({writer.reason}); start the program with `undaunted run`"
            )
        try:
            reply = writer.request(encode_request(request), _CONTROL_TIMEOUT_S)
        except TimeoutError as error:
            raise RankMonitorClientError(
                f"{request.action.name} was requested, but {error}; it may still be taken later"
            ) from None
        if reply != b"ok":
            raise RankMonitorClientError(
                f"the launcher refused {request.action.name}: {reply.decode(errors='replace')}"
            )

    def _refuse(self, method: str) -> None:
        raise RankMonitorClientError(
            f"{method} needs monitoring; call init_workload_monitoring first"
        )


def _read_config(writer: PageWriter) -> MonitoringConfig:
    import msgspec

    from undaunted.progress.limits import Limits

    try:
        limits = msgspec.json.decode(writer.limits_json(), type=Limits)
    except msgspec.DecodeError:  # none there, or damaged
        return MonitoringConfig()
    return MonitoringConfig(
        initial_rank_heartbeat_timeout=limits.initial_heartbeat_s,
        rank_heartbeat_timeout=limits.heartbeat_s,
        rank_section_timeouts=limits.sections,
        rank_out_of_section_timeout=limits.out_of_section_s,
    )


def _who_am_i() -> RankInfo:
    """Ask torch.distributed if the program has set it up, else the environment."""
    local_rank = _number("LOCAL_RANK")
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        global_rank = int(distributed.get_rank())
    else:
        global_rank = _number("RANK")
    return RankInfo(global_rank, local_rank, os.uname().nodename, os.getpid())


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else 0
