"""How long a guard is waited for whose connection to the controller has ended.

When that is over, the others go on without its ranks. By then these must not run any more: nobody
may be in the epoch before while others are in the next one.
"""

from __future__ import annotations

# A guard whose connection was closed in order is back within milliseconds if it lives.
GRACE_S = 1.0


def patience_s(unreachable_s: float, *, in_order: bool, back: bool = False) -> float:
    """Return it, in seconds.

    Args:
        unreachable_s: after so long a guard that lives, and does not reach the controller, has
            ended its ranks' calls.
        in_order: the other side's kernel has closed the connection: the guard's process has ended,
            and its rank has noticed. A reset may come from the network, which may keep the guard
            out from now on, perhaps without its knowing that the connection is gone.
        back: the guard has said that it comes back.
    """
    return GRACE_S if in_order and not back else unreachable_s
