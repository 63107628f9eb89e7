"""The last snapshot of a job that has ended becomes a checkpoint: a program the agent runs.

    python -m undaunted.checkpointing.keeping.last PLACE RANK:SLOT:FD...

The arenas come as descriptors. It works where the copies of all ranks are on this node.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from undaunted.checkpointing.agreement.alone import Alone
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.files.places import open_storage
from undaunted.checkpointing.format.retention import Rule
from undaunted.checkpointing.keeping.client import Left
from undaunted.checkpointing.keeping.copies import Copies
from undaunted.checkpointing.publishing import Publisher
from undaunted.checkpointing.rescue import rescue
from undaunted.coordinator.epoch import round_epoch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.checkpointing.keeping.copies import Snapshot
    from undaunted.checkpointing.snapshot import Report

_TIMEOUT_S = 3600.0  # for an agreement with nobody; the agent ends this program when it is time


def main(argv: Sequence[str]) -> int:
    """Write the newest whole snapshot of a place, unless a committed checkpoint is as new."""
    logging.basicConfig(level=logging.INFO, format="[undaunted] %(message)s")
    place, *arenas = argv
    left = [Left(*map(int, arena.split(":"))) for arena in arenas]
    alone = Alone(os.urandom(6).hex())
    storage = open_storage(place)
    epoch = round_epoch()
    publisher = Publisher(storage, alone, epoch, Rule(keep=None))

    def commit(snapshot: Snapshot, reports: Sequence[Report], drawn: bytes) -> None:
        # The last round may have ended before a process of it came here.
        storage.raise_epoch(epoch)
        publisher.commit_copies(snapshot, reports, drawn)

    copies = Copies(left)
    try:
        rescue(copies, storage, alone, commit, _TIMEOUT_S)
    except CheckpointError as error:
        logging.getLogger(__name__).warning("the last copy could not be written: %s", error)
        return 1
    finally:
        copies.close()
        storage.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
