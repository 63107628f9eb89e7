from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doctor.probe.tree import write_tree
from undaunted.doctor import probes as module
from undaunted.doctor.facts import Gpus
from undaunted.doctor.probes import Children, kernel_driver, manager_runs, of_gpus, parse_answer

if TYPE_CHECKING:
    from pathlib import Path

VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build\n"
    "GCC version:  gcc version 12.2.0\n"
)


def test_a_machine_without() -> None:
    with Children() as children:
        assert of_gpus(children, module.Path("/nonexistent")) == (Gpus(), "")


def test_a_machine_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(
        tmp_path,
        {
            "dev/nvidia0": "",
            "proc/driver/nvidia/version": VERSION,
            "proc/driver/nvidia-nvswitch/devices/0": "",
            "proc/1/comm": "init\n",
            "proc/77/comm": "nv-fabricmanage\n",
            "program.py": """print('{"version": "570.133.20", "count": 8}')\n""",
        },
    )
    monkeypatch.setattr(module, "DRIVER_PROGRAM", root / "program.py")
    with Children() as children:
        gpus, version = of_gpus(children, root)
    assert version == "570.133.20"
    assert gpus == Gpus(
        present=True,
        count=8,
        kernel_driver="570.133.20",
        nvswitch=True,
        fabric_manager=True,
    )


def test_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_tree(
        tmp_path, {"dev/nvidia0": "", "program.py": "import signal\nsignal.pause()\n"}
    )
    monkeypatch.setattr(module, "DRIVER_PROGRAM", root / "program.py")
    with Children() as children:
        gpus, version = of_gpus(children, root, deadline_s=0.2)
    assert gpus == Gpus(present=True, problem="no answer within 200 ms")
    assert version == ""


@pytest.mark.parametrize("output", [b"", b"\xff", b"[]", b'{"count": "many"}'])
def test_answers_that_cannot_be_read(output: bytes) -> None:
    assert parse_answer(output, "").problem == "what it says cannot be read"
    assert parse_answer(output, "killed by SIGBUS").problem == "killed by SIGBUS"


def test_versions_of_the_kernel_module() -> None:
    assert kernel_driver(VERSION) == "570.133.20"
    old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022"
    assert kernel_driver(old) == "525.60.13"
    assert kernel_driver("garbage") == ""


def test_fabric_manager(tmp_path: Path) -> None:
    assert manager_runs(tmp_path) is None
    assert manager_runs(write_tree(tmp_path, {"proc/1/comm": "init"})) is False
