"""Says which rank hangs, after all nodes of a job were looked at: `core.examination.Rule`.

What a node has seen of its ranks goes to the leader as bytes. Only this module knows their form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from undaunted.attribution import hang
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.base.text import one_line
from undaunted.coordinator.policy.verdict import MOST_EVIDENCE, Case, Ruling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.coordinator.policy.messages import Place

_DECODER = msgspec.msgpack.Decoder(list[RankObservation])


def encode(seen: Sequence[RankObservation]) -> bytes:
    """Return what a node has seen, for the leader: without recordings where these are too long."""
    data = msgspec.msgpack.encode(seen)
    if len(data) > MOST_EVIDENCE:
        data = msgspec.msgpack.encode([replace(each, recording=None) for each in seen])
    return data if len(data) <= MOST_EVIDENCE else b""


def rule(case: Case) -> Ruling:
    """Say who hangs. Never raises: an error of ours must not keep a job from its restart."""
    try:
        return _rule(case)
    except Exception as error:  # noqa: BLE001 - said once, and the policy goes on without
        return Ruling(problem=one_line(f"{type(error).__name__}: {error}"))


def _rule(case: Case) -> Ruling:
    by_node = {place.node: _seen(case, place) for place in case.places}
    seen = [each for ranks in by_node.values() for each in ranks]
    if not seen:
        return Ruling()
    seen += [
        RankObservation(place.first_rank + number, place.node, 0, Standing.ENDED, exit_code=0)
        for place in case.finished
        if place.node not in by_node
        for number in range(place.slots)
    ]
    verdict = hang.judge(seen, whole_job=True)
    line, unseen = verdict.line, [node for node, ranks in by_node.items() if not ranks]
    if unseen:
        line += f"; nothing is known of node{'s' * (len(unseen) > 1)} {', '.join(unseen[:4])}"
    if not verdict.known:
        node = unseen[0] if len(unseen) == 1 else ""
        return Ruling(line, node, cause=verdict.cause, certain=bool(verdict.cause))
    node = verdict.suspects[0].node
    waiting = set(verdict.waiting)
    victims = {each.node for each in seen if each.rank in waiting}
    victims -= {each.node for each in verdict.suspects}
    about = (verdict.culprits, verdict.cause, tuple(sorted(victims)))
    # The one that all wait for may be on a node of which nothing is known.
    return Ruling(line, node, *about, certain=verdict.certain and not unseen)


def _seen(case: Case, place: Place) -> list[RankObservation]:
    """What a node says of its own ranks."""
    try:
        seen = _DECODER.decode(case.evidence.get(place.node) or b"\x90")
    except msgspec.MsgspecError:
        return []
    return [each for each in seen if each.node == place.node and place.has_any((each.rank,))]
