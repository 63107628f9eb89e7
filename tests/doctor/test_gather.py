from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from undaunted.coordinator.wire.address import Address
from undaunted.doctor import gather as module
from undaunted.doctor.facts import Facts
from undaunted.doctor.gather import Places, Probe, gather, known_variables, merged, probes
from undaunted.doctor.known_issues import known_issues
from undaunted.doctor.probes import Children

if TYPE_CHECKING:
    import pytest


def test_answers_are_joined() -> None:
    found = gather(
        "n1",
        [
            Probe("a", 60.0, lambda: {"versions": {"linux": "6.8"}, "cpus": 2}),
            Probe("b", 60.0, lambda: {"versions": {"torch": "2.9"}}),
        ],
    )
    assert found == Facts(node="n1", versions={"linux": "6.8", "torch": "2.9"}, cpus=2)


def test_the_last_probe_counts_whoever_answers_first() -> None:
    todo = [Probe("a", 1.0, dict), Probe("b", 1.0, dict)]
    answers: list[tuple[int, dict[str, Any]]] = [
        (1, {"versions": {"nccl": "late"}}),
        (0, {"versions": {"nccl": "early"}}),
    ]
    assert merged("n1", todo, answers).versions == {"nccl": "late"}


def test_a_probe_that_breaks() -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("out of\norder")

    found = gather("n1", [Probe("luck", 60.0, broken), Probe("a", 60.0, lambda: {"cpus": 2})])
    assert found.cpus == 2
    assert found.unknown == {"luck": "ValueError('out of\\norder')"}


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    found = gather("n1", [Probe("a", 60.0, lambda: {"cpus": 2})])
    assert found == Facts(node="n1", unknown={"a": "can't start new thread"})


def test_a_probe_that_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "_SPARE_S", 0.0)
    over = threading.Event()
    before = set(threading.enumerate())
    began = time.monotonic()

    def hangs() -> dict[str, Any]:
        over.wait(60)
        return {}

    found = gather("n1", [Probe("disk", 0.1, hangs), Probe("a", 0.1, lambda: {"cpus": 2})])
    assert found == Facts(node="n1", cpus=2, unknown={"disk": "no answer within 0 s"})
    assert time.monotonic() - began < 30
    over.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


def test_what_is_looked_at_follows_what_was_asked() -> None:
    with Children() as children:
        plain = probes(Places(node="n1", python="python"), known_issues(), children)
        asked = Places(
            node="n1",
            python="python",
            hosts=(Address("n2", 1),),
            directories=(("/ckpt", "checkpoints"),),
            etcd=(Address("e1", 2379),),
            stores={"MASTER_ADDR": Address("n0", 0)},
        )
        more = probes(asked, known_issues(), children)
    names = [probe.name for probe in plain]
    assert [probe.name for probe in more] == [
        *names,
        "hosts",
        "rendezvous",
        "directories",
        "etcd e1:2379",
    ]


def test_variables_of_all_issues() -> None:
    found = known_variables(known_issues())
    assert {"NCCL_DEBUG", "NCCL_RAS_ENABLE"} <= found
