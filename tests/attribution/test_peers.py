"""Messages that communication libraries write when a peer is gone."""

from __future__ import annotations

import time

import pytest

from undaunted.attribution.peers import names_lost_peer

LONG_S = 0.2


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:41",
        "gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
        "gloo/transport/tcp/pair.cc:446] writev error: Broken pipe",
        "gloo/transport/uv/socket.cc:120] Socket closed",
    ],
)
def test_a_lost_peer(text: str) -> None:
    assert names_lost_peer(text)


def test_its_own_failure() -> None:
    assert not names_lost_peer("ValueError: batch 7 is empty")


@pytest.mark.parametrize(
    "word", ["gloo/transport/", "TCPStore", "recvValue", "Timed out ", "wait timeout after 1", "x"]
)
def test_long_words_do_not_hold_up_the_agent(word: str) -> None:
    """The time of the CPU; it was seconds."""
    text = (word * (1 << 16))[: 1 << 16]
    took = []
    for _ in range(3):  # whatever else the machine does
        began = time.thread_time()
        assert not names_lost_peer(text)
        took.append(time.thread_time() - began)
        if took[-1] < LONG_S:
            break
    assert min(took) < LONG_S
