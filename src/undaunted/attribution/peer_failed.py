"""Recognizes errors by which a rank says what another has failed with. Pure.

A save that fails on one rank is raised on all of them, with a message that names the one as
``rank 3: `` (see `undaunted.checkpointing.errors`), or as ``ranks:dict_keys([3])`` by torch. Which
of them is seen first is chance, and the others are often stopped before they can say anything.
"""

from __future__ import annotations

import re

_KINDS = "undaunted.checkpointing."
# The first rank that is named, and whether what follows is its failure; its host may be between.
_FIRST = re.compile(r"\branks? (\d{1,9})((?: \([^()]*\))?: )?")


# torch's own saves and loads: raised on all ranks, with the ranks that have failed.
_OF_CHECKPOINT = re.compile(r"CheckpointException ranks:dict_keys\(\[(\d{1,9})")


def failed_rank(exception: str) -> int | None:
    """Return the rank that an exception says has failed, its own or another; None = it names none.

    Args:
        exception: ``KIND: MESSAGE``, the kind with its module.
    """
    kind, _, message = exception.partition(": ")
    if kind.rpartition(".")[2] == "CheckpointException":
        found = _OF_CHECKPOINT.match(message)
        return int(found[1]) if found else None
    first = _FIRST.search(message) if kind.startswith(_KINDS) else None
    return int(first[1]) if first and first[2] else None
