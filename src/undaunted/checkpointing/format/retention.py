"""Which checkpoints are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept.

    Attributes:
        keep: that many of the newest, at least 1; None keeps all.
        every: those of steps divisible by this as well; None = no others.
        certified: that many of the newest certified ones as well.
    """

    keep: int | None = None
    every: int | None = None
    certified: int = 0


def to_delete(
    steps: Sequence[int],
    rule: Rule,
    good: int | None = None,
    certified: Collection[int] = (),
) -> list[int]:
    """Return the steps that are to be deleted, the oldest first.

    Args:
        steps: of all committed checkpoints, the one that was committed last at the end.
        rule: what is kept.
        good: the newest one that is known to be whole, which is kept whatever the rule says: newer
            names may stand for damaged ones.
        certified: steps of those that are.
    """
    if rule.keep is None:
        return []
    kept = set(steps[-max(1, rule.keep) :])
    if good is not None:
        kept.add(good)
    if rule.certified:
        kept.update([step for step in steps if step in certified][-rule.certified :])
    if rule.every is not None:
        kept.update(step for step in steps if step % rule.every == 0)
    return [step for step in steps if step not in kept]
