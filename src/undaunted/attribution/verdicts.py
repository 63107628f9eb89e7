"""The cause of a failure that the launcher has seen itself, and how sure that is. Pure.

Agents use this as well: the rules of logs, which take a second to be read, are not needed for it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from undaunted.attribution.findings import MISSING, UNEQUAL, UNREAD, UNSAVED
from undaunted.attribution.peers import is_peer_lost
from undaunted.journal.events import HARD_TIMEOUT

if TYPE_CHECKING:
    from undaunted.journal import events as e

GUESSED = 0.4  # confidence of what is most likely
_UNSAVED = tuple(f"undaunted.checkpointing.errors.{kind}Error" for kind in ("State", "Occupied"))
# Checkpoint and program do not fit, or a checkpoint is damaged.
_UNFIT = ("StructureError", "NoCheckpointError", "DamagedCheckpointError")
# As torch says it of a module, of an optimizer, and of files of its own.
_UNFIT_WORDS = re.compile(
    r"Error\(s\) in loading state_dict for |\bloaded state dict (?:has|contains) "
    r"|Missing key in checkpoint state_dict|Size mismatch between saved "
)
_NO_NUMBER = re.compile(r"\b(?:nans?|infs?|infinit[ey]|not finite|non-?finite)\b", re.IGNORECASE)
_OF_TRAINING = re.compile(
    r"\b(?:loss|grad|norm|logit|output|activation|weight|parameter|unexpected result\b)",
    re.IGNORECASE,
)
_MISSING = frozenset({"ModuleNotFoundError", "ImportError", "FileNotFoundError"})
_CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGTRAP"})


def cause_seen(
    kind: str, verdict: e.Verdict | None, blamed: e.RoundBlamed | None = None
) -> tuple[str, float]:
    """Return the cause of a failure of this kind, "" if it has none, and its confidence.

    Args:
        kind: of the failure: ``crash``, ``hang``, ``lost``; others have no cause.
        verdict: of the node that failed first, None = there is none.
        blamed: the verdict of the job, None = there is none.
    """
    if kind == "lost":
        return "node_failed", 1.0
    if verdict is not None and verdict.cause and (blamed is None or not blamed.cause):
        return verdict.cause, 1.0
    if kind == "hang":
        return _cause_of_hang(verdict, blamed)
    if kind != "crash":
        return "", 0.0
    if verdict is not None and verdict.watch == HARD_TIMEOUT:
        return "host_lag", 1.0
    if verdict is None or (verdict.exit_code is not None and not verdict.exception):
        return "program_error", GUESSED
    if verdict.signal and not verdict.exception:
        return _cause_of_signal(verdict.signal)
    name, _, message = verdict.exception.partition(": ")
    if name.endswith(_UNSAVED):
        return UNSAVED, 1.0
    if is_peer_lost(name, message, verdict.traceback):
        return "peer_lost", 1.0
    missing = verdict.iteration is None and name in _MISSING
    return MISSING if missing else cause_of_exception(name, message), 1.0


def _cause_of_signal(name: str) -> tuple[str, float]:
    if name == "SIGABRT":
        return "native_crash", GUESSED  # so ends also who gets a wrong collective of another
    if name == "SIGKILL":
        return "killed", 1.0
    return "native_crash" if name in _CRASHES else "terminated", 1.0


def cause_of_exception(name: str, message: str) -> str:
    """Return the cause of an exception of the program's own: its type, and its message."""
    if name.rpartition(".")[2] in _UNFIT or _UNFIT_WORDS.search(message):
        return "checkpoint_mismatch"
    return "not_finite" if _is_not_finite(name, message) else "program_error"


def _is_not_finite(name: str, message: str) -> bool:
    """Whether an exception is about a loss, a gradient or the like that is no finite number."""
    if name.rpartition(".")[2] == "FloatingPointError":
        return True
    return bool(_NO_NUMBER.search(message) and _OF_TRAINING.search(message))


def blames_rank(kind: str, cause: str) -> bool:
    """Return whether the rank of a verdict is to blame, not one that left, or a reader.

    Args:
        kind: of the failure.
        cause: as `cause_seen` returns it.
    """
    return cause != UNREAD and (kind, cause) != ("crash", UNEQUAL)


def _cause_of_hang(verdict: e.Verdict | None, blamed: e.RoundBlamed | None) -> tuple[str, float]:
    if blamed is not None and blamed.cause:
        return blamed.cause, 1.0 if blamed.certain else GUESSED
    if (verdict or blamed) is None or (blamed is not None and not blamed.ranks):
        return "", 0.0  # whose limit passes first is often a victim
    if verdict is not None and not verdict.waiting and blamed is None:
        return "no_progress", GUESSED if verdict.suspects else 0.9  # nobody waits for it
    return "host_lag", 0.9 if verdict is not None and verdict.waiting else GUESSED
