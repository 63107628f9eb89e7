"""Simulated faults as other tools describe them.

* `SimulatedFaultParams`, and ``FT_SIM_FAULT_DESC="KIND;RANK;DELAY"``: one rank of each round is
  killed or stopped after a delay; mapped onto fault plans (`undaunted.faults`).
* ``NVRX_INJECT_GPU_FAILURE="CYCLE:NODE,..."``: the check of a node, named by its infrastructure
  rank, fails before a round begins.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from undaunted.faults.plan import FaultPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undaunted.faults.trigger import Trigger

DESCRIPTION_VARIABLE = "FT_SIM_FAULT_DESC"
GPU_FAILURE_VARIABLE = "NVRX_INJECT_GPU_FAILURE"

FaultType = Literal["rank_killed", "rank_hung", "random"]
_TYPES: tuple[FaultType, ...] = get_args(FaultType)
_KIND = {"rank_killed": "sigkill", "rank_hung": "sigstop"}
_MAX_FAILURES = 256


@dataclass
class SimulatedFaultParams:
    """A fault of one rank, in every round anew.

    Attributes:
        fault_type: ``rank_killed`` (SIGKILL), ``rank_hung`` (SIGSTOP), or ``random``: one of both.
        base_delay: seconds from its set-up to the fault.
        rand_delay: up to so many seconds more, by chance.
        rank_to_fail: global rank, None = a random one.

    Raises:
        ValueError: a value makes no sense.
    """

    fault_type: FaultType
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    def __post_init__(self) -> None:
        if self.fault_type not in _TYPES:
            raise ValueError(f"fault_type {self.fault_type!r}: choose one of {', '.join(_TYPES)}")
        for name in ("base_delay", "rand_delay"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} {value!r}: give a number of seconds from 0")
        rank = self.rank_to_fail
        if rank is not None and (not isinstance(rank, int) or rank < 0):
            raise ValueError(f"rank_to_fail {rank!r}: give a rank from 0, or None for a random one")


def parse_simulated_fault_params(
    simulated_fault_params: SimulatedFaultParams | Mapping[str, Any] | str | None,
) -> SimulatedFaultParams | None:
    """Read what describes a fault: the parameters themselves, a mapping of them, or text.

    Args:
        simulated_fault_params: text is ``KIND;RANK;DELAY``, as in ``rank_hung;1;30``; an empty rank
            means a random one. None or "" = no fault.

    Raises:
        ValueError: it cannot be read.
    """
    given = simulated_fault_params
    if given is None or given == "":
        return None
    if isinstance(given, SimulatedFaultParams):
        return given
    if isinstance(given, str):
        return _from_text(given)
    if not isinstance(given, Mapping):
        raise ValueError(  # noqa: TRY004 - whatever cannot be read is one
            f"{given!r} does not describe a fault: give SimulatedFaultParams, or a mapping of them"
        )
    try:
        return SimulatedFaultParams(**given)
    except TypeError:
        known = ", ".join(SimulatedFaultParams.__dataclass_fields__)
        raise ValueError(
            f"{dict(given)!r} does not describe a fault; give fault_type and base_delay (known: "
            f"{known})"
        ) from None


def _from_text(text: str) -> SimulatedFaultParams:
    parts = [part.strip() for part in text.split(";")]
    try:
        kind, rank, delay = parts
        number, seconds = int(rank) if rank else None, float(delay)
    except ValueError:
        raise ValueError(
            f"{text!r} does not describe a fault; write KIND;RANK;DELAY, as in rank_hung;1;30, "
            "with nothing for RANK for a random one"
        ) from None
    return SimulatedFaultParams(kind, seconds, rank_to_fail=number)  # type: ignore[arg-type] # is checked


def fault_plan(params: SimulatedFaultParams, seed: str = "") -> FaultPlan:
    """Return the fault as a plan, which `undaunted run --inject-fault` takes as well.

    Args:
        params: the fault.
        seed: decides what is random; the same for every rank.
    """
    kind, delay = _chance(seed, "kind"), params.base_delay + params.rand_delay * _chance(seed, "t")
    fault_type = params.fault_type
    if fault_type == "random":
        fault_type = "rank_killed" if kind < 0.5 else "rank_hung"
    rank = "random" if params.rank_to_fail is None else params.rank_to_fail
    number = int(_chance(seed, "rank") * 1e9)
    return FaultPlan.parse(
        f"{_KIND[fault_type]}:rank={rank},after={delay:.3f},seed={number},id=simulated,repeat"
    )


def seed_of_round(environ: Mapping[str, str]) -> str:
    """Return what all ranks of a round have in common, and no other round has."""
    run, round_ = environ.get("TORCHELASTIC_RUN_ID", ""), environ.get("TORCHELASTIC_RESTART_COUNT")
    return f"{run}/{round_}"


def setup_simulated_fault(
    fault_desc: SimulatedFaultParams | Mapping[str, Any] | str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Trigger | None:
    """Arm the fault in this rank if it is the one to fail. Every rank calls it, in its main thread.

    All ranks of a round choose alike, without talking to each other.

    Args:
        fault_desc: the fault, as for `parse_simulated_fault_params`; None = ``FT_SIM_FAULT_DESC``.
        environ: where variables are read.

    Returns:
        The trigger, whose ``close`` disarms it; None if this rank does not fail.

    Raises:
        ValueError: the fault cannot be read, or is for a rank that the job does not have.
    """
    params = parse_simulated_fault_params(fault_desc or environ.get(DESCRIPTION_VARIABLE))
    if params is None:
        return None
    from undaunted.faults import trigger

    plan = fault_plan(params, seed_of_round(environ))
    if (ranks := environ.get("WORLD_SIZE", "")).isdecimal():
        plan.check_ranks(int(ranks))
    return trigger.install({**environ, trigger.PLAN_VARIABLE: plan.to_env()})


class GpuFailure(NamedTuple):
    """A node without a working GPU: ``infra_rank``, when round ``cycle`` begins."""

    cycle: int
    infra_rank: int


def parse_gpu_failures(text: str) -> tuple[GpuFailure, ...]:
    """Read ``CYCLE:INFRA_RANK,...``, the form of ``NVRX_INJECT_GPU_FAILURE``; "" = none.

    Raises:
        ValueError: it cannot be read; the message names the bad part.
    """
    items = [item.strip() for item in text.split(",") if item.strip()]
    if len(items) > _MAX_FAILURES:
        raise ValueError(f"{GPU_FAILURE_VARIABLE}: {len(items)} failures; at most {_MAX_FAILURES}")
    return tuple(dict.fromkeys(map(_gpu_failure, items)))


def _gpu_failure(item: str) -> GpuFailure:
    words = [word.strip() for word in item.split(":")]
    if len(words) != 2 or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words):
        raise ValueError(
            f"{GPU_FAILURE_VARIABLE}: {item!r} is not CYCLE:INFRA_RANK; write 1:0 for the first "
            "node in the round after the first restart"
        )
    return GpuFailure(int(words[0]), int(words[1]))


def injected(failures: Iterable[tuple[int, int]], cycle: int, infra_rank: int) -> str:
    """Return why a node has no working GPU when a round begins, "" if it has.

    Args:
        failures: what is to fail, as from `parse_gpu_failures`.
        cycle: number of the round.
        infra_rank: infrastructure rank of the node; 0 where there is one node.
    """
    if (cycle, infra_rank) not in failures:
        return ""
    return f"injected GPU failure ({GPU_FAILURE_VARIABLE}={cycle}:{infra_rank})"


def _chance(seed: str, what: str) -> float:
    """From 0 up to 1; the same on every version of Python."""
    digest = hashlib.blake2b(f"{seed}/{what}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
