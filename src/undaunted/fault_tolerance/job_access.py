"""The needs of a launcher, or a coordinator alone, in a job of several nodes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from undaunted.attribution.ruling import rule
from undaunted.base.directories import make_private
from undaunted.coordinator.lead.messages import LeaderConfig
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.wire import credentials
from undaunted.coordinator.wire.address import is_loopback, parse_address
from undaunted.coordinator.wire.credentials import TokenError, find_token
from undaunted.fault_tolerance.advice import advise
from undaunted.fault_tolerance.run_config import RunSettings
from undaunted.fault_tolerance.slow_ranks.pace import Pace

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from undaunted.fault_tolerance.config import FaultToleranceConfig
    from undaunted.fault_tolerance.nodes_config import Nodes


class JobLimits(Protocol):
    """Limits of the whole job; see `RunConfig`."""

    @property
    def max_restarts(self) -> int: ...  # noqa: D102
    @property
    def restart_intensity(self) -> tuple[int, float] | None: ...  # noqa: D102
    @property
    def ft(self) -> FaultToleranceConfig: ...  # noqa: D102
    @property
    def stop_timeout_s(self) -> float | None: ...  # noqa: D102
    @property
    def term_timeout_s(self) -> float: ...  # noqa: D102
    @property
    def advice(self) -> str: ...  # noqa: D102
    @property
    def slow_ranks(self) -> str: ...  # noqa: D102
    @property
    def slow_ranks_after_s(self) -> float: ...  # noqa: D102


class Job(JobLimits, Protocol):
    """A run of a launcher, or of a coordinator alone."""

    @property
    def run_id(self) -> str: ...  # noqa: D102


class Contexts(NamedTuple):
    """TLS for listening and for connecting; None = without TLS."""

    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None


def policy_config(limits: JobLimits, nodes: Nodes) -> PolicyConfig:
    """The settings of the job policy."""
    return PolicyConfig(
        min_nodes=nodes.min_nodes,
        max_nodes=nodes.max_nodes,
        elastic=nodes.elastic,
        min_healthy=nodes.restart_policy == "min-healthy",
        segment=nodes.segment,
        replacement_group_size=nodes.replacement_group_size,
        max_restarts=limits.max_restarts,
        restart_intensity=limits.restart_intensity,
        max_no_progress_cycles=limits.ft.max_no_progress_cycles,
        min_progress_iterations=limits.ft.min_progress_iterations,
        stop_timeout_s=limits.stop_timeout_s,
        term_timeout_s=limits.term_timeout_s,
        first_timeout_s=nodes.first_round_timeout_s,
        join_timeout_s=nodes.join_timeout_s,
        last_call_s=nodes.last_call_s,
        rule=rule,
        advise=advise,
        act=limits.advice == "act",
        slow_ranks=limits.slow_ranks,
        slow_ranks_after_s=limits.slow_ranks_after_s,
        pace=Pace,
    )


def leader_config(
    job: Job, nodes: Nodes, policy: PolicyConfig, incarnation: str, **more: Any
) -> LeaderConfig:
    """Return what a leader knows; ``more``: fields of `LeaderConfig`."""
    return LeaderConfig(
        run_id=job.run_id,
        policy=policy,
        incarnation=incarnation,
        lease_s=nodes.lease_s,
        away_timeout_s=nodes.away_timeout_s,
        settings=settings(job, nodes),
        attempt=attempt(os.environ),
        **more,
    )


def settings(limits: JobLimits, nodes: Nodes) -> dict[str, str]:
    """Options that should be the same on all nodes; those of the leader hold.

    "" = the default, as if it was left out.
    """
    few, most = nodes.min_nodes, nodes.max_nodes
    usual = _settings(RunSettings())
    return {
        "--nnodes": str(few) if few == most else f"{few}:{most}",
        "--elastic": "true" if nodes.elastic else "",
        "--ft-restart-policy": "" if nodes.restart_policy == "any-failed" else nodes.restart_policy,
        "--ft-segment": str(nodes.segment or ""),
        **{n: "" if text == usual[n] else text for n, text in _settings(limits).items()},
    }


def _settings(limits: JobLimits) -> dict[str, str]:
    return {
        "--max-restarts": str(limits.max_restarts),
        "--restart-intensity": _intensity(limits.restart_intensity),
        "--advice": limits.advice,
        "--slow-ranks": limits.slow_ranks,
        "--slow-ranks-after": _seconds(limits.slow_ranks_after_s),
        "--term-timeout": _seconds(limits.term_timeout_s),
        "--workers-stop-timeout": _seconds(limits.stop_timeout_s),
        "--ft-max-no-progress-cycles": str(limits.ft.max_no_progress_cycles),
        "--ft-min-progress-iterations": str(limits.ft.min_progress_iterations),
    }


def _intensity(limit: tuple[int, float] | None) -> str:
    return "" if limit is None else f"{limit[0]}/{_seconds(limit[1])}"


def _seconds(time: float | None) -> str:
    return "" if time is None else f"{time:g}s"


def attempt(environ: Mapping[str, str]) -> int:
    """Return how often the scheduler has started this job again, 0 = never, or not known."""
    text = environ.get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def token(nodes: Nodes) -> bytes:
    """The job's token: as told, else this user's own, which is made when it is needed first.

    Waits for the disk, within a deadline.

    Raises:
        TokenError: there is none, and some node is not on this machine.
    """
    if nodes.token_file:
        return find_token(os.environ, Path(nodes.token_file))
    if found := find_token(os.environ):
        return found
    try:
        own = own_token_file()
        make_private(own.parent)
        return find_token(os.environ, own, create=True)
    except (TokenError, OSError, RuntimeError) as error:
        hosts = [parse_address(each).host for each in nodes.endpoints] or [nodes.address]
        if all(map(is_loopback, hosts)):
            return b""
        raise TokenError(
            f"launchers of several nodes need a token that all know ({error}): give "
            "--coordinator-token-file, or set UNDAUNTED_TOKEN"
        ) from None


def own_token_file() -> Path:
    """Return where this user's own token is, if it has one.

    Raises:
        RuntimeError: this user has no home.
    """
    config = os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(config, "undaunted", "token")


def contexts(nodes: Nodes) -> Contexts:
    """TLS as the user wants it.

    Raises:
        TlsError: a file cannot be used.
    """
    if not nodes.tls_ca:
        return Contexts()
    ca, cert, key = Path(nodes.tls_ca), Path(nodes.tls_cert), Path(nodes.tls_key)
    return Contexts(
        credentials.server_context(cert, key, ca), credentials.client_context(ca, cert, key)
    )
