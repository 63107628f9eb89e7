"""What ranks and launcher tell each other besides progress: who a rank is, what it asks for."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

# Requests travel through a page's mailbox of 4096 bytes; JSON may take twelve for one character.
_DESCRIPTION_CHARACTERS = 300


class WorkloadAction(enum.Enum):
    """What a rank asks the launcher to do."""

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
    """Who a rank is.

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
        from undaunted.fault_tolerance.rank_identity import knows_rank, who_am_i

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
