"""The surroundings of a launcher's part in coordination: network, disk, chance."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import within
from undaunted.coordinator.etcd.client import Client
from undaunted.coordinator.etcd.store import access as access_from
from undaunted.coordinator.etcd.store import parse_store
from undaunted.coordinator.lead.leader import Leader
from undaunted.coordinator.lead.times import Durations
from undaunted.coordinator.service.ledger_file import LedgerFile
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.network import Sockets
from undaunted.fault_tolerance import job_access
from undaunted.journal.job.launches import attempts_of, launches_of, newest_job
from undaunted.journal.job.summary import job_outcome, summarize
from undaunted.journal.owner import is_running
from undaunted.journal.reader import find_journals, read_journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.lead.messages import LeaderConfig
    from undaunted.coordinator.policy.config import PolicyConfig
    from undaunted.coordinator.protocol import Ledger
    from undaunted.coordinator.service.register import Register
    from undaunted.coordinator.wire.network import Network
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.job.values import LaunchSummary
    from undaunted.journal.launch import LaunchState

_LAST_END_S = 2.0


class Surroundings:
    """The surroundings of a real process; the simulator has others.

    Args:
        config: the run; ``config.nodes`` is not None.
        build: version of undaunted.
        failure: see `PolicyConfig.failure`.

    Attributes:
        incarnation: another one for each launcher that is started.
    """

    def __init__(self, config: RunConfig, build: str, failure: str = "") -> None:
        self.incarnation = os.urandom(8).hex()
        self._config, self._failure = config, failure
        self._terms = Terms(config.run_id, build, node=config.node)

    async def network(self, nodes: Nodes) -> Network:
        """Find the network that this job has, once it is known how others reach this machine.

        Raises:
            TokenError: there is no token.
            TlsError: a file cannot be used.
        """
        token = await asyncio.to_thread(job_access.token, nodes)
        tls = job_access.contexts(nodes)
        return Sockets(replace(self._terms, token=token), tls.client, tls.server)

    def ledger(self, endpoint: str, say: Callable[[str], None]) -> LedgerFile:
        """Return where the ledger of this job is kept on this machine."""
        return LedgerFile(self._config.run_dir, endpoint, say)

    def register(self, nodes: Nodes, address: str) -> Register:
        """Return the register that says who leads this job, for nodes that have a store.

        Args:
            nodes: of the job.
            address: where others reach this launcher.

        Raises:
            RegisterError: something is missing here.
            ValueError: variables contradict each other.
        """
        store, access = parse_store(nodes.store), access_from(os.environ)
        run_id, lease_s = self._config.run_id, nodes.lease_s
        kept_s = Durations(lease_s).ended_kept_s(nodes.join_timeout_s, nodes.away_timeout_s)
        return Client(
            store, access, run_id, lease_s, address, self.incarnation, ended_kept_s=kept_s
        )

    def last_end(self) -> str:
        """Return a line about the last end that is recorded here, "" = there is none."""
        return last_end(self._config.run_dir)

    def policy(self, nodes: Nodes) -> PolicyConfig:
        """Return the settings of the job policy."""
        return replace(job_access.policy_config(self._config, nodes), failure=self._failure)

    def leader(
        self,
        config: LeaderConfig,
        ledger: Ledger,
        epoch: int,
        lost: str,
        silent: tuple[str, ...],
        stops_s: float,
        others_stop_s: float | None,
    ) -> Leader:
        """Make the leader that this launcher becomes; see `Leader`."""
        return Leader(config, ledger, epoch, lost, silent, stops_s, others_stop_s)


def last_end(run_dir: str) -> str:
    """Return a line about the last end that is recorded there, "" = there is none. Reads files."""
    nothing: LaunchSummary | None = None
    found = within(_LAST_END_S, lambda: _last_outcome(run_dir), nothing)
    if found is None:
        return ""
    return (
        f"the last job in {run_dir} has ended, {found.outcome} with exit code {found.exit_code}: "
        f"{found.reason}. Launchers wait for a new one; end them if there is none"
    )


def _last_outcome(run_dir: str) -> LaunchSummary | None:
    journals = [read_journal(path) for path in find_journals(Path(run_dir))]
    told = [one for one in launches_of(newest_job(journals)[0]) if _tells_of_job(one.state)]
    attempts, _ = attempts_of([replace(one, index=index) for index, one in enumerate(told)])
    last = attempts[-1].launches if attempts else []
    return job_outcome(summarize(one.state, running=_may_run(one.state)) for one in last)


def _may_run(state: LaunchState) -> bool:
    """Whether a launcher that has not said how it ended may be at work, perhaps elsewhere."""
    return state.opened is None or is_running(state.opened) is not False


def _tells_of_job(state: LaunchState) -> bool:
    """Whether this launcher was in a round, or its job has ended before there was one.

    Who is refused knows nothing of the job.
    """
    return bool(state.rounds) or (state.ended is not None and not state.ended.alone)
