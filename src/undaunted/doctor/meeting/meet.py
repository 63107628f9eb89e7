"""Meeting the other nodes: the one that can listen at the endpoint is the host."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import msgspec

from undaunted.coordinator.wire.connection import WireError
from undaunted.coordinator.wire.handshake import Terms
from undaunted.doctor.meeting.compare import SUBJECT
from undaunted.doctor.meeting.guest import attend
from undaunted.doctor.meeting.host import Host
from undaunted.doctor.meeting.messages import Verdict

if TYPE_CHECKING:
    from undaunted.doctor.facts import Facts
    from undaunted.doctor.known_issues import KnownIssues

REACH_S = 30.0
_RUN_ID = "undaunted-doctor"
# Another doctor of this machine is the host, or this is not the machine of the endpoint.
_NOT_HERE = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with how many to meet.

    Attributes:
        endpoint: ``HOST:PORT``, that of the rendezvous.
        nodes: how many.
        token: what the nodes of the job know.
        join_s: how long all are waited for, seconds.
    """

    endpoint: str
    nodes: int
    token: bytes
    join_s: float


def meet(meeting: Meeting, facts: Facts, version: str, issues: KnownIssues) -> Verdict:
    """Meet the other nodes; what prevents that is a finding. Never raises because of others."""
    try:
        return asyncio.run(_meet(meeting, facts, version, issues))
    except WireError as error:
        why = str(error).removeprefix(f"{meeting.endpoint}: ")
        found = f"no meeting at {meeting.endpoint}: {why}"
        return Verdict([], [issues.setting("N03").finding(SUBJECT, found)])


async def _meet(meeting: Meeting, facts: Facts, version: str, issues: KnownIssues) -> Verdict:
    terms = Terms(run_id=_RUN_ID, build=version, token=meeting.token, node=facts.node)
    host = Host(meeting.endpoint, terms, meeting.nodes, issues)
    try:
        await host.start(meeting.join_s, REACH_S)
    except WireError as error:
        if error.number not in _NOT_HERE:
            raise
    try:
        return await attend(meeting.endpoint, terms, facts, join_s=meeting.join_s, reach_s=REACH_S)
    finally:
        await host.close()
