"""Areas of NVRx that undaunted does not have: importing one of them says so in a sentence."""

from __future__ import annotations

from typing import NoReturn

SENTENCES = {
    "attribution.combined_log_fr": "A language model is not asked about logs and traces; "
    "`undaunted explain` reads both, and says who it was and what next.",
    "fault_tolerance.c10d_monkey_patch": "Nothing of torch is patched; the store's connection is "
    "the coordinator's.",
    "fault_tolerance.ft_rendezvous_barrier": "Nodes do not meet in a store; the coordinator of "
    "`undaunted run` decides who takes part.",
    "fault_tolerance.per_cycle_logs": "The launcher writes the logs of each round itself, with "
    "--ft-per-cycle-applog-prefix.",
    "shared_utils.grpc_log_server": "The log server does not speak gRPC; --ft-enable-log-server "
    "starts undaunted's.",
}
"""What is said, by module below `nvidia_resiliency_ext`."""


def refuse(module: str) -> NoReturn:
    """Raise for a module that is only here to say that it is missing.

    Raises:
        ImportError: always.
    """
    area = module.removeprefix("nvidia_resiliency_ext.")
    raise ImportError(f"undaunted has no {module}. {SENTENCES[area]}", name=module)
