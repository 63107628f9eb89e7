"""The begin of training: a checkpoint that is passed over is named, and all ranks begin alike."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.agreement.agreement import Agreement
from undaunted.agreement.failures import AgreedError
from undaunted.base import torch_ranks
from undaunted.base.ids import node_of_rank
from undaunted.base.text import name_ranks, one_line
from undaunted.checkpointing.trust import TrustedPaths, choose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_ALL_S = 600.0  # for all ranks to come
_LONGEST, _RANGES = 2000, 8  # characters of what is listed in a message; of ranks
_REMEDY = "all ranks have to see the same checkpoints: keep them in one folder that all nodes share"
_LOG = logging.getLogger("undaunted")


def newest(found: Iterable[str], check: Callable[[str], object]) -> str | None:
    """Return the newest checkpoint that training can go on from; rank 0 names those passed over.

    Those that lead to failures come last: see `checkpointing.trust`.

    Args:
        found: the newest one first; of one folder.
        check: raises EOFError for one that was cut short, ValueError for one that is of no use for
            another reason.

    Returns:
        None if there is none, or just one, which was cut short: a kill in the first save leaves it.

    Raises:
        ValueError: there are some, and all of them are of no use.
    """
    passed_over: list[str] = []
    chosen, cut_short = None, 0
    trusted = TrustedPaths(list(found))
    for one in trusted.order:
        try:
            check(one)
        except (EOFError, ValueError) as why:
            passed_over.append(f"{one} ({why})")
            cut_short += isinstance(why, EOFError)
        else:
            chosen = one
            trusted.loaded(one)
            break
    text = one_line("; ".join(passed_over), _LONGEST)
    if chosen is None and (len(passed_over) > 1 or len(passed_over) > cut_short):
        raise ValueError(
            f"training cannot go on from any checkpoint: {text}. To begin anew, move them away"
        )
    if passed_over and torch_ranks.place()[0] == 0:
        _LOG.warning("checkpoints passed over: %s; taken: %s", text, chosen or "none")
    return chosen


def older_step(found: Mapping[Path, int]) -> int | None:
    """Return the step of an older checkpoint to go on from, if the newest leads to failures.

    Args:
        found: steps of the checkpoints of one folder that are whole.

    Returns:
        None where the choice is left to the framework, which takes the newest one.
    """
    newest_first = sorted(found, key=lambda path: found[path], reverse=True)
    chosen = choose(newest_first)
    if chosen is None or Path(chosen) == newest_first[0]:
        return None
    return found[Path(chosen)]


def begin_alike(start: int | bool, text: str, timeout_s: float = _ALL_S) -> None:
    """Let training begin, if all ranks begin at the same place. Every rank calls it.

    It goes over the store of the process group: ranks that are stuck in a collective of the
    framework are not disturbed, but found to be missing.

    Args:
        start: has to be the same on all ranks.
        text: where this rank begins, for people.
        timeout_s: for all ranks to come.

    Raises:
        RuntimeError: ranks begin at different places, or do not come: on all ranks that wait.
    """
    if not torch_ranks.is_distributed():
        return
    from undaunted.checkpointing.dcp.torch_private import default_store  # imports torch

    rank, ranks = torch_ranks.place()
    store = default_store()
    count = store.add(f"undaunted/start/{rank}", 1)  # a new name each time
    agreement = Agreement(store, rank, ranks, f"start-{count}")
    mine = json.dumps([start, f"{text} on {node_of_rank(os.environ)}"]).encode()
    try:
        difference = agreement.round("begin of training", mine, _difference, timeout_s)
    except AgreedError as error:
        raise RuntimeError(f"{error}; {_REMEDY}") from error
    finally:
        agreement.close()
    if difference:
        raise RuntimeError(
            f"ranks would begin at different places: {difference.decode()}; {_REMEDY}"
        )


def _difference(places: Sequence[bytes]) -> bytes:
    """Say which ranks begin where; nothing if all begin at the same place."""
    ranks: dict[int, list[int]] = {}
    texts: dict[int, str] = {}  # of the first of them
    for rank, place in enumerate(places):
        start, text = json.loads(place)
        ranks.setdefault(start, []).append(rank)
        texts.setdefault(start, text)
    if len(ranks) == 1:
        return b""
    named = [f"{name_ranks(those, _RANGES)} at {texts[start]}" for start, those in ranks.items()]
    return one_line("; ".join(named), _LONGEST).encode()
