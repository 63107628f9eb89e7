"""Messages that communication libraries write when a peer is gone."""

from __future__ import annotations

import time

import pytest

from tests.attribution.samples import ALONE, LOST_PEER
from undaunted.attribution.peers import names_lost_peer

LONG_S = 0.2


@pytest.mark.parametrize("text", LOST_PEER)
def test_a_lost_peer(text: str) -> None:
    assert names_lost_peer(text)
    assert names_lost_peer(f"step 7\nRuntimeError: {text}") or text in ALONE


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: batch 7 is empty",
        "CUDA error: an illegal memory access was encountered",
        "cannot reach https://data.example.org: Connection refused",
        "tee: standard output: Broken pipe",
        "DataLoader worker (pid 71) is killed by signal: Killed.",
    ],
)
def test_its_own_failure(text: str) -> None:
    assert not names_lost_peer(text)


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
