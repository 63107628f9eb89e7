from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import mounts
from undaunted.health.checks.mounts import Mount, MountAnswers, parse_mountinfo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.health.checks.conftest import Tree

LINES = r"""23 28 0:21 / /proc rw,nosuid shared:13 - proc proc rw
90 28 0:50 / /home rw,relatime shared:44 - nfs4 server:/home rw,vers=4.2
91 28 0:51 /sub /with\040space rw,relatime master:1 shared:45 - nfs server:/x rw
92 28 0:52 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw
93 28 0:50 /alice /bound rw - nfs4 server:/home rw
94 28 8:1 / / rw - ext4 /dev/sda1 rw
garbage
1 2 3 - nfs
- nfs x
"""


def test_distributed_file_systems_each_once() -> None:
    assert parse_mountinfo(LINES) == [
        Mount("/home", "nfs4", "0:50"),
        Mount("/with space", "nfs", "0:51"),
        Mount("/scratch", "lustre", "0:52"),
    ]
    assert parse_mountinfo("") == []


def test_only_if_asked_for(tree: Tree) -> None:
    tree.write("proc/self/mountinfo", LINES)
    settings = Settings(root=str(tree.root))
    assert mounts.checks(settings) == []
    found = mounts.checks(settings._replace(mounts=True))
    assert [(check.name, check.subject) for check in found] == [
        ("Lustre health", ""),
        ("nfs4 mount", "/home"),
        ("nfs mount", "/with space"),
        ("lustre mount", "/scratch"),
    ]


def test_what_is_not_checked_is_said(tree: Tree) -> None:
    settings = Settings(root=str(tree.root), mounts=True)
    (unreadable,) = mounts.checks(settings)
    assert unreadable.run({}) is not None
    tree.write("proc/self/mountinfo", "")
    assert mounts.checks(settings)[-1].run({}) == Finding("no Lustre or NFS is mounted here", False)
    many = "".join(f"1 2 0:{n} / /m{n} rw - nfs4 s:/ rw\n" for n in range(70))
    tree.write("proc/self/mountinfo", many)
    *_, last = mounts.checks(settings)
    assert last.run({}) == Finding("only 64 of 70 mounts are checked", False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("healthy\n", None),
        ("NOT HEALTHY\n", Finding("/sys/fs/lustre/health_check says 'NOT HEALTHY'")),
        ("LBUG\n", Finding("/sys/fs/lustre/health_check says 'LBUG'")),
    ],
)
def test_lustre_says_itself(tree: Tree, text: str, problem: Finding | None) -> None:
    check = mounts.LustreHealth(str(tree.root))
    assert check.run({}) is None  # there is no Lustre
    tree.write("sys/fs/lustre/health_check", text)
    assert check.run({}) == problem


def test_mounts_that_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = MountAnswers(Mount(str(tmp_path), "nfs4", "0:50"))
    assert check.run({}) is None

    def fails(error: OSError) -> None:
        def statvfs(_: str) -> None:
            raise error

        monkeypatch.setattr(os, "statvfs", statvfs)

    fails(PermissionError(13, "Permission denied"))
    assert check.run({}) is None  # it is alive, but not for everybody
    fails(OSError(116, "Stale file handle"))
    assert check.run({}) == Finding("Stale file handle")
