"""What it means that state differs which helpers of torch keep beside model and optimizer. Pure."""

from __future__ import annotations

from undaunted.chaos.trials.checker.values import Finding
from undaunted.digests.record import AVERAGE, SCALER, SCHEDULER

BESIDE = (SCHEDULER, AVERAGE, SCALER)

_NOT_RESTORED = "its state is not in the checkpoint, or not loaded"


def explain_beside(part: str, where: str) -> Finding:
    """Return the finding.

    Args:
        part: one of `BESIDE`.
        where: on which ranks and when, as the beginning of a sentence.
    """
    if part == SCHEDULER:
        return Finding(
            "scheduler-not-restored",
            "red",
            f"{where}, the learning rate scheduler has counted another number of steps: "
            f"{_NOT_RESTORED}.",
            f"{_save(part)}\nOr make it with last_epoch=, the number that it had counted to.",
        )
    if part == AVERAGE:
        return Finding(
            "average-not-restored",
            "red",
            f"{where}, the averaged parameters (AveragedModel: EMA, SWA) differ while the model "
            f"does not: {_NOT_RESTORED}.",
            _save(part),
        )
    return Finding(
        "scaler-not-restored",
        "red",
        f"{where}, the GradScaler has another scale, or has counted other steps without overflow: "
        f"{_NOT_RESTORED}.",
        _save(part),
    )


def _save(part: str) -> str:
    return (
        "Save and load its state with the model:\n"
        f'    saved["{part}"] = {part}.state_dict()\n'
        f'    {part}.load_state_dict(saved["{part}"])'
    )
