from __future__ import annotations

from typing import Any

from tests.doctor.checks.saying import said
from undaunted.base.sizes import GIB, MIB
from undaunted.doctor.checks import temporary
from undaunted.doctor.facts import FileSystem


def test_temporary_files() -> None:
    def found(**more: Any) -> list[tuple[str, str, str]]:
        return said(temporary, file_systems={"tmp": FileSystem(path="/tmp", **more)})

    assert found(kind="ext4", options=("rw",), free=10 * GIB) == []
    assert found(options=("rw", "noexec"))[0][2] == "/tmp is mounted noexec"
    assert found(kind="nfs4")[0][2] == "/tmp is on a network file system (nfs4)"
    assert found(free=10 * MIB)[0][1] == "warn"
    assert found(free=0)[0][1] == "fail"
    assert found(problem="Read-only file system")[0][1] == "fail"
    caches = {"TORCHINDUCTOR_CACHE_DIR": "/local", "TRITON_CACHE_DIR": "/local"}
    place = FileSystem(path="/tmp", options=("noexec",))
    assert said(temporary, file_systems={"tmp": place}, environ=caches) == []
    assert said(temporary) == []


def test_ipc_that_logind_removes() -> None:
    assert said(temporary, settings={"RemoveIPC": "yes"})[0][:2] == ("L07", "warn")
    assert said(temporary, settings={"RemoveIPC": "no"}) == []
