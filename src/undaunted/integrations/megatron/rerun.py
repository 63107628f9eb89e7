"""Names of ``megatron.core.rerun_state_machine``: one machine for the process.

Wherever checkpoints are saved with Megatron's ``dist_checkpointing``, what belongs to a rank goes
there as a ``ShardedObject``; where that is not installed, it is a plain dict.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

from undaunted.base import torch_ranks
from undaunted.integrations.megatron.rerun_injection import RerunErrorInjector
from undaunted.integrations.requirements import Requirement, check
from undaunted.progress.writer import current_writer
from undaunted.training.rerun.batches import RerunDataIterator
from undaunted.training.rerun.difference import COMPARISON_MATCH, COMPARISON_MISMATCH
from undaunted.training.rerun.odd import Call, Caller
from undaunted.training.rerun.stats import QuickStats, StatisticsMachine
from undaunted.training.rerun.table import (
    EXIT_CODE_FAILED_ON_RESULT_VALIDATION,
    EXIT_CODE_RESUME_TO_DISAMBIGUATE,
    RerunDiagnostic,
    RerunMode,
    RerunState,
    RerunValidationStatus,
)
from undaunted.training.rerun.tracker import get_skipped_iterations_from_tracker_file
from undaunted.training.stopping import StopReason, tell_launcher

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = [
    "COMPARISON_MATCH",
    "COMPARISON_MISMATCH",
    "EXIT_CODE_FAILED_ON_RESULT_VALIDATION",
    "EXIT_CODE_RESUME_TO_DISAMBIGUATE",
    "REPORTING_INTERVAL_ITERATIONS",
    "Call",
    "Caller",
    "QuickStats",
    "RerunDataIterator",
    "RerunDiagnostic",
    "RerunErrorInjector",
    "RerunMode",
    "RerunState",
    "RerunStateMachine",
    "RerunValidationStatus",
    "destroy_rerun_state_machine",
    "get_rerun_state_machine",
    "get_skipped_iterations_from_tracker_file",
    "initialize_rerun_state_machine",
]

REPORTING_INTERVAL_ITERATIONS = StatisticsMachine.REPORTING_INTERVAL_ITERATIONS
_KEY = "rerun_state_machine_state"
_FORMAT = "torch_dist"
_REASONS = {
    EXIT_CODE_RESUME_TO_DISAMBIGUATE: StopReason.SUSPECT,
    EXIT_CODE_FAILED_ON_RESULT_VALIDATION: StopReason.INVALID,
}
_LOG = logging.getLogger("undaunted")
_machine: RerunStateMachine | None = None


class RerunStateMachine(StatisticsMachine):
    """The machine of `undaunted.training.rerun`, with Megatron's form of what is saved.

    Args:
        error_injector: has results called odd, for tests.
        mode: and all others, see there.
    """

    get_skipped_iterations_from_tracker_file = staticmethod(
        get_skipped_iterations_from_tracker_file
    )

    def __init__(
        self,
        state_save_func: Callable[[], Any] | None = None,
        state_restore_func: Callable[[Any], object] | None = None,
        mode: RerunMode | str = RerunMode.DISABLED,
        error_injector: RerunErrorInjector | None = None,
        result_rejected_tracker_filename: str | os.PathLike[str] | None = None,
        **more: Any,
    ) -> None:
        tracker = result_rejected_tracker_filename
        super().__init__(state_save_func, state_restore_func, mode, tracker, **more)
        self.error_injector = error_injector or RerunErrorInjector()

    def is_odd(self, result: Any, rejection_func: Callable[[Any], Any]) -> bool:
        """Return whether a result is odd, or is called so."""
        injector = self.error_injector
        injected = injector.error_injection_rate and injector.maybe_inject(torch_ranks.place()[0])
        return bool(injected) or super().is_odd(result, rejection_func)

    def apart(self, compare: Callable[[Any, Any], float], first: Any, second: Any) -> float:
        """Return how far two results are apart, as it fits to what was injected."""
        return self.error_injector.maybe_miscompare(compare, first, second, self.state)

    def should_checkpoint_and_exit(self) -> tuple[bool, bool, int]:
        """Return whether to save, whether to end, and with which exit code; after the loop.

        The launcher of undaunted gets the reason, as it does not go by the exit code of a rank.
        """
        found = super().should_checkpoint_and_exit()
        if found[1]:
            odd = self.verdict or self.odd
            if self.verdict is not None:
                current_writer().event("odd_result", self.verdict.text)
            rank, text = (None, "") if odd is None else (torch_ranks.place()[0], odd.text)
            tell_launcher(_REASONS[found[2]], rank, text)
        return found

    def state_dict(  # type: ignore[override]  # None is theirs
        self,
        data_iterator: Any = None,
        ckpt_format: str = _FORMAT,
        force: bool = False,
    ) -> dict[str, Any] | None:
        """Return what belongs into a checkpoint; None = nothing.

        Args:
            data_iterator: as given to `should_run_forward_backward`.
            ckpt_format: only ``torch_dist`` holds what differs from rank to rank.
            force: return it for any format, and in any mode.
        """
        if not force and (self.get_mode() is RerunMode.DISABLED or ckpt_format != _FORMAT):
            return None
        state = super().state_dict(data_iterator)
        mine = {**state["sharded"], "error_injector_state": self.error_injector.state_dict()}
        state["sharded"] = _sharded(mine)
        return state

    def _load(self, state_dict: Any) -> None:
        self.error_injector.load_state_dict(state_dict["sharded"]["error_injector_state"])
        super()._load(state_dict)

    def validate_state_dict(self, state_dict: Any) -> bool:
        """Return whether there is a step to be run again in what a checkpoint has."""
        try:
            return RerunState(int(state_dict["state"])) is not RerunState.NOT_RUNNING_YET
        except (KeyError, TypeError, ValueError):
            return False


def initialize_rerun_state_machine(**kwargs: Any) -> None:
    """Make the machine of this process. Arguments are those of `RerunStateMachine`.

    Raises:
        AssertionError: there is one.
        RuntimeError: Megatron is of a version that is not supported.
    """
    global _machine  # noqa: PLW0603 - their functions know one machine
    if _machine is not None:
        raise AssertionError(
            "the rerun state machine is there already; call destroy_rerun_state_machine() first"
        )
    if "megatron.core" in sys.modules:  # a version that is not supported is refused now
        _mapping()
    _machine = RerunStateMachine(**kwargs)


def get_rerun_state_machine() -> RerunStateMachine:
    """Return the machine of this process; one that is disabled, if none was made."""
    if _machine is None:
        _LOG.warning("Implicit initialization of Rerun State Machine!")
        initialize_rerun_state_machine()
    if _machine is None:
        raise AssertionError("another thread has destroyed the rerun state machine")
    return _machine


def destroy_rerun_state_machine() -> None:
    """Forget the machine of this process."""
    global _machine  # noqa: PLW0603 - as above
    _machine = None


def _sharded(state: dict[str, Any]) -> Any:
    mapping = _mapping()
    if mapping is None:
        return state
    rank, world_size = torch_ranks.place()
    return mapping.ShardedObject(_KEY, state, (world_size,), (rank,))


def _mapping() -> Any:
    """Return Megatron's module of what belongs to a rank, None = it is not installed."""
    try:
        found: Any = importlib.import_module("megatron.core.dist_checkpointing.mapping")
    except ImportError:
        return None
    check("megatron_core", found, [Requirement("ShardedObject", 4)])
    return found
