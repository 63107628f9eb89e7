from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests import warm
from tests.attribution.flight.injector import KINDS, judge
from undaunted.attribution.flight import recorder
from undaunted.attribution.flight.culprits import analyse
from undaunted.attribution.flight.files import read_files
from undaunted.attribution.flight.recording import ranks_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 110


@pytest.fixture(autouse=True)
def nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever tests before this one have aborted in this process."""
    monkeypatch.setattr(recorder, "_forgotten_ns", 0)


def inject(kind: str, size: int, culprit: int, directory: Path) -> None:
    command = [sys.executable, "-m", "tests.attribution.flight.injector"]
    command += [kind, str(size), str(culprit), str(directory)]
    with warm.Popen(command) as process:
        assert process.wait(DEADLINE_S) == 0


def test_a_process_without_torch_has_no_recording() -> None:
    code = (
        "import sys; from undaunted.attribution.flight.recorder import record; "
        "assert record() is None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    "torch",
    [
        None,
        object(),
        type("torch", (), {"_C": None}),
    ],
)
def test_another_torch_does_no_harm(torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch)

    assert recorder.dump() is None
    assert recorder.record() is None
    assert recorder.calls().at_ns == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, True),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": " 10 "}, True),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "many"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "-1"}, False),
    ],
)
def test_whether_it_is_on(environment: dict[str, str], expected: bool) -> None:
    assert recorder.is_on(environment) == expected


def test_when_collectives_of_the_largest_group_were_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(group: str, at: object, *, is_p2p: bool = False) -> dict[str, object]:
        return {"process_group": [group, "x"], "time_created_ns": at, "is_p2p": is_p2p}

    entries = [entry("1", 1), entry("0", "30"), entry("0", 20), entry("0", 25, is_p2p=True)]
    text = json.dumps({"version": "2.9", "entries": entries}).encode()
    inner = SimpleNamespace(_dump_fr_trace_json=lambda **_: text)
    monkeypatch.setattr(recorder, "_inner", lambda: inner)
    monkeypatch.setattr(recorder, "_members", lambda _: {"0": [0, 1, 2], "1": [0, 1]})
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace())
    assert recorder.calls() == ([20, 30], False)


@pytest.mark.parametrize(
    ("nccl", "others", "expected"),
    [
        ([{"record_id": 7}], [{"record_id": 1}], 7),  # also with gloo beside it, for the CPU
        ([], [{"record_id": 1}], 1),
        (None, [{"record_id": 1}], 1),  # a build without it
        ([], [], None),
    ],
)
def test_nccl_has_a_recorder_of_its_own(
    nccl: list[object] | None,
    others: list[object],
    expected: int | None,
) -> None:
    def writes(entries: list[object]) -> Callable[..., bytes]:
        return lambda **_: json.dumps({"entries": entries}).encode()

    inner = SimpleNamespace(_dump_fr_trace_json=writes(others))
    if nccl is not None:
        inner._dump_nccl_trace_json = writes(nccl)

    assert recorder._written(SimpleNamespace(), empty=True) is None
    assert recorder._written(inner, empty=True) is not None
    found = recorder._written(inner)
    assert (None if found is None else found["entries"][0]["record_id"]) == expected


@pytest.mark.torch
@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["skip", "pipeline", "stop", "late", "late other"])
def test_real_ranks(kind: str, tmp_path: Path) -> None:
    inject(kind, 4, 1, tmp_path)

    assert judge(tmp_path, 4) == [(1, KINDS[kind][0])]


@pytest.mark.torch
@pytest.mark.e2e
def test_what_torch_writes_and_what_is_added(tmp_path: Path) -> None:
    inject("sleep", 4, 2, tmp_path)
    ours = read_files(sorted(tmp_path.glob("rank_*.json"))).recordings
    plain = read_files(sorted(tmp_path.glob("torch_*"))).recordings

    # The pickle of torch says the same, but for members of groups.
    assert [one.entries for one in ours] == [one.entries for one in plain]
    assert [one.calls for one in ours] == [one.calls for one in plain]
    assert not any(group.members for one in plain for group in one.groups)
    assert [one.world_size for one in ours] == [4] * 4
    members = {group.name: ranks_of(group.members) for one in ours for group in one.groups}
    assert members["0"] == (0, 1, 2, 3)
    assert {"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}.items() <= members.items()
    for dumps in (ours, plain):
        assert [(one.rank, one.cause) for one in analyse(dumps).culprits] == [(2, "host_lag")]
