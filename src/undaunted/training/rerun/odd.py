"""An odd result, its line in the log, and how a later process learns of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from undaunted.training.rerun.slot import Slot
from undaunted.training.rerun.table import OPINIONS, RerunDiagnostic, RerunValidationStatus

EXPLAINED = {
    RerunValidationStatus.FIRST_RERUN_NOT_REPRODUCIBLE: "First rerun: unexpected result is not "
    "reproducible within the tolerance (%s %s %s)",
    RerunValidationStatus.FIRST_RERUN_REPRODUCIBLE: "First rerun: unexpected result is "
    "reproducible within the tolerance (%s %s %s). Need to rerun on a different GPU to verify "
    "correctness.",
    RerunValidationStatus.SECOND_RERUN_NOT_REPRODUCIBLE: "Second rerun: unexpected result is not "
    "reproducible on a different GPU, therefore was likely incorrect (%s %s %s)",
    RerunValidationStatus.SECOND_RERUN_REPRODUCIBLE: "Second rerun: unexpected result is "
    "reproducible on a different GPU, therefore it was likely correct (%s %s %s)",
}
NAMED = {
    RerunDiagnostic.TRANSIENT_ERROR: "Possible transient error",
    RerunDiagnostic.PERSISTENT_ERROR: "Possible persistent error",
    RerunDiagnostic.CORRECT_RESULT: "Correct result (but possible Application error)",
}


class Caller(NamedTuple):
    """The origin of a check: a message, on a rank."""

    message: str
    rank: int


class Call(NamedTuple):
    """The number of a check of its caller in an iteration, from 1."""

    caller: Caller
    sequence: int


class Odd(NamedTuple):
    """A result that was found odd.

    Attributes:
        call: which check did.
        result: the odd one.
        fatal: nobody may go on with it.
        slot: where it was computed.
    """

    call: Call
    result: Any
    fatal: bool
    slot: Slot

    @property
    def text(self) -> str:
        """All of it, for people."""
        where = f"computed on {self.slot.device} of node {self.slot.node}"
        return f"{self.call.caller.message} ({self.result}), {where}"


class Verdict(NamedTuple):
    """An odd result.

    Attributes:
        diagnostic: transient, persistent or correct.
        message: of the check.
        rank: of this process.
        iteration: as the machine counts.
        slot: where the odd result was computed.
        fatal: nobody may go on with it.
    """

    diagnostic: RerunDiagnostic
    message: str
    rank: int
    iteration: int
    slot: Slot
    fatal: bool

    @property
    def text(self) -> str:
        """All of it, for people."""
        return (
            f"{self.message} in iteration {self.iteration}, computed on {self.slot.device} of node "
            f"{self.slot.node}: {OPINIONS[self.diagnostic]}"
        )


def saved_odd(odd: Odd | None) -> dict[str, Any]:
    """Return it for a later process; None = the same names, of nothing."""
    if odd is None:
        names = ("failed_validation_call", "initial_result", "suspicious_node")
        return dict.fromkeys((*names, "suspicious_device", "suspicious_identity", "fatal"))
    (message, rank), sequence = odd.call
    return {
        "failed_validation_call": [message, rank, sequence],
        "initial_result": odd.result,
        "suspicious_node": odd.slot.node,
        "suspicious_device": odd.slot.device,
        "suspicious_identity": odd.slot.identity,
        "fatal": odd.fatal,
    }


def loaded_odd(saved: dict[str, Any]) -> Odd | None:
    """Return what `saved_odd` has returned.

    Raises:
        Exception: it is something else.
    """
    call = saved["failed_validation_call"]
    if call is None:
        return None
    message, rank, sequence = call
    slot = Slot(*(str(saved[f"suspicious_{name}"]) for name in ("node", "device", "identity")))
    return Odd(
        Call(Caller(str(message), int(rank)), int(sequence)),
        saved["initial_result"],
        bool(saved["fatal"]),
        slot,
    )
