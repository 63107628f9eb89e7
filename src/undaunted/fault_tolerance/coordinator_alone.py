"""A coordinator on a separate host: it outlives every node, and the job outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from undaunted import __version__
from undaunted.base.recent import all_lines
from undaunted.base.signals import PROGRAMS_SIGNALS
from undaunted.base.timers import lease_clock_ns
from undaunted.coordinator.lead.leader import Leader
from undaunted.coordinator.lead.register import next_epoch
from undaunted.coordinator.protocol import Refused
from undaunted.coordinator.service import ledger_file
from undaunted.coordinator.service.asking import left_behind
from undaunted.coordinator.service.leading import Leading
from undaunted.coordinator.service.participant import Participant
from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.credentials import TlsError, TokenError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.coordinator.wire.network import Sockets
from undaunted.fault_tolerance import control_socket as s
from undaunted.fault_tolerance import cycle_info, job_access, run_lock
from undaunted.fault_tolerance.agent.status import of_leader
from undaunted.fault_tolerance.control_server import ControlServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from undaunted.coordinator.protocol import Ledger
    from undaunted.fault_tolerance.config import FaultToleranceConfig
    from undaunted.fault_tolerance.nodes_config import Nodes
    from undaunted.fault_tolerance.output.server.config import LogServerConfig
    from undaunted.fault_tolerance.output.server.process import LogServer
    from undaunted.fault_tolerance.run_config import CycleInfoPlace
    from undaunted.inprocess.core.commands import Note
    from undaunted.inprocess.guard.host import ControllerHost

_FAILED, _IN_USE = 1, 2
_LOCK = ""  # in place of the name of a node, which is never empty


@dataclass(frozen=True, kw_only=True)
class AloneConfig:
    """One `undaunted coordinator`; see `RunConfig` for what is in both."""

    run_id: str
    run_dir: str
    nodes: Nodes
    max_restarts: int = 0
    restart_intensity: tuple[int, float] | None = None
    stop_timeout_s: float | None = None
    term_timeout_s: float = 1800.0
    advice: str = "log"
    slow_ranks: str = "log"
    slow_ranks_after_s: float = 300.0
    ft: FaultToleranceConfig
    cycle_info: CycleInfoPlace | None = None
    log_server: LogServerConfig | None = None


def run(config: AloneConfig) -> int:
    """Serve a job until it has ended or a signal comes; return the exit code."""
    if run_lock.lock(config.run_dir, _LOCK, job=config.run_id, say=_say) is None:
        _say(
            f"{config.run_dir} is in use by the coordinator of another job; give each job its own "
            "--run-dir, or wait until the other one has ended"
        )
        return _IN_USE
    try:
        return asyncio.run(_serve(config))
    except (WireError, TokenError, TlsError, ValueError) as error:
        _say(str(error))
        return _FAILED


async def _serve(config: AloneConfig) -> int:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[str] = loop.create_future()

    def end(why: str) -> None:
        if not over.done():
            over.set_result(why)

    for number in PROGRAMS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, end, signal.Signals(number).name)
    token = await asyncio.to_thread(job_access.token, config.nodes)
    tls = job_access.contexts(config.nodes)
    network = Sockets(Terms(config.run_id, __version__, token), tls.client, tls.server)
    endpoint = config.nodes.endpoints[0]
    attempt = job_access.attempt(os.environ)
    kept = ledger_file.LedgerFile(config.run_dir, endpoint, _say)
    known = await left_behind(kept, config.run_id, network, _say, attempt)
    participant = Participant()
    answer = partial(_answer, config, participant)
    participant.serve_questions(s.COORDINATOR, answer)
    here = ControlServer(config.run_dir, config.run_id, s.COORDINATOR, __version__, answer, _say)
    files = cycle_info.of(config.cycle_info, _say)
    leader = _leader(config, known)
    leading = Leading(
        leader,
        network,
        keep=kept.keep,
        done=lambda _: end(""),
        watch=None if files is None else files.follow(leader),
        say=_say,
        beside=_beside,
    )
    wanted, nodes = int(endpoint.rpartition(":")[2]), config.nodes.max_nodes
    logs = None if config.log_server is None else _log_server(config, config.log_server)
    try:
        port = await participant.listen(network, wanted, nodes=nodes, say=_say)
        _say(_first_line(config, port, leader))
        participant.lead(leading)
        if logs is not None:
            logs.begin()
        await here.open()
        why = await over
    finally:
        await here.close()
        await participant.close("the coordinator ends")
        kept.close(remove=leader.policy.ended)
        if files is not None:
            files.close()
        if logs is not None:
            await logs.close()
    return _last_words(config, leader, why)


async def _answer(config: AloneConfig, participant: Participant, data: bytes, by: str) -> bytes:
    """Answer what somebody asks the coordinator; a node carries orders to it, as all reports."""
    leading = participant.leading
    assert leading is not None

    async def reply(question: s.Question) -> bytes:
        match question:
            case s.Status():
                return msgspec.json.encode(_status(config, leading))
            case s.Dump():
                machines = {"leader": leading.recent, "policy": leading.leader.recent}
                kept = {name: one.copy() for name, one in machines.items()}
                return await asyncio.to_thread(all_lines, kept, s.MOST_ANSWERED // 2)
            case s.Stacks() | s.Flight():
                return b"[]"  # no ranks run here
        return await _order(leading, question, by)

    return await s.answered(s.COORDINATOR, data, reply)


def _status(config: AloneConfig, leading: Leading) -> s.NodeStatus:
    state = leading.leader.state.name.lower()
    job = of_leader(leading.leader, lease_clock_ns(), leading.pause_left_s)
    job = msgspec.structs.replace(job, leader_address=config.nodes.endpoints[0])
    who = (s.COORDINATOR, os.getpid(), __version__, config.run_id)
    return s.NodeStatus(*who, state, job.round, job)


async def _order(leading: Leading, order: s.Order, by: str) -> bytes:
    """Have a node report an order, and return what comes of it.

    Raises:
        ValueError: none can.
    """
    said = await leading.pass_on_order(msgspec.json.encode(order), by)
    if isinstance(said, Refused):
        problem = said.reason
    else:
        answer = msgspec.json.decode(said.data, type=s.Answer)
        if not answer.error:
            _say(msgspec.json.decode(answer.body, type=s.Decision).line)
            return bytes(answer.body)
        problem = f"node {answer.node}: {answer.error}"
    raise ValueError(problem)


def _beside() -> ControllerHost:
    """Return the controller of functions that are restarted in their processes."""
    from undaunted.inprocess.guard.host import ControllerHost

    return ControllerHost(_notes, _say)


def _notes(number: int, _world_size: int) -> Callable[[Note], None]:
    """Say what becomes of functions that are restarted in their processes: no journal is here."""
    return lambda note: _say(f"round {number}: {note.line()}")


def _log_server(config: AloneConfig, settings: LogServerConfig) -> LogServer:
    from undaunted.fault_tolerance.output.server.process import LogServer

    return LogServer(config.run_id, config.nodes, settings, _say)


def _leader(config: AloneConfig, known: Ledger) -> Leader:
    incarnation, nodes = os.urandom(8).hex(), config.nodes
    policy = job_access.policy_config(config, nodes)
    about = job_access.leader_config(config, nodes, policy, incarnation, takeover=False)
    return Leader(about, known, next_epoch(known.epoch, incarnation))


def _first_line(config: AloneConfig, port: int, leader: Leader) -> str:
    nodes = config.nodes
    wanted = str(nodes.min_nodes)
    if nodes.max_nodes > nodes.min_nodes:
        wanted += f" to {nodes.max_nodes}"
    line = f"coordinator of job {config.run_id} with {wanted} nodes, at port {port}"
    if leader.ledger.round < 0:
        return line
    return f"{line}; it had begun before: round {leader.ledger.round} goes on"


def _last_words(config: AloneConfig, leader: Leader, why: str) -> int:
    ending = leader.policy.ending
    if ending is not None:
        _say(f"{ending.outcome.value}: {ending.reason}")
        return ending.outcome.exit_code
    _say(
        f"ended by {why}; the job goes on for {config.nodes.away_timeout_s:g} s: start this "
        "coordinator again with the same command until then"
    )
    return 128 + signal.Signals[why].value if why else _FAILED


def _say(text: str) -> None:
    print(f"[undaunted] {text}", file=sys.stderr, flush=True)
