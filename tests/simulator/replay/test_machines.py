"""`python -m simulator --replay`: what state machines have done, done once more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from simulator.__main__ import main
from undaunted.base.recent import MOST, Recent
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy.config import PolicyConfig
from undaunted.coordinator.policy.policy import JobPolicy
from undaunted.fault_tolerance.agent import node
from undaunted.fault_tolerance.slow_ranks.pace import Pace

if TYPE_CHECKING:
    from pathlib import Path


def a_node(rounds: int = 1) -> list[bytes]:
    """What a node has done in some rounds that crash."""
    machine, recent = node.Node(), Recent({"rank_termination_signal": 9, "clearing_s": 0.0})
    for number in range(rounds):
        for event in (
            node.StartRound(number, 2),
            node.WorkersSpawned(),
            node.RankExited(0, -11, absent=frozenset({1})),
            node.StopRound(number, 2.0, 15),
            node.RankExited(1, -15),
            node.TreeEmpty(),
        ):
            recent.note(7, event, machine.handle(event))
    return list(recent.lines("node", 1 << 24))


def a_policy(policy: JobPolicy, recent: Recent, *events: m.Event) -> list[bytes]:
    for event in events:
        recent.note(7, event, policy.handle(event))
    return list(recent.lines("policy", 1 << 24))


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return tmp_path / "dump.jsonl"


def test_what_a_node_has_done(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump.write_bytes(b"\n".join(a_node()))
    assert main(["--replay", str(dump)]) == 0
    assert capsys.readouterr().out == "node: 6 of 6 events: no differences\n"


def test_a_node_whose_first_rounds_are_not_kept(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump.write_bytes(b"\n".join(a_node(rounds=MOST // 6 + 3)))
    assert main(["--replay", str(dump)]) == 0
    assert "events: no differences" in capsys.readouterr().out


def test_what_a_policy_has_decided(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = PolicyConfig(max_restarts=1, pace=Pace)
    events = (
        m.NodeJoined(m.NodeInfo("a", 2)),
        m.TableAccepted(0, "", 0),
        m.NodeFailed("a", 0, "rank 0"),
        m.NodeStopped("a", 0, finding=b"\x00\xff"),
        m.TableAccepted(1, "", 0),
    )
    lines = a_policy(JobPolicy(config), Recent({"config": config}), *events)
    limits = m.NewLimits({"heartbeat": 9.0}, "me")
    memory = m.Memory(restarts_used=1, history=b"so", slow=(1,), limits=limits)
    known = {"round": 4, "nodes": [m.NodeInfo("a", 2)], "prepared": 4, "memory": memory}
    restored = JobPolicy.restored(config, **known)  # type: ignore[arg-type]
    recent = Recent({"config": config, "restored": known})
    lines += a_policy(restored, recent, m.NodeFailed("a", 4, "rank 1"))
    dump.write_bytes(b"\n".join(lines))
    assert main(["--replay", str(dump)]) == 0
    assert capsys.readouterr().out.count("no differences") == 2


def test_another_answer_is_a_difference(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in a_node()]
    lines[3]["commands"].pop()
    dump.write_text("\n".join(map(json.dumps, lines)).replace('"event": ', '"event":'))
    assert main(["--replay", str(dump)]) == 1
    assert "1 differences\n  {'type': 'RankExited'" in capsys.readouterr().out


def test_what_is_not_complete_is_not_replayed(
    dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, recent = PolicyConfig(), Recent({"config": PolicyConfig()})
    policy = JobPolicy(config)
    lines = a_policy(policy, recent, *[m.NodeReturns("a")] * (MOST + 1))
    dump.write_bytes(b"\n".join(lines))
    assert main(["--replay", str(dump)]) == 0
    assert "not replayed: what it did first" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"junk", b"{}", b'{"machine":"node","event":{}}', None])
def test_what_is_no_dump_is_refused(
    dump: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        dump.write_bytes(content)
    assert main(["--replay", str(dump)]) == 2
    assert str(dump) in capsys.readouterr().err
