"""The last snapshot of a job that has ended becomes a checkpoint: a program the agent runs.

    python -m undaunted.checkpointing.keeping.last PLACE PIPE RANK:SLOT:FD...

The arenas come as descriptors, and a pipe to which it says what it does (`client.LastBegun`). It
works where the copies of all ranks are on this node.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import IO, TYPE_CHECKING

import msgspec

from undaunted.agreement.agreement import Alone
from undaunted.base.process import name_process
from undaunted.checkpointing.errors import AGREED, CheckpointError
from undaunted.checkpointing.files.places import open_storage
from undaunted.checkpointing.format.rules import Rule
from undaunted.checkpointing.keeping.client import LastBegun, LastEnded, Left
from undaunted.checkpointing.keeping.copies import Copies, rescue
from undaunted.checkpointing.publishing import Publisher
from undaunted.checkpointing.trust import Trust
from undaunted.coordinator.epoch import round_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.keeping.copies import CopiedState
    from undaunted.checkpointing.snapshot import Report

_TIMEOUT_S = 3600.0  # for an agreement with nobody; the agent ends this program when it is time
_LONGEST = 2000  # characters of what went wrong


def main(argv: Sequence[str]) -> int:
    """Write the newest whole snapshot of a place, unless a committed checkpoint is as new."""
    logging.basicConfig(level=logging.INFO, format="[undaunted] %(message)s")
    place, pipe, *arenas = argv
    left = [Left(*map(int, arena.split(":"))) for arena in arenas]
    alone = Alone(os.urandom(6).hex(), AGREED)
    storage = open_storage(place)
    epoch = round_epoch()
    publisher = Publisher(storage, alone, epoch, Rule(keep=None), Trust(storage, alone.session))

    def commit(state: CopiedState, reports: Sequence[Report], drawn: bytes) -> None:
        # The last round may have ended before a process of it came here.
        storage.raise_epoch(epoch)
        publisher.commit_copies(state, reports, drawn)

    copies = Copies(left)
    with os.fdopen(int(pipe), "wb", buffering=0) as agent:
        os.set_inheritable(agent.fileno(), False)

        def begins(state: CopiedState) -> None:
            files = (c.description.files for c in copies.all if c.state == state)
            size = sum(image.size for of_rank in files for image in of_rank)
            storage.begin_last(alone.session)
            _say(agent, LastBegun(state.step, size))

        try:
            rescue(copies, storage, alone, commit, _TIMEOUT_S, begins)
        except (CheckpointError, OSError) as error:
            _say(agent, LastEnded(str(error)[:_LONGEST]))
            return 1
        finally:
            copies.close()
            storage.close()
        _say(agent, LastEnded())
    return 0


def _say(agent: IO[bytes], message: LastBegun | LastEnded) -> None:
    agent.write(msgspec.json.encode(message) + b"\n")


if __name__ == "__main__":
    name_process("ckpt-last-copy")
    raise SystemExit(main(sys.argv[1:]))
