"""`RankMonitorClient`: the familiar interface of a monitored rank, on top of the progress page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from undaunted.fault_tolerance import timeouts_calc
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.data import WorkloadControlRequest, encode_request, who_am_i
from undaunted.fault_tolerance.monitoring_config import config_of, read_limits
from undaunted.fault_tolerance.timeouts_calc import (
    HeartbeatTimeouts,
    SectionTimeouts,
    SynchronizationError,
    TimeoutsCalc,
    TimeoutsCalcError,
    configured_timeouts,
    synchronized,
)
from undaunted.progress.writer import current_writer

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable, Mapping

    from undaunted.fault_tolerance.data import RankInfo
    from undaunted.progress.snapshot import Maxima
    from undaunted.progress.writer import PageWriter

_CONTROL_TIMEOUT_S = 10.0
_CONFIRM_TIMEOUT_S = 10.0
_CONFIRM = b'{"confirm": true}'
_SYNC_TIMEOUT_S = 60.0


class RankMonitorClientError(Exception):
    """`RankMonitorClient` was used wrongly, or the launcher refused or did not answer."""


class RankMonitorClient:
    """Tells the launcher what this rank is doing.

    Heartbeats and sections are a few memory stores: they never block, and never raise because
    monitoring failed or the launcher is gone. They raise `RankMonitorClientError` for
    wrong use: before `init_workload_monitoring`, opening a section twice, closing one that is not
    open. This holds for every section, with a limit or without, and also without a
    launcher: the same script has the same errors everywhere. A name that is no text is a
    TypeError. In strict mode (``skip_section_response: false``) each of them also waits until the
    launcher has confirmed it, for 10 s at most, and raises `RankMonitorClientError` otherwise.

    Without a launcher everything works and nothing is watched, with one line that says so.

    Attributes:
        cfg: a copy of the launcher's configuration, with the limits it applies; without a launcher
            there is no limit. None before initialisation.
        is_initialized: between `init_workload_monitoring` and `shutdown_workload_monitoring`.
        rank_info: who this rank is; None before initialisation.
        hb_timeouts: limits of heartbeats, configured or calculated (and applied with a minute at
            least, see ``cfg``); None before initialisation.
        section_timeouts: limits of sections, likewise.
        timeouts_calc: longest durations of this process, also those of `undaunted.step` and
            friends; None before initialisation.
        loaded_hb_timeouts: limits of heartbeats given to `load_state_dict`, or None.
        loaded_section_timeouts: limits of sections, likewise.
    """

    _config_class: type[FaultToleranceConfig] = FaultToleranceConfig

    def __init__(self) -> None:
        self.cfg: FaultToleranceConfig | None = None
        self.is_initialized = False
        self.rank_info: RankInfo | None = None
        self.hb_timeouts: HeartbeatTimeouts | None = None
        self.section_timeouts: SectionTimeouts | None = None
        self.timeouts_calc: TimeoutsCalc | None = None
        self.loaded_hb_timeouts: HeartbeatTimeouts | None = None
        self.loaded_section_timeouts: SectionTimeouts | None = None
        self._strict = False
        self._measured: TimeoutsCalc
        self._writer: PageWriter

    def init_workload_monitoring(self, num_warmup_iters: int | None = None) -> None:
        """Begin to be monitored.

        Args:
            num_warmup_iters: for how many iterations after the first the warm-up limit replaces
                the one of section ``step``; None = as the launcher is configured.

        Raises:
            RankMonitorClientError: it has begun already.
            TypeError: the number is no whole number.
        """
        if num_warmup_iters is not None and not isinstance(num_warmup_iters, int):
            raise TypeError(f"num_warmup_iters is {num_warmup_iters!r}, not a whole number")
        if self.is_initialized:
            raise RankMonitorClientError(
                "init_workload_monitoring was called already; call shutdown_workload_monitoring "
                "before calling it again"
            )
        self._writer = current_writer()
        self.rank_info = who_am_i()
        limits = read_limits(self._writer)
        self.cfg = config_of(limits, self._config_class)
        self._strict = limits.confirm
        self.hb_timeouts, self.section_timeouts = configured_timeouts(limits)
        self.timeouts_calc = self._measured = TimeoutsCalc(self._writer)
        self._writer.initialize(num_warmup_iters)
        self.is_initialized = True
        self._use_loaded()

    def shutdown_workload_monitoring(self) -> None:
        """End monitoring: no limit applies any more. Does nothing if it has not begun."""
        if not self.is_initialized:
            return
        self._writer.shut_down()
        self.is_initialized = False

    def send_heartbeat(self) -> None:
        """Say that this rank makes progress."""
        if not self.is_initialized:
            self._refuse("send_heartbeat")
        self._writer.heartbeat()
        if self._strict:
            self._confirm("send_heartbeat")

    def start_section(self, section: str) -> None:
        """Open a section. Sections may nest and overlap in any order.

        Args:
            section: its name.

        Raises:
            RankMonitorClientError: it is open already.
        """
        if not self.is_initialized:
            self._refuse("start_section")
        if section in self._measured.open_sections:
            raise RankMonitorClientError(
                f"section {section!r} was started already; end it before starting it again"
            )
        self._writer.open_section(section)
        self._measured.open_sections[section] = None
        if self._strict:
            self._confirm(f"start_section({section!r})")

    def end_section(self, section: str) -> None:
        """Close a section.

        Raises:
            RankMonitorClientError: it is not open.
        """
        if not self.is_initialized:
            self._refuse("end_section")
        if section not in self._measured.open_sections:
            among = ", ".join(sorted(map(repr, self._measured.open_sections))) or "none"
            raise RankMonitorClientError(
                f"section {section!r} cannot be ended, it was not started; open are: {among}"
            )
        self._writer.close_section(section)
        del self._measured.open_sections[section]
        if self._strict:
            self._confirm(f"end_section({section!r})")

    def end_all_sections(self) -> None:
        """Close all sections that are open, if any."""
        if not self.is_initialized:
            self._refuse("end_all_sections")
        self._writer.close_all()
        self._measured.open_sections.clear()
        if self._strict:
            self._confirm("end_all_sections")

    def _confirm(self, call: str) -> None:
        """Wait until the launcher has seen what was stored; without one there is nobody to ask."""
        if not self._writer.attached:
            return
        try:
            reply = self._writer.request(_CONFIRM, _CONFIRM_TIMEOUT_S)
        except (TimeoutError, RuntimeError) as error:
            raise RankMonitorClientError(f"{call} is not confirmed: {error}") from None
        if reply != b"ok":
            raise RankMonitorClientError(f"{call} is refused: {reply.decode(errors='replace')}")

    # --- limits from measurements ---------------------------------------------------------------

    def calculate_and_set_hb_timeouts(
        self,
        skip_if_not_ready: bool = False,
        *,
        group: Any = None,
        sync_timeout_s: float = _SYNC_TIMEOUT_S,
    ) -> bool:
        """Have this job held to limits of heartbeats that follow from what was measured.

        The new limit is ``cfg.safety_factor`` times the longest wait on any rank; if the one so far
        was calculated as well, it is the mean of both. Every rank of the group has to call this.

        Args:
            skip_if_not_ready: return False, do not raise, while fewer than two heartbeats were sent
                on every rank. All ranks come to the same answer.
            group: process group of torch.distributed, None = all ranks; without torch.distributed
                this rank is alone.
            sync_timeout_s: how long to wait for the other ranks, seconds.

        Returns:
            False if nothing was changed, since it is not ready, or came too late: after
            `shutdown_workload_monitoring`, or when other ranks are gone. That is logged.

        Raises:
            RankMonitorClientError: not initialised; or not ready, unless limits were calculated or
                loaded before, which then stay.
        """
        seen = self._seen_by_all("calculate_and_set_hb_timeouts", group, sync_timeout_s)
        current = self.hb_timeouts
        if seen is None or self.cfg is None or current is None:
            return False
        try:
            new = timeouts_calc.heartbeat_timeouts(seen, current, self.cfg.safety_factor)
        except TimeoutsCalcError as error:
            return self._not_ready(error, skip_if_not_ready or current.were_calculated)
        self.hb_timeouts = new
        return self._apply({"heartbeat": [new.initial, new.subsequent]})

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Iterable[str] | None = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
        *,
        group: Any = None,
        sync_timeout_s: float = _SYNC_TIMEOUT_S,
    ) -> bool:
        """Have this job held to limits of sections that follow from what was measured.

        As `calculate_and_set_hb_timeouts`, from the longest time that each section was open.

        Args:
            selected_sections: names; limits of others stay. None = all that have a limit in the
                configuration, or, if none has, all that were used. ``[]`` = none.
            calc_out_of_section: also the limit outside of sections.
            skip_if_not_ready: return False, do not raise, while a selected section was not ended on
                any rank.
            group: see there.
            sync_timeout_s: see there.

        Returns:
            See there.

        Raises:
            RankMonitorClientError: see there.
        """
        seen = self._seen_by_all("calculate_and_set_section_timeouts", group, sync_timeout_s)
        current = self.section_timeouts
        if seen is None or self.cfg is None or current is None:
            return False
        if selected_sections is None:
            selected_sections = self.cfg.rank_section_timeouts or seen.sections_ns
        given = selected_sections
        names = sorted({given} if isinstance(given, str) else set(given))
        try:
            new = timeouts_calc.section_timeouts(
                seen,
                current,
                self.cfg.safety_factor,
                sections=names,
                out_of_section=calc_out_of_section,
            )
        except TimeoutsCalcError as error:
            known = current.calculated_sections >= set(names)
            return self._not_ready(error, skip_if_not_ready or known)
        self.section_timeouts = new
        request: dict[str, Any] = {"sections": {name: new.section[name] for name in names}}
        if calc_out_of_section:
            request["out_of_section"] = new.out_of_section
        return self._apply(request)

    def state_dict(self) -> dict[str, Any]:
        """Return the calculated limits, to be kept in a checkpoint.

        They are plain values that JSON can hold, the same on all ranks. Before initialisation they
        are those that were loaded.
        """
        return timeouts_calc.to_state(
            self.hb_timeouts or self.loaded_hb_timeouts or HeartbeatTimeouts(),
            self.section_timeouts or self.loaded_section_timeouts or SectionTimeouts(),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Use limits calculated before, from a checkpoint; at once, or when monitoring begins.

        Args:
            state: of `state_dict`.

        Raises:
            RankMonitorClientError: it is something else.
        """
        try:
            heartbeat, section = timeouts_calc.from_state(state)
        except ValueError as error:
            raise RankMonitorClientError(f"state of timeouts cannot be loaded: {error}") from None
        self.loaded_hb_timeouts, self.loaded_section_timeouts = heartbeat, section
        if self.is_initialized:
            self._use_loaded()

    def _use_loaded(self) -> None:
        request: dict[str, Any] = {}
        heartbeat, section = self.loaded_hb_timeouts, self.loaded_section_timeouts
        if heartbeat is not None and heartbeat.were_calculated:
            self.hb_timeouts = heartbeat
            request["heartbeat"] = [heartbeat.initial, heartbeat.subsequent]
        if section is not None and self.section_timeouts is not None:
            self.section_timeouts = timeouts_calc.with_loaded(self.section_timeouts, section)
            limits = {name: section.section[name] for name in sorted(section.calculated_sections)}
            if limits:
                request["sections"] = limits
            if section.is_out_of_section_calculated:
                request["out_of_section"] = section.out_of_section
        if request:
            self._apply(request)

    def _seen_by_all(self, method: str, group: Any, timeout_s: float) -> Maxima | None:
        if self.timeouts_calc is None:
            self._refuse(method)
        if not self.is_initialized:
            _log().warning("%s: monitoring was shut down, limits stay as they are", method)
            return None
        try:
            return synchronized(self._measured.maxima(), group, timeout_s)
        except SynchronizationError as error:
            _log().warning(
                "%s: limits stay as they are, the other ranks cannot be asked: %s", method, error
            )
            return None

    def _not_ready(self, error: TimeoutsCalcError, quiet: bool) -> bool:
        if not quiet:
            raise RankMonitorClientError(
                f"not enough data to calculate timeouts: {error}; train longer before, or pass "
                "skip_if_not_ready=True"
            ) from None
        _log().info("timeouts stay as they are: %s", error)
        return False

    def _apply(self, limits: dict[str, Any]) -> bool:
        """Have the launcher hold this node to these limits; without one there is nothing to do."""
        if not self._writer.attached:
            return True
        try:
            payload = json.dumps({"timeouts": limits}).encode()
            reply = self._writer.request(payload, _CONTROL_TIMEOUT_S)
        except (TimeoutError, ValueError, RuntimeError) as error:
            _log().warning("calculated timeouts are not applied: %s", error)
            return False
        if reply != b"ok":
            _log().warning("calculated timeouts are refused: %s", reply.decode(errors="replace"))
            return False
        self.cfg = config_of(read_limits(self._writer), self._config_class)
        return True

    # --- requests -------------------------------------------------------------------------------

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

    def _refuse(self, method: str) -> NoReturn:
        raise RankMonitorClientError(
            f"{method} needs monitoring; call init_workload_monitoring first"
        )


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("undaunted")
