from __future__ import annotations

from tests.doctor.checks.saying import said
from undaunted.doctor.checks import tracing


def test_tracing() -> None:
    for scope, expected in (("0", []), ("1", []), ("2", ["L08"]), ("3", ["L08"]), ("?", [])):
        settings = {"kernel.yama.ptrace_scope": scope}
        assert [row[0] for row in said(tracing, settings=settings)] == expected
    admin = {"settings": {"kernel.yama.ptrace_scope": "2"}, "capabilities": 1 << 19}
    assert said(tracing, **admin) == []


def test_capabilities_of_containers() -> None:
    versions = {"nccl": "2.25.1"}
    bare = {"in_container": True, "capabilities": 0}
    assert [row[0] for row in said(tracing, versions=versions, **bare)] == ["L09"]
    assert said(tracing, versions={"nccl": "2.23.4"}, **bare) == []
    assert said(tracing, versions={}, **bare) == []
    assert said(tracing, versions=versions, in_container=True, capabilities=1 << 23) == []
    assert said(tracing, versions=versions, in_container=True, capabilities=None) == []
