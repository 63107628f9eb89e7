"""Messages of ranks and launcher, apart from progress: who a rank is, what it asks for."""

from __future__ import annotations

import enum
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

# Requests travel through a page's mailbox of 4096 bytes; JSON may take twelve for one character.
_DESCRIPTION_CHARACTERS = 300


class WorkloadAction(enum.Enum):
    """Requests of a rank to the launcher."""

    Continue = 0
    """Nothing: go on as usual."""
    ExcludeThisNode = 1
    """Take this node out of the job, and go on without it."""
    ShutdownWorkload = 2
    """End the whole job, without another restart."""


@dataclass(frozen=True)
class WorkloadControlRequest:
    """A request about the whole job.

    Attributes:
        action: what to do.
        description: why, for people; up to 300 characters are passed on.
    """

    action: WorkloadAction
    description: str = ""


@dataclass(frozen=True)
class RankInfo:
    """The identity of a rank.

    Attributes:
        global_rank: in the whole job.
        local_rank: on its node.
        host: name of the node.
        pid: of its process.
    """

    global_rank: int
    local_rank: int
    host: str
    pid: int

    @staticmethod
    def get_for_current_rank() -> RankInfo:
        """Return who this process is: by torch.distributed if it is set up, else by RANK.

        Raises:
            RuntimeError: neither says it.
        """
        if not knows_rank():
            raise RuntimeError(
                "the rank of this process is not known: torch.distributed is not initialized and "
                "RANK is not set; start it with `undaunted run`"
            )
        return who_am_i()


def encode_request(request: WorkloadControlRequest) -> bytes:
    """Return what goes through the mailbox for a request."""
    description = request.description[:_DESCRIPTION_CHARACTERS]
    return json.dumps({"action": request.action.name, "description": description}).encode()


def decode_request(payload: bytes) -> WorkloadControlRequest:
    """Read what `encode_request` made.

    Raises:
        ValueError: it is something else; the message says what.
    """
    known = ", ".join(action.name for action in WorkloadAction)
    try:
        message = json.loads(payload)
        return WorkloadControlRequest(
            WorkloadAction[message["action"]], str(message["description"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(
            f"not a workload control request: {payload[:200]!r}; it has a description and an "
            f"action, one of {known}"
        ) from None


def who_am_i() -> RankInfo:
    """Ask torch.distributed if the program has set it up, else the environment."""
    local_rank = _number("LOCAL_RANK")
    distributed = _distributed()
    global_rank = _number("RANK") if distributed is None else int(distributed.get_rank())
    return RankInfo(global_rank, local_rank, os.uname().nodename, os.getpid())


def knows_rank() -> bool:
    """Return whether anything says which rank this is; if not, it counts as rank 0."""
    return _distributed() is not None or bool(os.environ.get("RANK"))


def _distributed() -> Any:
    """Return torch.distributed if the program has set it up."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() else 0
