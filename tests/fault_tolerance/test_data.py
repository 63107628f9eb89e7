from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.data import (
    RankInfo,
    WorkloadAction,
    WorkloadControlRequest,
    decode_request,
    encode_request,
)
from undaunted.progress.layout import REQUEST_BYTES


@given(st.sampled_from(WorkloadAction), st.text(max_size=700))
def test_requests_fit_the_mailbox_and_come_out_as_they_were(action, description):
    payload = encode_request(WorkloadControlRequest(action, description))
    assert len(payload) <= REQUEST_BYTES
    decoded = decode_request(payload)
    assert decoded.action is action
    assert description.startswith(decoded.description)
    assert len(description) <= 300 or len(decoded.description) == 300


@given(st.binary())
def test_garbage_is_a_value_error(payload):
    with pytest.raises(ValueError, match="not a workload control request"):
        decode_request(payload)


@pytest.mark.parametrize(
    "payload",
    [b"[]", b"{}", b'{"action": "Explode", "description": ""}', b'{"action": 1}', b"[" * 10**5],
)
def test_other_json_is_a_value_error(payload):
    with pytest.raises(ValueError, match="one of Continue, ExcludeThisNode, ShutdownWorkload"):
        decode_request(payload)


def test_values_are_the_familiar_ones():
    assert [(a.name, a.value) for a in WorkloadAction] == [
        ("Continue", 0), ("ExcludeThisNode", 1), ("ShutdownWorkload", 2),
    ]  # fmt: skip


def test_the_current_rank(monkeypatch):
    with pytest.raises(RuntimeError, match="the rank of this process is not known"):
        RankInfo.get_for_current_rank()
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    found = RankInfo.get_for_current_rank()
    assert (found.global_rank, found.local_rank, found.pid) == (5, 1, os.getpid())
