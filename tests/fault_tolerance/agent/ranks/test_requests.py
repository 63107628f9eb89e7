"""Every request of a rank is answered, and what it is about reaches the job policy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from undaunted.coordinator.core import messages as job
from undaunted.fault_tolerance.agent.ranks.requests import Requests
from undaunted.fault_tolerance.data import WorkloadAction, WorkloadControlRequest, encode_request
from undaunted.progress.area import MailboxRequest

CURRENT: Any = SimpleNamespace(number=3, rank=lambda local_rank: 4 + local_rank)


class Node:
    """Area, limits, scribe and orders in one."""

    def __init__(self, limits_say: bytes | None = None) -> None:
        self.limits_say = limits_say
        self.answers: list[tuple[int, bytes]] = []
        self.told: list[tuple[int, str]] = []
        self.posted: list[Any] = []

    def ask(self, payload: bytes) -> bytes:
        this: Any = self
        requests = Requests("here", this, this, this, this)
        requests.take(CURRENT, 1, MailboxRequest(1, payload, 0))
        ((local_rank, answer),) = self.answers
        assert local_rank == 1
        return answer

    def take(self, _payload: bytes) -> bytes | None:
        return self.limits_say

    def answer(self, local_rank: int, _message: MailboxRequest, payload: bytes) -> None:
        self.answers.append((local_rank, payload))

    def control_requested(self, rank: int, request: WorkloadControlRequest) -> None:
        self.told.append((rank, request.action.name))

    def post(self, event: job.Event) -> None:
        self.posted.append(event)


@pytest.mark.parametrize(
    ("action", "posted"),
    [
        (WorkloadAction.Continue, []),
        (WorkloadAction.ExcludeThisNode, [job.ExclusionRequested("here", 3, "why")]),
        (WorkloadAction.ShutdownWorkload, [job.ShutdownRequested("here", 3, "why")]),
    ],
)
def test_control_of_the_workload(action: WorkloadAction, posted: list[job.Event]) -> None:
    node = Node()
    assert node.ask(encode_request(WorkloadControlRequest(action, "why"))) == b"ok"
    assert node.told == [(5, action.name)]
    assert node.posted == posted


def test_limits_are_for_their_keeper() -> None:
    node = Node(limits_say=b"taken")
    assert node.ask(b"anything") == b"taken"
    assert (node.told, node.posted) == ([], [])


@pytest.mark.parametrize("payload", [b"", b"{}", b'{"action": "Dance", "description": ""}'])
def test_what_is_no_request_is_refused(payload: bytes) -> None:
    node = Node()
    assert b"not a workload control request" in node.ask(payload)
    assert (node.told, node.posted) == ([], [])
