"""Odd results for tests: a result that counts as odd, and how it then compares."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any

from undaunted.training.rerun.difference import COMPARISON_MATCH, COMPARISON_MISMATCH
from undaunted.training.rerun.table import RerunDiagnostic, RerunState

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger("undaunted")
_NAMES = {
    RerunDiagnostic.CORRECT_RESULT: "Expected result",
    RerunDiagnostic.TRANSIENT_ERROR: "Transient error",
    RerunDiagnostic.PERSISTENT_ERROR: "Persistent error",
}


class RerunErrorInjector:
    """Says of one result in so many that it is odd, and has it compare as its kind does.

    Args:
        error_injection_rate: one of so many checks; 0 = none.
        error_injection_type: what the machine is to find out.
    """

    def __init__(
        self,
        error_injection_rate: int = 0,
        error_injection_type: RerunDiagnostic = RerunDiagnostic.TRANSIENT_ERROR,
    ) -> None:
        if not isinstance(error_injection_rate, int) or error_injection_rate < 0:
            raise ValueError(
                f"error_injection_rate is {error_injection_rate!r}: give a number from 0"
            )
        self.error_injection_rate = error_injection_rate
        self.error_injection_type = RerunDiagnostic(error_injection_type)
        self.injected_error_type: RerunDiagnostic | None = None
        self._random = random.Random()  # noqa: S311 - not the program's generator

    def maybe_inject(self, rank: int = 0) -> bool:
        """Return whether to call the result of a check odd. One at a time."""
        rate = self.error_injection_rate
        if not rate or self.injected_error_type is not None:
            return False
        if (self._random.randrange(rate) + rank) % rate:
            return False
        self.injected_error_type = self.error_injection_type
        _LOG.info("Injecting error type %s", _NAMES[self.error_injection_type])
        return True

    def maybe_miscompare(
        self,
        comparison_func: Callable[[Any, Any], float],
        initial_result: Any,
        result: Any,
        state: RerunState,
    ) -> float:
        """Return how far results are apart, as it fits to what was injected, if anything was."""
        kind = self.injected_error_type
        if kind is None:
            return comparison_func(initial_result, result)
        transient = kind is RerunDiagnostic.TRANSIENT_ERROR
        if state is RerunState.RERUNNING_IN_PLACE:
            if transient:
                self.injected_error_type = None
            return COMPARISON_MISMATCH if transient else COMPARISON_MATCH
        self.injected_error_type = None
        persistent = kind is RerunDiagnostic.PERSISTENT_ERROR
        return COMPARISON_MISMATCH if persistent else COMPARISON_MATCH

    def state_dict(self) -> dict[str, Any]:
        """Return what a later process needs."""
        kind = self.injected_error_type
        return {
            "error_injection_rate": self.error_injection_rate,
            "error_injection_type": self.error_injection_type.value,
            "injected_error_type": None if kind is None else kind.value,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with what was injected."""
        kind = state_dict.get("injected_error_type")
        self.injected_error_type = None if kind is None else RerunDiagnostic(kind)
